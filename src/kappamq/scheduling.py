"""How the system divides a processor among the threads of a server."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from typing import Final

TURN_NS: Final = 100_000
"""The shortest turn that Linux gives."""
_SCHEDULER_CALLS: Final = {"x86_64": (314, 315), "aarch64": (274, 275), "riscv64": (274, 275)}
"""Numbers of sched_setattr and sched_getattr, which few C libraries offer."""
_RESET_ON_FORK: Final = 1
_SCHEDULING: Final = struct.Struct("=IIQiIQQQ")
"""size, policy, flags, nice, priority, then runtime (of usual threads: their turn), deadline, period."""


def run_before_own_workers() -> bool:
    """Have the system run the calling thread as soon as it has work, before other threads of this process that are computing.

    A thread with shorter turns is woken at once, since Linux 6.12; on a processor of its own the loop would else wait for a turn of
    a worker that reads from the disk, which is 3 ms. It gets no more time than others do. False if the system does not know it.
    Threads that are started later have usual turns."""
    numbers = _SCHEDULER_CALLS.get(platform.machine()) if sys.platform == "linux" else None
    if numbers is None:
        return False
    set_call, get_call = numbers
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    attributes = ctypes.create_string_buffer(_SCHEDULING.size)
    if call(get_call, 0, attributes, _SCHEDULING.size, 0):
        return False
    size, policy, flags, nice, priority, _turn_ns, *rest = _SCHEDULING.unpack(attributes.raw)
    if policy != os.SCHED_OTHER or nice < 0:
        return False  # whoever started us has put us first already, and that should hold for all threads
    chosen = (size, policy, flags | _RESET_ON_FORK, nice, priority, TURN_NS, *rest)
    return bool(call(set_call, 0, _SCHEDULING.pack(*chosen), 0) == 0)
