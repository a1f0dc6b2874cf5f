"""The codec between headers and the string map of a frame; each header is declared once.

    class PullMessage(Header, code=RequestCode.PULL_MESSAGE):
        consumer_group: str                       # on the wire: consumerGroup, required
        count_max: Int32 = wire("maxMsgNums")     # named only where RocketMQ's name differs from ours
        subscription: str | None = None           # optional: not written when None

Field types: `str`, `int` (64 bit), `Int32`, `bool`, an `Enum` (by name), each also `| None`. Arguments are keyword-only.
`encode` and `decode` are compiled for each class on first use: no reflection per message, and a program does not wait at
start for the hundred headers it never needs (see later.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from typing import Annotated, Any, ClassVar, Self, dataclass_transform, get_args, get_origin, get_type_hints

from kappamq.errors import HeaderError
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.later import Later, complete, later

Int32 = Annotated[int, 32]
"""An integer that has 32 bits in Java; a plain `int` field has 64."""

_SHORT_DIGITS = 10  # numbers with fewer fit into 32 bits
_DIGITS_MAX = 20  # a sign and the 19 digits of 2**63


def wire(name: str, **options: Any) -> Any:
    """Declare a field whose name on the wire is `name`; `default=` makes it optional."""
    return field(metadata={"wire": name}, **options)


def camel_case(name: str) -> str:
    """Return the wire name of a field: `consumer_group` -> `consumerGroup`."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field, wire))
class Header(metaclass=Later):
    """Base of all headers; a subclass is a frozen dataclass with `encode` and `decode`."""

    code: ClassVar[RequestCode | None] = None
    """The request code, or None for a response header."""
    wire_names: ClassVar[Mapping[str, str]] = {}
    """Field name -> name on the wire, in order of declaration."""
    requests: ClassVar[dict[RequestCode, type[Header]]] = {}
    """Every request header by its code."""

    def __init_subclass__(cls, code: RequestCode | None = None) -> None:
        cls.code = code
        if code is not None:
            other = Header.requests.setdefault(code, cls)
            assert other is cls, f"{cls.__name__} and {other.__name__} both claim {code!r}"
        later(cls, _complete, "wire_names")
        # Set on each class, so that it does not inherit the functions compiled for its base.
        cls.encode, cls.decode = _first_encode, classmethod(_first_decode)  # type: ignore[assignment, method-assign]

    def encode(self) -> dict[str, str]:
        """Return the fields that are not None as strings, by their names on the wire."""
        return {}

    @classmethod
    def decode(cls, ext: Mapping[str, str]) -> Self:
        """Decode the fields from a frame's map, ignoring others.

        Raises HeaderError, which names the field, if one is missing or has the wrong type.
        """
        raise NotImplementedError

    @classmethod
    def like(cls, other: Header) -> Self:
        """Return a header with the values of another one that has the same fields: a tenth of what the constructor takes."""
        assert len(cls.wire_names) == len(other.wire_names), f"{cls.__name__} has other fields than {other}"
        same = object.__new__(cls)
        same.__dict__.update(other.__dict__)
        return same


def integer(text: str, owner: str, name: str, bits: int) -> int:
    """Parse as strictly as Java does: an optional sign and digits, within `bits`."""
    if len(text) < _SHORT_DIGITS and text.isascii() and text.isdigit():
        return int(text)  # nearly all numbers are short
    # int() alone would also accept blanks, underscores and any length.
    if len(text) <= _DIGITS_MAX and text.isascii() and text.lstrip("+-").isdigit():
        try:
            value = int(text)
        except ValueError:
            pass  # more than one sign
        else:
            limit = 1 << (bits - 1)
            if -limit <= value < limit:
                return value
    raise HeaderError(f"field '{name}' of {owner} is {text[:40]!r}: expected a {bits}-bit integer")


def _missing(owner: str, name: str) -> HeaderError:
    return HeaderError(f"field '{name}' of {owner} is missing")


def _member(kind: type[Enum], text: str) -> Enum:
    # Java ignores the case and uses the first member for unknown names.
    return kind.__members__.get(text.upper()) or next(iter(kind))


