"""The codec between JSON bodies and dataclasses; each body is declared once, in this package.

    class QueueData(Body):
        broker_name: str = ""                                # on the wire: brokerName
        permission: int = wire("perm", default=6)            # named only where RocketMQ's name differs from ours

Field types: str, int, float, bool, Enum (by name), Body, MessageQueue, Any, and list, set, dict and `| None` of these.
Decoding is as lenient as Java's: a missing or null value keeps its default, unknown ones are ignored, numbers may be
strings and enums ordinals. An invalid value raises ProtocolError, which names the field.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NoReturn,
    Self,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from kappamq.errors import ProtocolError
from kappamq.message import MessageQueue
from kappamq.protocol import fastjson
from kappamq.protocol.headers.header import camel_case
from kappamq.protocol.later import Later, later

if TYPE_CHECKING:
    from kappamq.protocol.frame import Frame

Writer = Callable[[Any], Any]
Reader = Callable[[Any, str], Any]


def wire(name: str, **options: Any) -> Any:
    """Declare a field whose name on the wire is `name`, with the options of `dataclasses.field`."""
    return field(metadata={"wire": name}, **options)


@dataclass_transform(field_specifiers=(field, wire))
class Body(metaclass=Later):
    """Base of all bodies; a subclass is a dataclass with `encode` and `decode`."""

    _codec: ClassVar[list[tuple[str, str, Writer, Reader]]] = []

    def __init_subclass__(cls) -> None:
        later(cls, _complete, "_codec")

    def encode(self, *, standard: bool = False) -> bytes:
        """Return the JSON text; see `fastjson.dumps` for `standard`."""
        return fastjson.dumps(self.to_json(), standard=standard)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, *, loose_bytes_max: int | None = None) -> Self:
        """Decode a JSON text; an empty one gives the defaults. Raises ProtocolError. See `fastjson.loads` for the limit."""
        return cls.from_json(fastjson.loads(data, loose_bytes_max=loose_bytes_max)) if len(data) else cls()

    @classmethod
    def of(cls, request: Frame) -> Self:
        """Return the body of a request: already decoded by the worker thread, or, if small, decoded now. Raises ProtocolError."""
        return request.parsed if type(request.parsed) is cls else cls.decode(request.body)

    def to_json(self) -> dict[str, Any]:
        return {name: write(getattr(self, own)) for own, name, write, _ in self._codec}

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """Decode a parsed JSON object; `where` is its path in the body, for error messages."""
        if not isinstance(value, dict):
            _refuse(value, where or cls.__name__, "an object")
        given = {
            own: read(value[name], f"{where or cls.__name__}.{name}")
            for own, name, _, read in cls._codec
            if value.get(name) is not None
        }
        return cls(**given)


def _complete(cls: type[Body]) -> None:
    dataclass(cls)
    hints = get_type_hints(cls)
    codec = []
    for item in fields(cls):  # type: ignore[arg-type]
        assert item.default is not MISSING or item.default_factory is not MISSING, f"{cls.__name__}.{item.name}"
        name = item.metadata.get("wire") or camel_case(item.name)
        codec.append((item.name, name, *_codec(hints[item.name])))
    cls._codec = codec


def _refuse(value: Any, where: str, expected: str) -> NoReturn:
    raise ProtocolError(f"{where} is {str(value)[:40]!r}: expected {expected}")


def _read_str(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return fastjson.dumps(value).decode()
    _refuse(value, where, "a text")


def _read_int(value: Any, where: str) -> int:
    if isinstance(value, str):
        digits = len(value) <= 20 and value.isascii() and value.removeprefix("-").isdigit()
        value = int(value) if digits else value
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        _refuse(value, where, "a 64-bit integer")
    return int(value)


def _read_float(value: Any, where: str) -> float:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    elif isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            pass
    _refuse(value, where, "a number")


def _read_bool(value: Any, where: str) -> bool:
    if isinstance(value, bool | int):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false", "1", "0"):
        return value.lower() in ("true", "1")
    _refuse(value, where, "true or false")


def _read_any(value: Any, where: str) -> Any:
    return value


def _read_queue(value: Any, where: str) -> MessageQueue:
    try:
        return fastjson.queue_of(value)
    except ProtocolError as error:
        raise ProtocolError(f"{where}: {error}") from None


def _same(value: Any) -> Any:
    return value


_SIMPLE: dict[Any, tuple[Writer, Reader]] = {
    str: (_same, _read_str),
    int: (_same, _read_int),
    float: (float, _read_float),  # a double is always written with a decimal point
    bool: (_same, _read_bool),
    Any: (_same, _read_any),
    MessageQueue: (_same, _read_queue),
}


def _codec(hint: Any) -> tuple[Writer, Reader]:
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (kind,) = (part for part in arguments if part is not type(None))
        write, read = _codec(kind)
        return lambda value: None if value is None else write(value), read
    if origin in (list, set):
        return _collection_codec(origin, *_codec(arguments[0]))
    if origin is dict:
        return _dict_codec(arguments[0], *_codec(arguments[1]))
    if issubclass(hint, Body):
        return lambda value: value.to_json(), hint.from_json
    assert issubclass(hint, Enum), f"no codec for {hint!r}"
    return lambda value: value.name, _enum_reader(hint)


def _collection_codec(kind: type[list[Any]] | type[set[Any]], write: Writer, read: Reader) -> tuple[Writer, Reader]:
    def read_all(value: Any, where: str) -> Any:
        if not isinstance(value, list):
            _refuse(value, where, "a list")
        return kind(read(item, f"{where}[{number}]") for number, item in enumerate(value) if item is not None)

    if kind is set:  # sorted, so that equal sets give equal bytes
        return lambda value: sorted(map(write, value)), read_all
    return lambda value: list(map(write, value)), read_all


def _dict_codec(key_kind: Any, write: Writer, read: Reader) -> tuple[Writer, Reader]:
    read_key: Reader = _SIMPLE[key_kind][1]
    if key_kind is MessageQueue:
        read_key = _read_queue_key

    def read_all(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            _refuse(value, where, "an object")
        return {
            read_key(key, f"a name in {where}"): read(item, f"{where}.{key[:60]}")
            for key, item in value.items()
            if item is not None
        }

    return lambda value: {key: write(item) for key, item in value.items()}, read_all


def _read_queue_key(value: Any, where: str) -> MessageQueue:
    return _read_queue(fastjson.loads(value), where)


def _enum_reader(kind: type[Enum]) -> Reader:
    members = list(kind)

    def read(value: Any, where: str) -> Enum:
        if isinstance(value, str) and value in kind.__members__:
            return kind[value]
        if isinstance(value, int) and 0 <= value < len(members):
            return members[value]
        _refuse(value, where, f"one of {', '.join(kind.__members__)}")

    return read
