"""How the log lines of servers look on standard error."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Final

FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_INDENT: Final = "    "
_Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class OneLine(logging.Formatter):
    """Each event is one line, whatever names and texts of strangers are in it; only a traceback follows in lines of its own.

    Those are indented: a line feed in an exception's text must not begin what looks like an event.
    """

    def __init__(self) -> None:
        super().__init__(FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escaped(super().formatMessage(record))

    def formatException(self, ei: _Raised) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def escaped(text: str) -> str:
    """Return `text` with everything that is no plain character spelled out: a line feed as \\n, an escape as \\x1b."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def _indented(text: str) -> str:
    return "\n".join(_INDENT + escaped(line) for line in text.split("\n"))
