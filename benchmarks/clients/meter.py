"""CPU and wall time of a program that sends or receives, between the end of its warm-up and its last message."""

from __future__ import annotations

import resource
import statistics
import threading
import time


class Meter:
    """A tenth of the messages is the warm-up: connections, routes, code that is loaded when it is first used."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.skipped = count // 10
        self.seen = 0
        self.body_bytes = 0
        self.done = threading.Event()
        self._began = self._ended = (0.0, 0.0)
        self._from = 0
        self._took: list[float] = []

    def see(self, number: int, body_bytes: int = 0) -> bool:
        """Count messages. Returns whether all are there."""
        before = self.seen
        self.seen += number
        self.body_bytes += body_bytes
        if before < self.skipped <= self.seen:
            self._began, self._from = (time.process_time(), time.perf_counter()), self.seen
        if before < self.count <= self.seen:
            self._ended = time.process_time(), time.perf_counter()
            self.done.set()
        return self.seen >= self.count

    def took(self, seconds: float) -> None:
        """Note how long one message took."""
        if self.seen >= self.skipped:
            self._took.append(seconds)

    def result(self) -> dict[str, float]:
        measured = self.seen - self._from
        cpu, wall = self._ended[0] - self._began[0], self._ended[1] - self._began[1]
        found = {
            "messages": self.seen,
            "body_bytes": self.body_bytes,
            "cpu_us": cpu * 1e6 / measured,
            "per_second": measured / wall,
            "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        if self._took:
            cuts = statistics.quantiles(self._took, n=100)
            found |= {"p50_us": cuts[49] * 1e6, "p99_us": cuts[98] * 1e6}
        return found
