"""A request as its handler sees it: the decoded header, the body, the connection it came on, and how to answer it.

Handlers know no frames. `Bursts` decodes the header that the table (table.py) declares for a code, and answers what is wrong with it;
a handler is called with what could be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from kappamq.net.requests.reader import Answer
from kappamq.net.serving.connection import Connection
from kappamq.protocol.bodies.body import Body
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers.header import Header

H = TypeVar("H", bound=Header, covariant=True)
B = TypeVar("B", bound=Body)


class Request(Generic[H]):
    __slots__ = ("_frame", "connection", "header")

    def __init__(self, header: H, connection: Connection, frame: Frame) -> None:
        self.header = header
        self.connection = connection
        self._frame = frame

    # -- what came ---------------------------------------------------------------------------------------------------------

    @property
    def code(self) -> int:
        return self._frame.code

    @property
    def body(self) -> bytes:
        return self._frame.body

    @property
    def language(self) -> int:
        """What the sender is written in; see protocol.codes.Language."""
        return self._frame.language

    @property
    def version(self) -> int:
        """The version of the sender, as RocketMQ numbers its releases."""
        return self._frame.version

    @property
    def remark(self) -> str | None:
        return self._frame.remark

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer: one that is given all the same is dropped."""
        return self._frame.is_oneway

    @property
    def opaque(self) -> int:
        """The number by which the sender finds the answer; for answers that the kernel encodes."""
        return self._frame.opaque

    @property
    def is_binary(self) -> bool:
        """The form of its header, which is the form of the answer's; for answers that the kernel encodes."""
        return self._frame.binary

    @property
    def fields(self) -> Mapping[str, str]:
        """Every header field as it came, those included that are not declared: for requests that are passed on."""
        return self._frame.ext

    @property
    def was_read_beside(self) -> bool:
        """Whether the body is so large that it was parsed beside the loop: what it asks for is to be done in slices."""
        return self._frame.parsed is not None

    def parse(self, kind: type[B]) -> B:
        """The body, read as JSON of this kind. Raises ProtocolError."""
        return kind.of(self._frame)

    # -- what is answered --------------------------------------------------------------------------------------------------

    def reply(self, code: int = 0, remark: str | None = None, header: Header | None = None, body: bytes = b"") -> Frame:
        """An answer to this request, for the handler to return; it is not sent yet."""
        return reply(self._frame, code, remark, header, body)


Handler = Callable[[Request[Any]], Answer]
"""Carries a request out. It returns the answer, or an awaitable of it, or None if the answer is sent in another way."""


def merged(tables: Iterable[Mapping[int, Handler]]) -> dict[int, Handler]:
    """The handlers of several parts in one table. Raises RuntimeError if two of them serve one code."""
    found: dict[int, Handler] = {}
    for table in tables:
        for code, handler in table.items():
            if code in found:
                raise RuntimeError(f"request code {code} has two handlers: {found[code]} and {handler}")
            found[code] = handler
    return found
