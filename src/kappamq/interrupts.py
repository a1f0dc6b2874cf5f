"""Ctrl-C while a program is still loading ends it at once, without a stack trace.

A KeyboardInterrupt would not do: module imports, callbacks and finalizers may swallow it, and a server that should have
stopped would start. As long as nothing is open there is nothing to clean up either.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130
SAME_SIGNAL_S = 1.0
"""A second signal within this time is the first one again: `timeout` sends one to the process and one to its group."""


def end_at_once() -> None:
    """Make SIGINT end the process."""
    signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """Make SIGINT raise KeyboardInterrupt again, if `end_at_once` had changed that."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