def _complete(cls: type[Header]) -> None:
    dataclass(frozen=True, kw_only=True)(cls)
    names = [item.metadata.get("wire") or camel_case(item.name) for item in fields(cls)]  # type: ignore[arg-type]
    assert len(set(names)) == len(names), f"{cls.__name__} has two fields with one name on the wire: {names}"
    cls.wire_names = {item.name: name for item, name in zip(fields(cls), names, strict=True)}  # type: ignore[arg-type]


def _compile(cls: type[Header]) -> None:
    complete(cls)
    hints = get_type_hints(cls, include_extras=True)
    owner = cls.__name__
    space: dict[str, Any] = {"integer": integer, "missing": _missing, "member": _member, "owner": owner}
    written = ["def encode(self):", " ext = {}"]
    read = ["def decode(cls, ext):", " self = object.__new__(cls)", " values = self.__dict__", " get = ext.get"]
    for item in fields(cls):  # type: ignore[arg-type]
        own, name = item.name, cls.wire_names[item.name]
        hint, optional = _plain(hints[own])
        to_text, from_text = _codec(hint, name, own, space)
        indent = ""
        if optional:
            written += [f" value = self.{own}", " if value is not None:"]
            indent = " "
        else:
            written += [f" value = self.{own}"]
        written += [f"{indent} ext[{name!r}] = {to_text}"]
        # An empty text for a number is a zero-length value of the binary form, which means absent.
        absent = "text is None" if hint is str else "not text"
        read += [f" text = get({name!r})", f" if {absent}:"]
        if item.default is MISSING:
            read += [f"  raise missing(owner, {name!r})"]
        else:
            space[f"default_{own}"] = item.default
            read += [f"  values[{own!r}] = default_{own}"]
        read += [" else:", f"  values[{own!r}] = {from_text}"]
    exec("\n".join([*written, " return ext", *read, " return self"]), space)  # noqa: S102 - our own text, no input in it
    encode: Callable[[Any], dict[str, str]] = space["encode"]
    encode.__qualname__, encode.__module__ = f"{owner}.encode", cls.__module__
    encode.__doc__, space["decode"].__doc__ = Header.encode.__doc__, Header.decode.__doc__
    cls.encode = encode  # type: ignore[assignment, method-assign]
    cls.decode = classmethod(space["decode"])  # type: ignore[assignment, method-assign]


def _first_encode(self: Header) -> dict[str, str]:
    _compile(type(self))
    return self.encode()


def _first_decode(cls: type[Header], ext: Mapping[str, str]) -> Header:
    _compile(cls)
    return cls.decode(ext)


def _plain(hint: Any) -> tuple[Any, bool]:
    """Split `X | None` into X and True."""
    if get_origin(hint) is Annotated or isinstance(hint, type):
        return hint, False
    (kind,) = (part for part in get_args(hint) if part is not type(None))
    return kind, True


def _codec(hint: Any, name: str, own: str, space: dict[str, Any]) -> tuple[str, str]:
    """Return two expressions: from `value` to its text, and from `text` to its value."""
    if hint is str:
        return "value", "text"
    if hint is bool:
        return "'true' if value else 'false'", "text.lower() in ('true', '1')"  # C++ clients write 1
    if hint is int or hint == Int32:
        return "str(value)", f"integer(text, owner, {name!r}, {64 if hint is int else 32})"
    assert issubclass(hint, Enum), f"{own}: no codec for {hint!r}"
    space[f"kind_{own}"] = hint
    return "value.name", f"member(kind_{own}, text)"


class RpcHeader(Header):
    """Fields that 5.x clients may add to any request; a single broker can ignore all of them."""

    namespace: str | None = wire("ns", default=None)
    namespaced: bool | None = wire("nsd", default=None)
    logical_broker: str | None = wire("bname", default=None)
    one_way: bool | None = wire("oway", default=None)


class TopicHeader(RpcHeader):
    """Fields that 5.x clients may add to a request about a topic."""

    logical: bool | None = wire("lo", default=None)
