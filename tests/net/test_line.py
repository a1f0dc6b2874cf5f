"""A line against a server of a few lines: answers, silence, closed connections, and what may be used again."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kappamq.errors import FrameTooLarge, NotConnected, RequestTimeout
from kappamq.net import line as lines
from kappamq.net.line import Line
from kappamq.protocol.frame import FRAME_BYTES_MAX, Frame, FrameDecoder, reply
from tests.waiting import eventually

Behave = Callable[[socket.socket, Frame], None]


@contextmanager
def serving(behave: Behave) -> Iterator[str]:
    """Each connection: read frames, do something about each, until one side closes."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve(peer: socket.socket) -> None:
        decoder = FrameDecoder()
        with peer:
            try:
                while data := peer.recv(65536):
                    for frame in decoder.feed(data):
                        behave(peer, frame)
            except OSError:
                pass

    def accept() -> None:
        try:
            while True:
                peer, _ = listening.accept()
                threading.Thread(target=serve, args=(peer,), daemon=True).start()
        except OSError:
            pass

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)


def answer(peer: socket.socket, frame: Frame) -> None:
    peer.sendall(reply(frame, 0, "yes", body=frame.body).encode())


def test_requests_get_their_answers_one_after_the_other() -> None:
    with serving(answer) as address:
        line = Line.open(address, 5)
        for body in (b"a", b"b" * 300_000, b""):
            assert line.ask(Frame(code=1, body=body), 10).body == body
        assert line.is_usable
        line.close()
        assert not line.is_usable


def test_an_answer_in_pieces_among_others_is_found() -> None:
    def answer_slowly(peer: socket.socket, frame: Frame) -> None:
        stranger = reply(Frame(code=1, opaque=frame.opaque + 7), 0, "of somebody else").encode()
        asked = Frame(code=40, opaque=frame.opaque).encode()  # a request of the server has the same number
        data = stranger + asked + reply(frame, 0, "mine").encode()
        for start in range(0, len(data), 50):
            peer.sendall(data[start : start + 50])

    with serving(answer_slowly) as address:
        line = Line.open(address, 5)
        assert line.ask(Frame(code=1), 10).remark == "mine"


def test_silence_is_a_time_out_and_the_line_is_not_used_again() -> None:
    with serving(lambda peer, frame: None) as address:
        line = Line.open(address, 5)
        with pytest.raises(RequestTimeout, match=r"did not answer within 0\.1 s"):
            line.ask(Frame(code=1), 0.1)
        assert not line.is_usable


def test_drops_of_an_answer_do_not_make_the_time_longer() -> None:
    def drip(peer: socket.socket, frame: Frame) -> None:
        for byte in reply(frame, 0, "slowly").encode():
            peer.sendall(bytes([byte]))
            done.wait(0.02)

    done = threading.Event()
    with serving(drip) as address:
        line = Line.open(address, 5)
        with pytest.raises(RequestTimeout):
            line.ask(Frame(code=1), 0.15)
        done.set()


@contextmanager
def sipping(total: int) -> Iterator[str]:
    """Read a connection in small sips, so that the other side can send a part now and then; from the first `total` bytes on, nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        done = threading.Event()

        def serve() -> None:
            peer, _ = listening.accept()
            with peer:
                taken = 0
                while taken < total and not done.wait(0.05):
                    taken += len(peer.recv(60_000))
                done.wait(30)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        done.set()
        thread.join(10)


@pytest.mark.parametrize("stored", [False, True])
def test_a_peer_that_reads_slowly_does_not_make_the_time_longer(stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 1_000_000 if stored else 8_000_000  # taken whole before the time is over, or never
    deadlines: list[float] = []
    wait_until = Line._wait_until

    def noted(line: Line, deadline: float) -> None:
        deadlines.append(deadline)
        wait_until(line, deadline)

    monkeypatch.setattr(Line, "_wait_until", noted)
    with sipping(10_000_000) as address:
        line = Line.open(address, 5)
        line._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        began = time.monotonic()
        with pytest.raises(RequestTimeout):
            line.ask(Frame(code=1, body=bytes(size)), 1.0)
        # Not the seconds that it took: a busy machine may be late.
        assert len(set(deadlines)) == 1, "one limit for all parts"
        assert began + 1.0 <= deadlines[0] < time.monotonic()
        assert not line.is_usable


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_peer_that_hangs_up_or_speaks_something_else_is_not_connected(said: bytes) -> None:
    def hang_up(peer: socket.socket, frame: Frame) -> None:
        peer.sendall(said)
        peer.shutdown(socket.SHUT_RDWR)

    with serving(hang_up) as address:
        line = Line.open(address, 5)
        with pytest.raises(NotConnected, match="not a frame" if said else "closed"):
            line.ask(Frame(code=1), 10)
        assert not line.is_usable


def test_a_line_that_the_server_has_closed_is_noticed_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    peers: list[socket.socket] = []

    def keep(peer: socket.socket, frame: Frame) -> None:
        peers.append(peer)
        answer(peer, frame)

    monkeypatch.setattr(lines, "FRESH_S", 0.0)
    with serving(keep) as address:
        line = Line.open(address, 5)
        line.ask(Frame(code=1), 10)
        assert line.is_usable
        peers[0].shutdown(socket.SHUT_RDWR)
        eventually(lambda: not line.is_usable)


def test_a_line_that_was_idle_for_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(answer) as address:
        line = Line.open(address, 5)
        monkeypatch.setattr(lines, "IDLE_S", 0.0)
        assert not line.is_usable


def test_what_is_too_large_is_refused_before_anything_is_sent() -> None:
    with serving(answer) as address:
        line = Line.open(address, 5)
        with pytest.raises(FrameTooLarge, match="send less at once"):
            line.ask(Frame(code=1, body=bytes(FRAME_BYTES_MAX)), 10)
        assert line.ask(Frame(code=1, body=b"x"), 10).body == b"x"


def test_a_host_that_no_resolver_takes_is_not_connected() -> None:
    with pytest.raises(NotConnected, match="expected host:port"):
        Line.open("a" * 64 + ".x:1", 5)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(NotConnected, match=address):
        Line.open(address, 5)
