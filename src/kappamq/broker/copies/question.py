"""A connection to the port for copies with one request and its answer: snapshots, or bytes of the log."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Final, Protocol, TypeVar, cast

from kappamq.errors import KappaError
from kappamq.replication.frames import BadStream, Checksum, Frames, Kind, frame, text_frame, values_of
from kappamq.replication.greeting import NONCE_BYTES, Refusal, is_proof, proof, whole

log = logging.getLogger(__name__)

_GREETING_S: Final = 10.0
_CLOSE_S: Final = 1.0
_STALL_S: Final = 60.0
"""How long a part of an answer may wait until the peer reads it."""
_RATE_MIN: Final = 64 << 10
"""Bytes a second: a peer that reads more slowly in the long run loses its place if others need it."""


class Taker(Protocol):
    def take(self, transport: asyncio.Transport, content: bytes) -> None:
        """Take a connection over, on which this question has come."""
        ...


class Questions:
    """The handlers of each kind of question."""

    def __init__(self, takers: Mapping[Kind, Taker]) -> None:
        self._takers = takers

    def knows(self, kind: Kind) -> bool:
        return kind in self._takers

    def take(self, kind: Kind, transport: asyncio.Transport, content: bytes) -> None:
        self._takers[kind].take(transport, content)


class QuestionLink(asyncio.Protocol):
    """Continues after the question, which is already read. With a secret, nothing is answered before the peer has proved that it knows
    it."""

    def __init__(
        self,
        transport: asyncio.Transport,
        sides: tuple[str, str],
        secret: str | None,
        checksum: Checksum,
        lost: Callable[[], object],
    ) -> None:
        """`sides`: the names of the asking and the answering side in their proofs."""
        self._transport = cast("asyncio.Transport | None", transport)
        self._sides = sides
        self._secret = secret
        self._checksum = checksum
        self._lost = lost
        self._frames = Frames(checksum)
        self._theirs = self._ours = ""  # their question, which has a nonce, and our nonce
        self.proof = ""
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._task: asyncio.Task[None] | None = None
        self._has_everything = False
        self._allowed_s = _STALL_S  # how long, in total, the answer may still wait for the peer
        self._deadline = asyncio.get_running_loop().call_later(_GREETING_S, self.abort)

    def _read(self, values: dict[str, Any]) -> None:
        """Store the question. Raises KappaError if it is invalid."""
        raise NotImplementedError

    def _answer(self) -> None:
        """Check that the peer may get an answer. Raises Refusal."""
        raise NotImplementedError

    # -- the connection ----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        try:
            for kind, content in self._frames.feed(data):
                self._proved(kind, content)
        except KappaError as error:
            self._refuse(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._deadline.cancel()
        self._transport = None
        self._may_write.set()
        if self._task is not None:
            self._task.cancel()
        self._lost()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_giving(self) -> bool:
        return self._task is not None

    @property
    def has_everything(self) -> bool:
        """The peer has read the whole answer."""
        return self._has_everything

    # -- the question ------------------------------------------------------------------------------------------------------

    def asked(self, content: bytes) -> None:
        try:
            self._read(values_of(content))
            self._theirs = whole(content)
            if self._secret is None:
                self._allow()
            else:
                self._ours = secrets.token_hex(NONCE_BYTES)
                self._say(Kind.CHALLENGE, {"nonce": self._ours})
        except KappaError as error:
            self._refuse(error)

    def _proved(self, kind: Kind, content: bytes) -> None:
        secret = self._secret
        if kind is not Kind.PROOF or not self._ours or secret is None or self.proof:
            raise BadStream(f"a frame {kind.name} was not expected here")
        asks, answers = self._sides
        if not is_proof(values_of(content).get("proof"), secret, asks, self._theirs, self._ours):
            raise Refusal(
                "it does not know the secret of this group: replicationSecret must be the same on all brokers"
            )
        self.proof = proof(secret, answers, self._theirs, self._ours)
        self._allow()

    def _allow(self) -> None:
        self._deadline.cancel()
        self._answer()

    # -- the answer --------------------------------------------------------------------------------------------------------

    def _say(self, kind: Kind, values: dict[str, object]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(text_frame(kind, values, self._checksum))

    def _refuse(self, error: Exception) -> None:
        log.info("copies: refused a request for data: %.1000s", error)  # the other side logs it for its operator
        self._say(Kind.REFUSED, {"why": str(error)[:1000]})
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(_CLOSE_S, self.abort)

    def _end_in_a_while(self) -> None:
        """The answer is complete; the other side closes, or we do."""
        self._deadline = asyncio.get_running_loop().call_later(_GREETING_S, self.abort)

    def _give(self, giving: Coroutine[Any, Any, None]) -> None:
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=0)  # we may write again when everything was read
        self._task = asyncio.create_task(self._until_given(giving))

    async def _until_given(self, giving: Coroutine[Any, Any, None]) -> None:
        try:
            await giving
            await self._all_taken()
            self._has_everything = True
            self._end_in_a_while()
        except (KappaError, OSError) as error:
            self._refuse(error)
        except Exception:
            log.exception("copies: could not serve a request for data")
            self.abort()
        finally:
            self._task = None  # a peer that has got everything makes room for others

    async def _send(self, kind: Kind, content: bytes) -> None:
        transport = await self._all_taken()
        self._allowed_s += len(content) / _RATE_MIN
        transport.write(frame(kind, content, self._checksum))

    async def _all_taken(self) -> asyncio.Transport:
        """Count only the time that the other side needs: our own reading may take long."""
        if not self._may_write.is_set():
            loop = asyncio.get_running_loop()
            begin = loop.time()
            try:
                async with asyncio.timeout(min(_STALL_S, self._allowed_s)):
                    await self._may_write.wait()
            except TimeoutError:
                raise Refusal(
                    f"the peer reads too slowly: it must take a part within {_STALL_S:g} s, and {_RATE_MIN >> 10} KiB a second in all"
                ) from None
            self._allowed_s -= loop.time() - begin
        if self._transport is None:
            raise ConnectionResetError("the connection was closed")
        return self._transport


Link = TypeVar("Link", bound=QuestionLink)


def dispensable(links: Collection[Link]) -> Link | None:
    """Return the connection to close for a new one: strangers before those that have their answer, never one that is being served."""
    idle = [link for link in links if not link.is_giving]
    return min(idle, key=lambda link: link.has_everything, default=None)
