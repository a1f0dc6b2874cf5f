"""The outgoing channel against a peer that does, over a real socket, what each test tells it."""

from __future__ import annotations

import asyncio
import functools
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from kappamq.config.net import NetConfig
from kappamq.errors import FrameTooLarge, NotConnected, NotUnderstood, RequestTimeout, TooManyRequests
from kappamq.net import channel as channel_module
from kappamq.net.channel import Channel, split_address
from kappamq.net.serving.accepting import Acceptor
from kappamq.net.serving.server import bind
from kappamq.net.serving.strangers import Strangers
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, FrameDecoder, reply


def on_both_loops(test: Callable[..., Any]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


class Peer:
    """Collects what comes in; `answer` decides what goes out."""

    def __init__(self, answer: Callable[[Frame], Frame | bytes | None]) -> None:
        self.answer = answer
        self.frames: list[Frame] = []
        self.reads: list[int] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.address = ""
        self.arrived = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        decoder = FrameDecoder()
        try:
            while data := await reader.read(1 << 20):
                self.reads.append(len(data))
                for frame in decoder.feed(data):
                    self.frames.append(frame)
                    answer = self.answer(frame)
                    if answer is not None:
                        writer.write(answer if isinstance(answer, bytes) else answer.encode())
                self.arrived.set()
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def peer(
    answer: Callable[[Frame], Frame | bytes | None] = reply, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Peer]:
    made = Peer(answer)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls)
    made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        for writer in made.writers:
            writer.transport.abort()
        await asyncio.sleep(0)


def echo(frame: Frame) -> Frame:
    return reply(frame, body=frame.body)


@on_both_loops
async def test_answers_find_their_requests_in_any_order() -> None:
    waiting: list[Frame] = []

    def reversed_in_tens(frame: Frame) -> bytes | None:
        waiting.append(frame)
        if len(waiting) < 10:
            return None
        answers = b"".join(echo(item).encode() for item in reversed(waiting))
        waiting.clear()
        return answers

    async with peer(reversed_in_tens) as server:
        channel = await Channel.connect(server.address)
        bodies = [b"%d" % n for n in range(100)]
        answers = await asyncio.gather(*(channel.request(Frame(code=1, body=body)) for body in bodies))
        assert [answer.body for answer in answers] == bodies
        assert channel.pending == 0
        channel.close()


@on_both_loops
async def test_what_is_written_in_one_turn_leaves_in_one_piece() -> None:
    async with peer(echo) as server:
        channel = await Channel.connect(server.address)
        await asyncio.gather(*(channel.request(Frame(code=1)) for _ in range(50)))
        assert len(server.frames) == 50
        assert len(server.reads) == 1
        channel.close()


@on_both_loops
async def test_a_request_without_an_answer_times_out_and_its_late_answer_is_dropped() -> None:
    held: list[Frame] = []

    def slow(frame: Frame) -> bytes | None:
        if frame.code == 1:
            held.append(frame)
            return None
        return b"".join(echo(item).encode() for item in [*held, frame])

    async with peer(slow) as server:
        channel = await Channel.connect(server.address)
        with pytest.raises(RequestTimeout, match=r"did not answer request 1 within 0\.\d s"):
            await channel.request(Frame(code=1, body=b"late"), timeout=0.05)
        assert channel.is_open
        assert (await channel.request(Frame(code=2, body=b"mine"))).body == b"mine"
        channel.close()


@on_both_loops
async def test_silence_over_the_whole_wait_means_the_connection_is_dead() -> None:
    async with peer(lambda frame: None) as server:
        channel = await Channel.connect(server.address)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(channel_module, "SILENCE_S", 0.05)
            patient = asyncio.ensure_future(channel.request(Frame(code=1), timeout=60))
            with pytest.raises(RequestTimeout):
                await channel.request(Frame(code=2), timeout=0.1)
            with pytest.raises(NotConnected, match="silent"):
                await patient
        assert not channel.is_open


@on_both_loops
async def test_when_the_peer_closes_every_request_fails_at_once() -> None:
    closed: list[Channel] = []
    async with peer(lambda frame: None) as server:
        channel = await Channel.connect(server.address, on_closed=closed.append)
        requests = [asyncio.ensure_future(channel.request(Frame(code=1), timeout=60)) for _ in range(3)]
        await server.arrived.wait()
        server.writers[0].transport.abort()
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(result, NotConnected) for result in results)
        assert len({id(result) for result in results}) == 3
        await channel.wait_closed()
        assert closed == [channel]
        with pytest.raises(NotConnected):
            await channel.request(Frame(code=1))


