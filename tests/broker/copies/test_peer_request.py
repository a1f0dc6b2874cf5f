"""One question on a connection of its own; with a secret, both sides prove that they know it (the answers: mending, seeding)."""

from __future__ import annotations

import asyncio
from zlib import crc32

import pytest

from kappamq.broker.copies.peer_request import PeerRequest
from kappamq.errors import ProtocolError
from kappamq.replication.frames import OPENING, VERSION, Kind, text_frame
from kappamq.replication.greeting import Refusal


async def answered(data: bytes, secret: str | None = None, *, of_group: bool = True) -> dict[str, object]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(data)
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        asked = await PeerRequest.begin(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", secret, crc32)
        try:
            return await asked._question(Kind.ASK, {}, ("one", "other"), of_group=of_group, seconds=5)
        finally:
            asked.end()


def test_the_first_words_of_the_answer_come_back() -> None:
    welcome = text_frame(Kind.WELCOME, {"a": 1}, crc32)
    assert asyncio.run(answered(welcome)) == {"a": 1}
    assert asyncio.run(answered(OPENING.pack(-VERSION) + welcome, of_group=False)) == {"a": 1}


def test_a_host_that_no_resolver_takes_is_one_of_our_errors() -> None:
    with pytest.raises(ProtocolError, match="is not an address"):
        asyncio.run(PeerRequest.begin("a" * 64 + ".x:1", None, crc32))


@pytest.mark.parametrize(
    ("kind", "values", "secret", "text"),
    [
        (Kind.REFUSED, {"why": "go away"}, None, "go away"),
        (Kind.CHALLENGE, {"nonce": "00"}, None, "it asks for the secret of the group"),
        (Kind.WELCOME, {}, "a long enough one", "it does not know the secret"),
        (Kind.WELCOME, {"proof": "00"}, "a long enough one", "it does not know the secret"),
    ],
)
def test_why_not(kind: Kind, values: dict[str, object], secret: str | None, text: str) -> None:
    with pytest.raises(Refusal, match=text):
        asyncio.run(answered(text_frame(kind, values, crc32), secret))
