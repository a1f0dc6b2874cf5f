"""A request to another broker, on a separate connection to its port for copies. `question` is the other end."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any, Final, Self

from kappamq.protocol import address
from kappamq.replication.frames import (
    OPENING,
    VERSION,
    BadStream,
    Checksum,
    Frames,
    Kind,
    content_of,
    frame,
    text_frame,
    values_of,
)
from kappamq.replication.greeting import NONCE_BYTES, Refusal, is_proof, proof, whole

CONNECT_S: Final = 2.0
ANSWER_S: Final = 3.0
_READ_BYTES: Final = 1 << 20


class PeerRequest:
    def __init__(
        self, reader: asyncio.StreamReader, out: asyncio.StreamWriter, secret: str | None, checksum: Checksum
    ) -> None:
        self._reader, self._out, self._secret = reader, out, secret
        self._checksum = checksum
        self._frames = Frames(checksum)
        self._came: Iterator[tuple[Kind, bytes]] = iter(())

    @classmethod
    async def begin(cls, place: str, secret: str | None, checksum: Checksum) -> Self:
        host, port = address.split(place)
        async with asyncio.timeout(CONNECT_S):
            reader, out = await asyncio.open_connection(host, port, limit=_READ_BYTES)
        return cls(reader, out, secret, checksum)

    def end(self) -> None:
        self._out.transport.abort()

    async def _next(self, seconds: float) -> tuple[Kind, bytes]:
        while True:
            for came in self._came:
                return came
            async with asyncio.timeout(seconds):
                data = await self._reader.read(_READ_BYTES)
            if not data:
                raise EOFError("the connection was closed")
            self._came = self._frames.feed(data)

    def _say(self, kind: Kind, values: dict[str, object]) -> None:
        self._out.write(text_frame(kind, values, self._checksum))

    async def _question(
        self, kind: Kind, question: dict[str, Any], sides: tuple[str, str], *, of_group: bool, seconds: float
    ) -> dict[str, Any]:
        """Return the beginning of the answer, from a peer that knows the secret if there is one. `sides`: as in `QuestionLink`. `of_group`:
        the peer is a member of a Raft group. Raises Refusal with the peer's reason."""
        nonce, secret = secrets.token_hex(NONCE_BYTES), self._secret
        self._out.write(OPENING.pack(-VERSION))
        if not of_group:  # a master says first which protocol it speaks
            async with asyncio.timeout(ANSWER_S):
                await self._reader.readexactly(OPENING.size)
        asked = content_of({**question, "nonce": nonce})
        self._out.write(frame(kind, asked, self._checksum))
        ours = whole(asked)
        theirs = ""
        while True:
            said, content = await self._next(seconds)
            values = values_of(content)
            if said is Kind.REFUSED:
                raise Refusal(str(values.get("why"))[:2000])
            if said is Kind.CHALLENGE and not theirs:
                theirs = str(values.get("nonce"))
                if secret is None:
                    raise Refusal("it asks for the secret of the group: set replicationSecret here, too")
                self._say(Kind.PROOF, {"proof": proof(secret, sides[0], ours, theirs)})
            elif said is Kind.WELCOME:
                if secret is not None and not is_proof(values.get("proof"), secret, sides[1], ours, theirs):
                    raise Refusal("it does not know the secret of this group (replicationSecret)")
                self._frames.trust()
                return values
            else:
                raise BadStream(f"a frame {said.name} was not expected here")