@on_both_loops
async def test_close_sends_what_was_written_and_fails_what_waits() -> None:
    async with peer(lambda frame: None) as server:
        channel = await Channel.connect(server.address)
        request = asyncio.ensure_future(channel.request(Frame(code=7), timeout=60))
        await asyncio.sleep(0)
        channel.close()
        channel.close()
        with pytest.raises(NotConnected, match="closed by this side"):
            await request
        await channel.wait_closed()
        await server.arrived.wait()
        assert [frame.code for frame in server.frames] == [7]


@on_both_loops
async def test_oneway_is_flagged_and_waits_for_nothing() -> None:
    async with peer(lambda frame: None) as server:
        channel = await Channel.connect(server.address)
        await channel.oneway(Frame(code=5))
        await server.arrived.wait()
        assert server.frames[0].is_oneway
        assert channel.pending == 0
        channel.close()


@on_both_loops
async def test_requests_of_the_peer_are_answered_also_later_and_when_they_fail() -> None:
    async def later(frame: Frame) -> Frame:
        await asyncio.sleep(0)
        return reply(frame, body=b"later")

    def on_request(channel: Channel, frame: Frame) -> Any:
        if frame.code == 1:
            return reply(frame, body=b"now")
        if frame.code == 2:
            return later(frame)
        if frame.code == 3:
            raise RuntimeError("boom")
        return None

    asked = [Frame(code=code, opaque=1000 + code) for code in (1, 2, 3, 4)]
    answers: dict[int, Frame] = {}
    complete = asyncio.Event()

    def server_side(frame: Frame) -> bytes | None:
        if frame.is_response:
            answers[frame.opaque - 1000] = frame
            if len(answers) == 4:
                complete.set()
            return None
        oneway = Frame(code=1, opaque=9, flag=2)
        return b"".join(item.encode() for item in [oneway, *asked, reply(frame)])

    async with peer(server_side) as server:
        channel = await Channel.connect(server.address, on_request=on_request)
        await channel.request(Frame(code=99))
        await complete.wait()
        assert answers[1].body == b"now"
        assert answers[2].body == b"later"
        assert (answers[3].code, answers[3].remark) == (ResponseCode.SYSTEM_ERROR, "RuntimeError: boom")
        assert answers[4].code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert set(answers) == {1, 2, 3, 4}  # nothing for the one-way
        channel.close()


@pytest.mark.parametrize(
    ("said", "named"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "web server"), (b"SSH-2.0-x\r\n", "is that a RocketMQ port")],
)
@on_both_loops
async def test_bytes_that_are_no_frame_close_the_channel_and_say_so(said: bytes, named: str) -> None:
    async with peer(lambda frame: said) as server:
        channel = await Channel.connect(server.address)
        with pytest.raises(NotUnderstood, match=named):
            await channel.request(Frame(code=1))


@on_both_loops
async def test_a_frame_over_the_limit_is_refused_on_both_sides() -> None:
    async with peer(lambda frame: reply(frame, body=bytes(5000))) as server:
        channel = await Channel.connect(server.address, frame_bytes_max=4096)
        with pytest.raises(FrameTooLarge, match="the limit is 4096"):
            await channel.request(Frame(code=1, body=bytes(5000)))
        assert channel.pending == 0
        with pytest.raises(NotConnected, match="4096"):
            await channel.request(Frame(code=1))


@on_both_loops
async def test_the_table_of_waiting_requests_is_bounded() -> None:
    async with peer(lambda frame: None) as server:
        channel = await Channel.connect(server.address, pending_max=2)
        waiting = [asyncio.ensure_future(channel.request(Frame(code=1))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests):
            await channel.request(Frame(code=1))
        channel.close()
        await asyncio.gather(*waiting, return_exceptions=True)


@on_both_loops
async def test_a_peer_that_does_not_read_holds_requests_back_instead_of_filling_memory() -> None:
    never = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        await never.wait()
        writer.transport.abort()

    server = await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1024)
    channel = await Channel.connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    sent = 0
    body = bytes(1 << 20)
    with pytest.raises(RequestTimeout, match="reads too slowly"):
        while sent < 100:
            await channel.oneway(Frame(code=1, body=body), timeout=0.2)
            sent += 1
    assert 0 < sent < 50
    channel.close()
    await channel.wait_closed()  # although the peer takes nothing
    never.set()
    server.close()


