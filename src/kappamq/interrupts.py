"""What Ctrl-C does while a program is still loading: it ends at once, without a stack trace.

An exception would not do. Modules that are being imported, callbacks and finalizers swallow it, and a server that should
have stopped would come up. As long as nothing is open there is nothing to put in order either.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130


def end_at_once() -> None:
    """From now on SIGINT ends the process."""
    signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """From now on SIGINT is a KeyboardInterrupt again, if `end_at_once` had changed that."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
