"""Accepting: who is plain and who is not, who says nothing, and what happens when there is no descriptor left."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import uvloop

from kappamq.config.net import NetConfig
from kappamq.net.serving import accepting
from kappamq.net.serving.accepting import Acceptor
from kappamq.net.serving.server import bind
from kappamq.net.serving.strangers import Strangers
from tests.net.openings import HELLO_H2, V1, V2
from tests.net.running import connected, run
from tests.waiting import eventually_async as eventually


class Greeter(asyncio.Protocol):
    """Says hello to whoever has got through, by the name that a PROXY header gives it."""

    def __init__(self, source: tuple[str, int] | None = None, *, header_seen: bool = False) -> None:
        self.source = source

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        name = b"" if self.source is None else f" {self.source[0]}:{self.source[1]}".encode()
        transport.write(b"hello" + name)  # type: ignore[attr-defined]


made: list[Acceptor] = []


@asynccontextmanager
async def accepts(context: ssl.SSLContext | None = None, mode: str = "", **net: Any) -> AsyncIterator[int]:
    config = NetConfig(**net)
    if mode:
        object.__setattr__(config, "tls_mode", mode)  # without a certificate, which is not needed to turn somebody away
    listener = bind("127.0.0.1", 0, 100)
    acceptor = Acceptor(listener, Greeter, config, context, Strangers())
    task = asyncio.ensure_future(acceptor.run())
    made.append(acceptor)
    try:
        yield listener.getsockname()[1]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        listener.close()
        assert task.cancelled(), "nothing but the cancelling ends it"


def without_certificate() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


async def heard(port: int, said: bytes = b"") -> bytes:
    """What the server says first; nothing if it closes instead."""
    async with connected(port) as peer:
        if said:
            await peer.say(said)
        try:
            return await asyncio.wait_for(peer.reader.read(100), 10)
        except ConnectionError:
            return b""


def test_without_tls_nobody_has_to_speak_first() -> None:
    async def test() -> None:
        async with accepts() as port:
            assert await asyncio.gather(*(heard(port) for _ in range(20))) == [b"hello"] * 20

    run(test())


def test_where_tls_is_offered_the_first_byte_decides() -> None:
    async def test() -> None:
        async with accepts(without_certificate()) as port:
            assert await heard(port, b"\x00\x00\x00\x10") == b"hello"
            assert b"hello" not in await heard(port, b"\x16\x03\x01\x00\x05 not really a handshake"), "taken for TLS"

    run(test())


def test_where_tls_is_enforced_plain_text_is_cut() -> None:
    async def test() -> None:
        async with accepts(without_certificate(), "enforcing") as port:
            assert await heard(port, b"\x00\x00\x00\x10") == b""

    run(test())


LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


def test_who_is_turned_away_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with accepts(without_certificate(), "enforcing") as port:
            for _ in range(3):
                assert await heard(port, b"\x00\x00\x00\x10") == b""
                assert await heard(port, HELLO_H2) == b""
                assert await heard(port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == b""

    with caplog.at_level(logging.WARNING):
        run(test())
    told = [record.message for record in caplog.records]
    assert len(told) == 3
    assert "does not use TLS, which this port requires" in told[0]
    assert "ALPN h2" in told[1]
    assert "speaks HTTP/2" in told[2]


@pytest.mark.parametrize("factory", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("header", [V1, V2], ids=["v1", "v2"])
def test_a_proxy_header_comes_before_tls_and_in_any_pieces(factory: Any, header: bytes) -> None:
    async def test() -> None:
        async with accepts(without_certificate()) as port:
            assert await heard(port, header + b"\x00\x00\x00\x10") == b"hello 192.0.2.7:56324"
            assert b"hello" not in await heard(port, header + b"\x16\x03\x01\x00\x05 not really"), "taken for TLS"
            async with connected(port) as peer:
                for byte in header:
                    await peer.say(bytes([byte]))
                    await asyncio.sleep(0)
                await peer.say(b"\x00")
                assert await asyncio.wait_for(peer.reader.read(100), 10) == b"hello 192.0.2.7:56324"

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(test(), 30))


def test_a_bad_proxy_header_is_told_and_cut(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with accepts(without_certificate()) as port:
            assert await heard(port, b"PROXY TCP4 nobody nowhere 1 2\r\n") == b""
            assert await heard(port, V1 + V2 + b"\x00") == b""
            assert await heard(port, b"\x00") == b"hello"

    with caplog.at_level(logging.WARNING):
        run(test())
    assert ["malformed PROXY header" in record.message for record in caplog.records] == [True], "once for each peer"


def test_half_a_proxy_header_has_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "_HANDSHAKE_S", 0.05)

    async def test() -> None:
        async with accepts(without_certificate(), first_frame_s=60) as port:
            assert await heard(port, V2[:20]) == b""

    run(test())


def test_a_client_that_leaves_within_its_header_is_no_trouble() -> None:
    async def test() -> None:
        async with accepts(without_certificate()) as port:
            async with connected(port) as peer:
                await peer.say(V2[:20])
                peer.writer.write_eof()
                assert await peer.closed()
            assert await heard(port, b"\x00") == b"hello"

    run(test())


def test_who_says_nothing_is_cut_in_time(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with accepts(without_certificate(), first_frame_s=0.05) as port:
            assert await heard(port) == b""
            assert await heard(port, b"\x00\x00\x00\x10") == b"hello"

    with caplog.at_level(logging.INFO):
        run(test())
    assert "did not complete its handshake: TimeoutError" in caplog.text


def test_too_many_who_say_nothing_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has been silent for longest goes; who has begun to speak stays, and then nobody else gets in."""
    monkeypatch.setattr(accepting, "_SNIFFING_MAX", 3)

    async def test() -> None:
        async with accepts(without_certificate()) as port, connected(port) as first, connected(port), connected(port):
            assert await heard(port, b"plain") == b"hello"
            assert await first.reader.read(5) == b"", "it was let go"
            for _ in range(5):
                assert await heard(port, b"plain") == b"hello"
        async with (
            accepts(without_certificate()) as port,
            connected(port) as a,
            connected(port) as b,
            connected(port) as c,
        ):
            for peer in (a, b, c):
                await peer.say(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # half a handshake
            await eventually(lambda: (len(made[-1]._adopting), len(made[-1]._silent)) == (3, 0))
            assert await heard(port, b"plain") == b""

    run(test())


def test_who_is_let_go_in_the_turn_in_which_it_speaks_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async def speaks_as_it_is_let_go(accepted: socket.socket, need: int) -> bytes:
        for task in list(made[-1]._adopting):
            made[-1]._let_go(task)
            return b"\x16"
        await asyncio.Event().wait()
        raise AssertionError("it was asked for more")

    monkeypatch.setattr(accepting, "_at_least", speaks_as_it_is_let_go)

    async def test() -> None:
        async with accepts(without_certificate(), first_frame_s=600) as port, connected(port) as peer:
            assert await asyncio.wait_for(peer.closed(), 5)

    run(test())


def test_a_handshake_that_has_begun_has_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "_HANDSHAKE_S", 0.05)

    async def test() -> None:
        async with accepts(without_certificate(), first_frame_s=60) as port:
            assert await heard(port, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03") == b""

    run(test())


def test_nothing_stays_open() -> None:
    async def test() -> None:
        before = open_descriptors()
        listener = bind("127.0.0.1", 0, 1)
        never_run = asyncio.ensure_future(Acceptor(listener, Greeter, NetConfig(), None, Strangers()).run())
        never_run.cancel()
        await asyncio.gather(never_run, return_exceptions=True)
        listener.close()
        assert open_descriptors() <= before, "cancelled before it ran"
        async with accepts(without_certificate()) as port, connected(port) as waiting:
            await eventually(lambda: len(open_descriptors() - before) == 4)  # listener, spare, both ends of a socket
        assert waiting.writer.is_closing()
        await eventually(lambda: open_descriptors() <= before)

    run(test())


@contextmanager
def no_descriptors_left() -> Iterator[list[int]]:
    """Until the end of the block, or until the given ones are closed, this process can open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, open_descriptors())) + 10, hard))
        while True:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        yield taken
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_without_descriptors_callers_are_turned_away_at_once(factory: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with accepts() as port:
            await asyncio.sleep(0)  # it has its spare one
            "127.0.0.1".encode("idna")  # the codec is loaded from a file
            callers = [socket.socket() for _ in range(5)]
            for caller in callers:
                caller.setblocking(False)
            loop = asyncio.get_running_loop()
            with no_descriptors_left() as taken:
                for caller in callers[:4]:
                    await loop.sock_connect(caller, ("127.0.0.1", port))
                    try:
                        assert await asyncio.wait_for(loop.sock_recv(caller, 10), 30) == b"", "not left waiting"
                    except ConnectionError:
                        pass
                for _ in range(3):
                    os.close(taken.pop())
                await loop.sock_connect(callers[4], ("127.0.0.1", port))
                assert await asyncio.wait_for(loop.sock_recv(callers[4], 10), 30) == b"hello"
            for caller in callers:
                caller.close()

    with caplog.at_level(logging.ERROR), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(test(), 30))
    assert [record.message.count("ulimit -n") for record in caplog.records] == [1], "told once, not once per caller"
