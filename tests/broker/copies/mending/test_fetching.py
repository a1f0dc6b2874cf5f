"""What comes from the one who was asked is taken only if it is what comes next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from zlib import crc32

import pytest

from kappamq.broker.copies.mending.fetching import Fetching
from kappamq.replication.frames import Kind, frame, text_frame
from kappamq.replication.greeting import Refusal
from kappamq.replication.ranges import RangePiece, RangeQuestion

QUESTION = RangeQuestion(cluster="c", name="b", group="g", group_id="", who="1", segment_bytes=1000, start=100, end=120)
WELCOME = text_frame(Kind.WELCOME, {"proof": ""}, crc32)


def piece(offset: int, data: bytes) -> bytes:
    return frame(Kind.BYTES, RangePiece(offset, data).encode(), crc32)


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def fetched(answer: bytes) -> bytes:
    async with answering(answer) as place:
        fetching = await Fetching.begin(place, None, crc32)
        try:
            return b"".join([bytes(piece.data) async for piece in fetching.pieces(QUESTION)])
        finally:
            fetching.end()


def test_pieces_that_follow_each_other_are_the_stretch() -> None:
    assert asyncio.run(fetched(WELCOME + piece(100, b"x" * 15) + piece(115, b"y" * 5))) == b"x" * 15 + b"y" * 5


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda: text_frame(Kind.REFUSED, {"why": "not here"}, crc32), "not here"),
        (lambda: WELCOME + text_frame(Kind.REFUSED, {"why": "damaged here, too"}, crc32), "damaged here, too"),
        (lambda: WELCOME + piece(101, b"x"), "are not what comes at 100"),
        (lambda: WELCOME + piece(100, b"x" * 21), "are not what comes at 100 of a stretch to 120"),
        (lambda: WELCOME + piece(100, b""), "nothing is in it"),
        (lambda: WELCOME + text_frame(Kind.WELCOME, {}, crc32), "a frame WELCOME was not expected here"),
        (lambda: WELCOME + piece(100, b"x" * 10), "the connection was closed"),
        (lambda: piece(100, b"x"), "JSON"),
        (lambda: WELCOME + b"\xff" * 40, "a frame of 4294967295 bytes"),
        (lambda: b"", "the connection was closed"),
    ],
)
def test_anything_else_ends_it(answer: Callable[[], bytes], error: str) -> None:
    with pytest.raises((Refusal, Exception), match=error):
        asyncio.run(fetched(answer()))
