"""Asking another copy for bytes of the log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from kappamq.broker.copies.mending.giving import SIDES
from kappamq.broker.copies.peer_request import ANSWER_S, PeerRequest
from kappamq.replication.frames import BadStream, Kind, values_of
from kappamq.replication.greeting import Refusal
from kappamq.replication.ranges import RangePiece, RangeQuestion

_PIECE_S: Final = 10.0  # its disk may be slow


class Fetching(PeerRequest):
    async def pieces(self, question: RangeQuestion) -> AsyncIterator[RangePiece]:
        """Yield the stretch, piece by piece; each piece must still be checked. Raises Refusal, BadStream, OSError, EOFError."""
        await self._question(
            Kind.FETCH, question.values(), SIDES, of_group=bool(question.group), seconds=ANSWER_S + _PIECE_S
        )
        at = question.start
        while at < question.end:
            kind, content = await self._next(_PIECE_S)
            if kind is Kind.REFUSED:
                raise Refusal(str(values_of(content).get("why"))[:2000])
            if kind is not Kind.BYTES:
                raise BadStream(f"a frame {kind.name} was not expected here")
            piece = RangePiece.decode(content)
            if piece.offset != at or at + len(piece.data) > question.end:
                raise BadStream(
                    f"bytes {piece.offset} to {piece.offset + len(piece.data)} are not what comes at {at} of a stretch to {question.end}"
                )
            yield piece
            at += len(piece.data)
