"""Between the store, which writes, and the followers that get what it wrote: both are given this, and none knows the other."""

from __future__ import annotations

from typing import Protocol


class Follower(Protocol):
    def written(self, start: int, data: bytes) -> None: ...


class Outlet:
    def __init__(self) -> None:
        self.followers: list[Follower] = []

    def written(self, start: int, data: bytes) -> None:
        """A turn has written this to the log. Called for each turn, so it must cost nothing while nobody follows."""
        for follower in self.followers:
            follower.written(start, data)
