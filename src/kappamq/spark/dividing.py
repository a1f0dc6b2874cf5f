"""Into how many tasks a read is divided.

Only the cores of the driver are known here: on a cluster, the option `minPartitions` says how many there are.
"""

from __future__ import annotations

import os


def task_count(total: int, *, least: int, most: int, at_least: int = 1) -> int:
    """Return how many equal tasks do `total` bytes, or messages: `most` of them at most in each, and at least `least` where that leaves
    a task for each core of this machine. `at_least`: no fewer tasks than this."""
    cores = os.cpu_count() or 1
    count = max(1, -(-total // most), min(cores, total // least))
    if count > cores:
        count = -(-count // cores) * cores  # none is idle while others read what is left over
    return max(count, at_least)
