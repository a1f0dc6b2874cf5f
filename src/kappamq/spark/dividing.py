"""How many tasks a read is divided into.

Only the cores of the driver are known here: on a cluster, set the option `minPartitions` to the number of its cores.
"""

from __future__ import annotations

import os


def task_count(total: int, *, least: int, most: int, at_least: int = 1) -> int:
    """Return how many equal tasks to use for `total` bytes, or messages: each has at most `most` of them, and at least `least` if that
    leaves a task for each core of this machine. `at_least`: no fewer tasks than this."""
    cores = os.cpu_count() or 1
    count = max(1, -(-total // most), min(cores, total // least))
    if count > cores:
        count = -(-count // cores) * cores  # none is idle while others read the rest
    return max(count, at_least)