@on_both_loops
async def test_nobody_listening_is_not_connected() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(NotConnected, match=f"no connection to 127.0.0.1:{port}: "):
        await Channel.connect(f"127.0.0.1:{port}")


@on_both_loops
async def test_addresses_are_told() -> None:
    async with peer(echo) as server:
        channel = await Channel.connect(server.address)
        assert channel.address == server.address
        host, port = split_address(channel.local_address)
        assert host == "127.0.0.1"
        assert port > 0
        channel.close()


BAD_HOSTS = ["a" * 64 + ".x:1", "a..b:1", "ü" * 64 + ":1", "\udc80:1", "a\0b:1", "x." * 128 + "x:1"]


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":9876", "host:99999", "host:port", "host:" + "9" * 5000, *BAD_HOSTS]
)
def test_a_bad_address_says_what_an_address_is(address: str) -> None:
    with pytest.raises(NotConnected, match="expected host:port"):
        split_address(address)


@pytest.mark.parametrize("address", BAD_HOSTS)
@on_both_loops
async def test_a_host_that_no_resolver_takes_is_not_connected(address: str) -> None:
    """Whoever names it, such as a name server or the `[leader ...]` of an answer: it is no ValueError, which nobody expects."""
    with pytest.raises(NotConnected, match="expected host:port"):
        await Channel.connect(address)


def test_an_ipv6_address_may_stand_in_brackets() -> None:
    assert split_address("[::1]:9876") == ("::1", 9876)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {cert}"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True, timeout=60
    )
    return cert, key


@on_both_loops
async def test_tls_and_what_it_says_when_it_does_not_work(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(cert, key)
    trusting = ssl.create_default_context(cafile=str(cert))
    async with peer(echo, tls=server_side) as server:
        channel = await Channel.connect(server.address, tls=trusting)
        assert (await channel.request(Frame(code=1, body=b"secret"))).body == b"secret"
        channel.close()
        await channel.wait_closed()
        with pytest.raises(NotConnected, match="TLS handshake with"):
            await Channel.connect(server.address, tls=ssl.create_default_context())
        # A plain client is answered with a TLS alert here; RocketMQ's servers and ours close without a word (tests/cli).
        with pytest.raises(NotUnderstood, match="requires TLS: enable it"):
            plain = await Channel.connect(server.address)
            await plain.request(Frame(code=1))
    async with peer(echo) as server:
        with pytest.raises(NotUnderstood, match="does not offer TLS"):
            await Channel.connect(server.address, tls=trusting)


@on_both_loops
async def test_a_server_that_closes_without_a_word_is_asked_whether_it_wants_tls(
    certificate: tuple[Path, Path],
) -> None:
    """With a real handshake on the same port, and without."""
    cert, key = certificate
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(cert, key)
    for offered in (True, False):
        config = NetConfig(tls_cert=cert, tls_key=key, tls_mode="enforcing") if offered else NetConfig()
        strangers = Strangers()
        listener = bind("127.0.0.1", 0, 10)
        acceptor = Acceptor(listener, Rude, config, server_side if offered else None, strangers)
        accepting = asyncio.ensure_future(acceptor.run())
        channel = await Channel.connect(f"127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(NotConnected) as raised:
            await channel.request(Frame(code=1))
        assert isinstance(raised.value, NotUnderstood) is offered, raised.value
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        listener.close()


class Rude(asyncio.Protocol):
    """Closes at once."""

    def __init__(self, source: tuple[str, int] | None = None, *, header_seen: bool = False) -> None: ...

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


@on_both_loops
async def test_pulls_are_held_and_do_not_count_as_unanswered() -> None:
    async with peer(lambda frame: None) as server:
        channel = await Channel.connect(server.address)
        codes = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.HEART_BEAT)
        waiting = [asyncio.ensure_future(channel.request(Frame(code=code))) for code in codes]
        await server.arrived.wait()
        assert (channel.pending, channel.unanswered) == (3, 1)
        channel.close()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert (channel.pending, channel.unanswered) == (0, 0)
