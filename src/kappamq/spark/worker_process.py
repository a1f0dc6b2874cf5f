"""The Python worker that Spark runs one task after the other in."""

from __future__ import annotations

import ctypes
import gc
import os
from typing import Final

FREEZES: Final = 2
"""The number of tasks of a process in which this is done: the first one loads a third of the modules after it has begun."""

_prepared = (0, 0)
"""This process, and the number of its tasks in which it was done."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 64 << 20


def begin_task() -> None:
    """Prepare this process for tasks. To be called when a task begins; outside of a task it does nothing.

    Spark calls `gc.collect()` after every task. With numpy, pyarrow and the other modules that takes about 30 ms of CPU, more
    than many tasks themselves. The objects that exist when the first tasks begin are modules, which stay: they are frozen."""
    global _prepared
    from pyspark import TaskContext

    process, begun = _prepared
    if process != os.getpid():
        begun = 0
    if begun == FREEZES or TaskContext.get() is None:
        return
    _prepared = (os.getpid(), begun + 1)
    if not begun:
        _keep_freed_memory()
    gc.collect()
    gc.freeze()


def _keep_freed_memory() -> bool:
    """Let the C library keep freed buffers of some megabytes for the next batch, instead of giving their pages back to the system
    each time: taking these again costs more than what is done with them. Only glibc can be told so; returns whether it was."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES // 2) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))
