"""Questions on the port for copies find who answers them; nothing is said before the secret is proved (see also mending and seeding)."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from kappamq.broker.copies import question
from kappamq.broker.copies.question import QuestionLink, Questions
from kappamq.config.copies import CopiesConfig
from kappamq.replication.frames import OPENING, VERSION, Frames, Kind, frame, text_frame, values_of
from tests.broker.running import run, running
from tests.waiting import eventually_async


class Taker:
    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def take(self, transport: asyncio.Transport, content: bytes) -> None:
        self.taken.append(content)


def test_each_kind_has_its_own() -> None:
    one, other = Taker(), Taker()
    questions = Questions({Kind.ASK: one, Kind.FETCH: other})
    assert questions.knows(Kind.ASK)
    assert not questions.knows(Kind.LOG)

    class Nowhere(asyncio.Transport):
        pass

    questions.take(Kind.FETCH, Nowhere(), b"x")
    assert (one.taken, other.taken) == ([], [b"x"])


@pytest.mark.parametrize("kind", [Kind.ASK, Kind.FETCH])
@pytest.mark.parametrize(
    ("said", "text"),
    [
        (text_frame(Kind.PROOF, {"proof": "00"}, crc32), "it does not know the secret"),
        (text_frame(Kind.PROOF, {}, crc32), "it does not know the secret"),
        (frame(Kind.BYTES, b"x" * 20, crc32), "was not expected here"),
        (b"\xff" * 20, "a frame of"),
    ],
)
def test_who_does_not_prove_that_it_knows_the_secret_hears_nothing(
    tmp_path: Path, kind: Kind, said: bytes, text: str
) -> None:
    async def test() -> None:
        async with running(tmp_path, copies=CopiesConfig(secret="a long enough one")) as broker:
            asking = broker.seeding.asking().values()
            ours = {**broker.copies._who().values(), "start": 1, "end": 2}
            values = {**(asking if kind is Kind.ASK else ours), "who": "9", "nonce": "00"}
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port + 1)
            writer.write(OPENING.pack(-VERSION) + text_frame(kind, values, crc32))
            await reader.readexactly(OPENING.size)
            frames, answers = Frames(crc32), []
            answers += frames.feed(await reader.read(1 << 16))
            assert [kind for kind, _content in answers] == [Kind.CHALLENGE]
            writer.write(said)
            async with asyncio.timeout(10):
                while data := await reader.read(1 << 16):
                    answers += frames.feed(data)
            assert [kind for kind, _content in answers[1:]] == [Kind.REFUSED]
            assert text in values_of(answers[1][1])["why"]
            writer.close()

    run(test())


PIECES = 500
PIECE = bytes(64 << 10)
WHOLE = PIECES * len(frame(Kind.BYTES, PIECE, crc32))


class Answering(QuestionLink):
    """To whoever connects, as if the question had been read."""

    def __init__(self, transport: asyncio.Transport, lost: asyncio.Event) -> None:
        super().__init__(transport, ("asking", "giving"), None, crc32, lost.set)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    def _read(self, values: dict[str, Any]) -> str:
        return ""

    def _answer(self) -> None:
        self._give(self._pieces())

    async def _pieces(self) -> None:
        for _ in range(PIECES):
            await self._send(Kind.BYTES, PIECE)


class Accepting(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.link: Answering | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.link = Answering(transport, self.lost)
        transport.set_protocol(self.link)
        self.link.asked(b"{}")


async def taken(bytes_at_once: int, pause_s: float) -> tuple[int, Accepting]:
    """How much of the answer arrives, with what answers it; the connection stays as it is."""
    loop, accepting = asyncio.get_running_loop(), Accepting()
    server = await loop.create_server(lambda: accepting, "127.0.0.1", 0)
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        taker.setblocking(False)
        await loop.sock_connect(taker, server.sockets[0].getsockname())
        size = 0
        while not accepting.lost.is_set() and size < WHOLE:
            try:
                data = await loop.sock_recv(taker, bytes_at_once)
            except ConnectionResetError:
                break
            if not data:
                break
            size += len(data)
            await asyncio.sleep(pause_s)  # it is about a taker that takes slowly
        server.close()
        if size < WHOLE:
            await accepting.lost.wait()
    return size, accepting


def test_whoever_takes_too_little_of_an_answer_does_not_keep_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question, "_RATE_MIN", 64 << 20)

    async def test() -> None:
        monkeypatch.setattr(question, "_STALL_S", 1.0)  # it takes something all the time
        async with asyncio.timeout(20):
            size, accepting = await taken(4096, 0.005)
        assert 0 < size < WHOLE
        assert accepting.link is not None
        assert not accepting.link.is_giving

    run(test())


def test_whoever_takes_nothing_does_not_keep_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question, "_STALL_S", 0.2)

    async def test() -> None:
        async with asyncio.timeout(20):
            size, _accepting = await taken(1, 2.0)
        assert size < len(PIECE)

    run(test())


def test_whoever_takes_it_as_it_comes_gets_everything() -> None:
    async def test() -> None:
        async with asyncio.timeout(30):
            size, accepting = await taken(1 << 20, 0)
        assert size == WHOLE
        link = accepting.link
        assert link is not None
        await eventually_async(lambda: not link.is_giving, text="it is not waited for any more")

    run(test())
