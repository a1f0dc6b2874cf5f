"""A cache of results computed from strings: the least recently used are evicted when the strings become too long in total."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class TextCache(Generic[T]):
    """Bounded by the characters of all texts together: what is made of a text takes memory in proportion to it."""

    def __init__(self, characters_max: int) -> None:
        self._characters_max = characters_max
        self._kept: OrderedDict[str, T] = OrderedDict()
        self._characters = 0

    def __contains__(self, text: str) -> bool:
        return text in self._kept

    def get(self, text: str) -> T | None:
        found = self._kept.get(text)
        if found is not None:
            self._kept.move_to_end(text)
        return found

    def put(self, text: str, made: T) -> None:
        if text in self._kept or len(text) > self._characters_max:
            return
        self._kept[text] = made
        self._characters += len(text)
        while self._characters > self._characters_max:
            oldest, _ = self._kept.popitem(last=False)
            self._characters -= len(oldest)
