"""Connects the store, which writes, with the followers that get the bytes: both are given this, and neither knows the other."""

from __future__ import annotations

from typing import Protocol


class Follower(Protocol):
    def written(self, start: int, data: bytes) -> None: ...


class Group(Protocol):
    def flushed(self, offset: int) -> None: ...


class Outlet:
    def __init__(self) -> None:
        self.followers: list[Follower] = []
        self.groups: list[Group] = []  # none, or the Raft group that this broker belongs to

    def written(self, start: int, data: bytes | memoryview) -> None:
        """A turn has written this to the log. Called for each turn, so it must cost nothing without slaves."""
        if not self.followers:
            return
        kept = bytes(data)  # the kernel gets its buffer back, and connections may hold the bytes for long
        for follower in self.followers:
            follower.written(start, kept)

    def flushed(self, offset: int) -> None:
        """The log is on disk up to here."""
        for group in self.groups:
            group.flushed(offset)
