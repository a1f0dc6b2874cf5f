"""The Python worker that Spark runs one task after the other in."""

from __future__ import annotations

import ctypes
import gc
import os
from typing import Final

_prepared = 0
"""The process that is prepared for its tasks."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 64 << 20


def begin_task() -> None:
    """Prepare this process for tasks. To be called when a task begins; outside of a task it does nothing.

    Spark calls `gc.collect()` after every task. With numpy, pyarrow and what else is loaded that takes about 30 ms of CPU, more
    than many a task itself. What is there when the first task begins are modules, and they stay: they are not looked at again."""
    global _prepared
    from pyspark import TaskContext

    if _prepared == os.getpid() or TaskContext.get() is None:
        return
    _prepared = os.getpid()
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
