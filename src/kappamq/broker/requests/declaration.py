"""How a request is declared: its code, header, size, the rights it needs, and what it does. The declarations are in table.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kappamq.broker.requests.request import Request
from kappamq.errors import NotSupported
from kappamq.net.requests.sizes import RequestLimit
from kappamq.net.serving.connection import Connection
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.header import Header


class Resource(Enum):
    """What a right is about."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


class Action(Enum):
    """What a right allows to do with it. Each of the others includes READ."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    READ = "read"
    CHANGE = "change"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Right:
    """What the sender of a request must be allowed to do. Rights are declared only: this version of the broker enforces none."""

    resource: Resource
    action: Action
    field: str = ""
    """The header field that names the resource; empty for the cluster, and where something else names it."""
    named_by: str = ""
    """What names the resource if no header field does, in words."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """One request code that a broker serves or, with a `refusal`, refuses."""

    code: int
    header: type[Header] | None
    """As it is on the wire; None if the code is refused and nobody has declared its header."""
    does: str
    rights: tuple[Right, ...] = ()
    size: RequestLimit = field(default_factory=RequestLimit)
    normalise: Callable[[Any], Header] | None = None
    """Turns the header on the wire into the one that the handler sees, where several codes share a handler."""
    refusal: str = ""

    def request(self, connection: Connection, frame: Frame) -> Request[Any]:
        """What the handler is called with. Raises HeaderError, or NotSupported if the code is refused."""
        if self.header is None or self.refusal:
            raise NotSupported(f" request type {frame.code} not supported: {self.refusal}")
        header = self.header.decode(frame.ext)
        return Request(header if self.normalise is None else self.normalise(header), connection, frame)


class RequestTable(Mapping[int, Declaration]):
    """Declarations by their code, in the order in which they are given. Raises ValueError if one code is declared twice."""

    def __init__(self, declarations: Iterable[Declaration]) -> None:
        self._declarations: dict[int, Declaration] = {}
        for each in declarations:
            other = self._declarations.setdefault(each.code, each)
            if other is not each:
                raise ValueError(f"request code {each.code} is declared twice: {other.does!r} and {each.does!r}")

    def __getitem__(self, code: int) -> Declaration:
        return self._declarations[code]

    def __iter__(self) -> Iterator[int]:
        return iter(self._declarations)

    def __len__(self) -> int:
        return len(self._declarations)

    def check(self, handlers: Mapping[int, object]) -> None:
        """Raises RuntimeError unless exactly the codes that are declared as served have a handler."""
        served = {code for code, declared in self.items() if not declared.refusal}
        problems = [
            f"request code {code} has a handler but is not declared as served" for code in handlers.keys() - served
        ]
        problems += [
            f"request code {code} is declared as served but has no handler" for code in served - handlers.keys()
        ]
        if problems:
            raise RuntimeError("; ".join(sorted(problems)) + ": see broker/requests/table.py")
