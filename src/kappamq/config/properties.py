"""The text format of `java.util.Properties`, used by broker.conf and the bodies of configuration requests.

Parsing follows Java's rules: `#` and `!` start comments, a trailing backslash continues the line, the name ends at the
first unescaped `=`, `:` or blank, and `\\uXXXX` is a character escape. Unlike Java we read UTF-8, not Latin-1, and a name
given twice is an error instead of silently overriding the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kappamq.config.problems import Written
from kappamq.errors import ConfigError

TEXT_BYTES_MAX = 1 << 20  # far more than any real file; also limits request bodies

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse(text: str, *, where: str = "properties", located: bool = False) -> dict[str, str]:
    """Return the properties in the order of the text. Raises ConfigError naming `where` and the line.

    `located`: the values carry their lines (`config.problems.Written`).
    """
    if len(text) > TEXT_BYTES_MAX:
        raise ConfigError(
            f"{where}: {len(text)} characters are too many for a property file (at most {TEXT_BYTES_MAX})"
        )
    result: dict[str, str] = {}
    first_line: dict[str, int] = {}
    for number, line in _logical_lines(text):
        name, value = _split(line, where, number)
        if not name:
            raise ConfigError(f"{where}, line {number}: no name before the separator in {line!r}")
        if name in result and result[name] != value:
            raise ConfigError(
                f"{where}, line {number}: {name} was already given in line {first_line[name]} with another value; "
                "keep one of them"
            )
        first_line.setdefault(name, number)
        result[name] = Written(value, where, number) if located else value
    return result


def parse_bytes(data: bytes, *, where: str = "properties", located: bool = False) -> dict[str, str]:
    if len(data) > TEXT_BYTES_MAX:
        raise ConfigError(f"{where}: {len(data)} bytes are too many for a property file (at most {TEXT_BYTES_MAX})")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not UTF-8 text at byte {error.start}; save the file as UTF-8") from None
    if "\0" in text:
        raise ConfigError(f"{where}: contains zero bytes; this is not a property file")
    return parse(text, where=where, located=located)


def render(properties: Mapping[str, str]) -> str:
    """Return the text that `parse` reads back to the same properties, one per line."""
    return "".join(f"{_escape(name, name=True)}={_escape(value)}\n" for name, value in properties.items())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments and with continuations joined, each with the number of its first physical line."""
    pending: list[str] = []
    start = 0
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, raw in enumerate(lines, 1):
        line = raw.lstrip(_BLANK)
        if not pending:
            if not line or line[0] in "#!":
                continue
            start = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending.append(line[:-1])
            continue
        yield start, "".join([*pending, line])
        pending = []
    if "".join(pending):
        yield start, "".join(pending)


def _split(line: str, where: str, number: int) -> tuple[str, str]:
    position = 0
    while position < len(line):
        char = line[position]
        if char == "\\":
            position += 2
            continue
        if char in "=:" or char in _BLANK:
            break
        position += 1
    name, rest = line[:position], line[position:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    # Java keeps trailing blanks of a value; in a configuration file they are always an accident.
    return _unescape(name, where, number), _unescape(rest, where, number).rstrip(_BLANK)


def _unescape(text: str, where: str, number: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\" or position == len(text):
            out.append(char)
            continue
        char = text[position]
        position += 1
        if char == "u":
            digits = text[position : position + 4]
            if len(digits) != 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                raise ConfigError(f"{where}, line {number}: \\u needs four hexadecimal digits, not {digits!r}")
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(char, char))
    try:
        return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16")  # joins surrogate pairs
    except UnicodeDecodeError:
        raise ConfigError(f"{where}, line {number}: half a surrogate pair among the \\u escapes") from None


def _escape(text: str, *, name: bool = False) -> str:
    text = (
        text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t").replace("\f", "\\f")
    )
    if name:
        text = text.replace(" ", "\\ ").replace("=", "\\=").replace(":", "\\:")
    if text[:1] in ("#", "!", " ", "=", ":"):
        text = "\\" + text
    return text
