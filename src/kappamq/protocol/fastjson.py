r"""JSON as Java's fastjson writes and reads it.

Its writer sorts keys, omits nulls and writes map keys that are not strings unquoted, even objects:
`{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5},"ids":{0:"a"}}`. Its reader accepts unquoted and
single-quoted names, extra commas and such keys. `loads` returns every key as a string, an object key as the text of that
object, which is also the other form in which Java accepts such a key; `queue_key` turns it back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import msgspec

from kappamq.errors import ProtocolError
from kappamq.message import MessageQueue

DEPTH_MAX: Final = 64
"""Deeper nesting is refused: no body of the protocol needs ten levels, and each uses stack."""

_strict = msgspec.json.Decoder(Any).decode
_strict_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_strict_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_PIECE_BYTES: Final = 128 << 10
"""How much is decoded while holding the GIL: it takes about a millisecond, or a few."""
_encode = msgspec.json.Encoder().encode

_BLANK = re.compile(r"[\s\ufeff]*")
_SPARE = re.compile(r"[\s\ufeff,]*")
_WORD = re.compile(r"[^\s\"',:{}\[\]]+")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[LSBFD]?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_HEX = {"u": re.compile(r"[0-9a-fA-F]{4}"), "x": re.compile(r"[0-9a-fA-F]{2}")}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "F": "\f", "v": "\v", "0": "\0"}
_WORDS = {"true": True, "false": False, "null": None, "undefined": None, "NaN": None}
_NUMBER_DIGITS_MAX = 400  # longer numbers have no use here and take Python quadratic time
_ESCAPED_IN_STANDARD = re.compile("[/\x7f-\U0010ffff]")


class LooseJsonTooLong(ProtocolError):
    """A text that is not standard JSON exceeds the limit for the slow decoder."""


def loads(data: bytes | bytearray | memoryview | str, *, loose_bytes_max: int | None = None) -> Any:
    """Decode a JSON text, strictly if it is standard JSON and leniently if not. Raises ProtocolError.

    Lenient decoding takes about a microsecond per byte: `loose_bytes_max` limits it on the event loop."""
    try:
        return _strict_in_pieces(data) if len(data) > _PIECE_BYTES else _strict(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        if loose_bytes_max is not None and len(data) > loose_bytes_max:
            raise LooseJsonTooLong(
                f"this is not standard JSON ({error}), and with {len(data)} bytes it is too long for the lenient decoder "
                f"(the limit is {loose_bytes_max})"
            ) from None
    try:
        text = data if isinstance(data, str) else str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"this is not JSON: it is not UTF-8 text ({error.reason} at byte {error.start})") from None
    return _Reader(text).document()


def _strict_in_pieces(data: bytes | bytearray | memoryview | str) -> Any:
    """Decode a long text in pieces, so that other threads can run in between."""
    first = (data[:1] if isinstance(data, str) else bytes(data[:1]).decode("latin-1")).strip()
    if first == "{":
        return {name: _piece(raw) for name, raw in _strict_object(data).items()}
    if first == "[":
        return [_piece(raw) for raw in _strict_list(data)]
    return _strict(data)


def _piece(raw: msgspec.Raw) -> Any:
    return _strict_in_pieces(memoryview(raw)) if len(memoryview(raw)) > _PIECE_BYTES else _strict(raw)


def dumps(value: Any, *, standard: bool = False) -> bytes:
    """Encode a value as fastjson does; `standard` quotes all keys and escapes non-ASCII and `/`, as for route answers.

    Accepts dict (keys str, int, MessageQueue), list, tuple, str, int, float, bool, None, Enum (by name), MessageQueue.
    """
    out: list[str] = []
    _Writer(out.append, standard).write(value)
    return "".join(out).encode()


def pretty(value: Any) -> bytes:
    """Encode a value for a configuration file: standard JSON, sorted keys, a tab per level; Java reads it too."""
    out: list[str] = []
    _Writer(out.append, standard=False, quote_keys=True, indent="\t").write(value)
    return "".join(out).encode()


def queue_of(value: Any) -> MessageQueue:
    """Decode a queue from its parsed JSON object. Raises ProtocolError."""
    if not isinstance(value, dict):
        raise ProtocolError(f"expected an object with topic, brokerName and queueId, got {str(value)[:60]!r}")
    topic, broker, queue_id = value.get("topic"), value.get("brokerName"), value.get("queueId", 0)
    if not isinstance(topic, str) or not isinstance(broker, str | None):
        raise ProtocolError(f"topic and brokerName of a queue are not strings: {str(value)[:80]!r}")
    if isinstance(queue_id, str) and _INTEGER.fullmatch(queue_id[:12]):
        queue_id = int(queue_id[:12])
    if not isinstance(queue_id, int):
        raise ProtocolError(f"queueId is not an integer: {str(queue_id)[:40]!r}")
    return MessageQueue(topic, broker or "", queue_id)


def queue_key(text: str) -> MessageQueue:
    """Decode a queue used as a map key, as `loads` returned it."""
    return queue_of(loads(text))


class _Writer:
    def __init__(
        self, put: Callable[[str], None], standard: bool, quote_keys: bool = False, indent: str | None = None
    ) -> None:
        self._put = put
        self._standard = standard
        self._quote_keys = standard or quote_keys
        self._indent = indent
        self._line = "\n"

    def write(self, value: Any) -> None:
        put = self._put
        if isinstance(value, str):
            put(self._quoted(value))
        elif value is None:
            put("null")
        elif isinstance(value, bool):
            put("true" if value else "false")
        elif isinstance(value, Enum):
            put(self._quoted(value.name))
        elif isinstance(value, int):
            put(str(value))
        elif isinstance(value, float):
            put(_java_double(value))
        elif isinstance(value, dict):
            pairs = [(key, item) for key, item in value.items() if item is not None]
            pairs.sort(key=lambda pair: (isinstance(pair[0], str), isinstance(pair[0], MessageQueue), pair[0]))
            self._nest("{", "}", pairs, self._write_pair)
        elif isinstance(value, list | tuple | set | frozenset):
            self._nest("[", "]", value, self.write)
        elif isinstance(value, MessageQueue):
            put(self._queue(value))
        else:
            raise TypeError(f"fastjson cannot write {type(value).__name__}")

    def _nest(self, opening: str, closing: str, items: Any, write: Callable[[Any], None]) -> None:
        put, outer = self._put, self._line
        put(opening)
        if self._indent is not None:
            self._line = outer + self._indent
        first = True
        for item in items:
            if not first:
                put(",")
            if self._indent is not None:
                put(self._line)
            write(item)
            first = False
        self._line = outer
        if self._indent is not None and not first:
            put(outer)
        put(closing)

    def _write_pair(self, pair: tuple[Any, Any]) -> None:
        key, item = pair
        if isinstance(key, str):
            text = self._quoted(key)
        elif isinstance(key, int):
            text = f'"{int(key)}"' if self._quote_keys else str(int(key))
        elif isinstance(key, MessageQueue):
            text = self._queue(key)
            text = self._quoted(text) if self._quote_keys else text
        else:
            raise TypeError(f"fastjson cannot write {type(key).__name__} as a key")
        self._put(text + ":")
        self.write(item)

    def _queue(self, queue: MessageQueue) -> str:
        broker, topic = self._quoted(queue.broker), self._quoted(queue.topic)
        return f'{{"brokerName":{broker},"queueId":{queue.queue_id},"topic":{topic}}}'

    def _quoted(self, text: str) -> str:
        quoted = _encode(text).decode()
        return _ESCAPED_IN_STANDARD.sub(_escape, quoted) if self._standard else quoted


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    if char == "/":
        return "\\/"
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04X}" for at in range(0, len(units), 2))


def _java_double(value: float) -> str:
    """Format a number nearly as Java's Double.toString does: always a decimal point, exponents as `1.0E10`."""
    if not math.isfinite(value):
        return "null"
    text = repr(value)
    if "e" not in text:
        return text
    mantissa, exponent = text.split("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"


class _Reader:
    """Recursive descent parser; every method leaves `at` after what it has parsed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._in_key = False

    def document(self) -> Any:
        self._skip(_BLANK)
        value = self._value()
        self._skip(_BLANK)
        if self._at != len(self._text):
            raise self._error("unexpected text after the value")
        return value

    def _error(self, what: str) -> ProtocolError:
        near = self._text[self._at : self._at + 20]
        return ProtocolError(f"this is not JSON: {what}, at character {self._at}, near {near!r}")

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        assert match is not None  # these patterns also match the empty string
        self._at = match.end()

    def _value(self) -> Any:
        char = self._text[self._at : self._at + 1]
        if char == "{":
            return self._nested(self._object)
        if char == "[":
            return self._nested(self._array)
        if char in ('"', "'") and char:
            return self._string(char)
        return self._word()

    def _nested(self, read: Callable[[], Any]) -> Any:
        if self._depth >= DEPTH_MAX:
            raise self._error(f"it is nested deeper than {DEPTH_MAX} levels")
        self._depth += 1
        self._at += 1
        value = read()
        self._at += 1
        self._depth -= 1
        return value

    def _object(self) -> dict[str, Any]:
        result: dict[str, Any] = {}
        self._skip(_SPARE)
        while not self._text.startswith("}", self._at):
            key = self._key()
            self._skip(_BLANK)
            if not self._text.startswith(":", self._at):
                raise self._error("a colon is missing after a name")
            self._at += 1
            self._skip(_BLANK)
            result[key] = self._value()
            self._next_item("}")
        return result

    def _array(self) -> list[Any]:
        result: list[Any] = []
        self._skip(_SPARE)
        while not self._text.startswith("]", self._at):
            result.append(self._value())
            self._next_item("]")
        return result

    def _next_item(self, closing: str) -> None:
        self._skip(_BLANK)
        if not self._text.startswith((",", closing), self._at):
            raise self._error(f"',' or '{closing}' is missing")
        self._skip(_SPARE)

    def _key(self) -> str:
        char = self._text[self._at : self._at + 1]
        if char == "{":
            return self._object_key()
        if char in ('"', "'") and char:
            return self._string(char)
        match = _WORD.match(self._text, self._at)
        if match is None:
            raise self._error("a name is missing")
        self._at = match.end()
        return match.group()

    def _object_key(self) -> str:
        # Its text would be escaped again at each level: 64 levels, in 300 bytes, would give more text than fits into memory.
        if self._in_key:
            raise self._error("an object is a key within a key")
        self._in_key = True
        key = dumps(self._nested(self._object)).decode()
        self._in_key = False
        return key

    def _word(self) -> Any:
        match = _WORD.match(self._text, self._at)
        word = match.group() if match else ""
        value: Any
        if word in _WORDS:
            value = _WORDS[word]
        elif len(word) <= _NUMBER_DIGITS_MAX and _NUMBER.fullmatch(word):
            digits = word.rstrip("LSBFD")
            value = int(digits) if _INTEGER.fullmatch(digits) else float(digits)
        else:
            raise self._error("a value is missing")
        self._at += len(word)
        return value

    def _string(self, quote: str) -> str:
        parts: list[str] = []
        plain = _PLAIN[quote]
        self._at += 1
        escaped_unit = False
        while True:
            match = plain.match(self._text, self._at)
            assert match is not None
            parts.append(match.group())
            self._at = match.end()
            char = self._text[self._at : self._at + 1]
            if char == quote:
                self._at += 1
                break
            if not char:
                raise self._error("a string does not end")
            escape = self._text[self._at + 1 : self._at + 2]
            self._at += 2
            if escape in _HEX and escape:
                digits = _HEX[escape].match(self._text, self._at)
                if digits is None:
                    raise self._error(f"hexadecimal digits are missing after \\{escape}")
                self._at = digits.end()
                parts.append(chr(int(digits.group(), 16)))
                escaped_unit = True
            elif escape:
                parts.append(_ESCAPES.get(escape, escape))
        text = "".join(parts)
        # Escapes are UTF-16 units: join pairs, and replace lone surrogates, since they cannot be encoded again.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if escaped_unit else text
