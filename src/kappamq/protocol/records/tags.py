"""Tags and keys: their Java hash, and the tag subscriptions of consumers (`paid || shipped`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

try:
    from kappamq.native._kernel import java_hash as _kernel_hash
except ImportError:
    from kappamq.native.pure_record import java_hash as _kernel_hash

ALL: Final = "*"
SEPARATOR: Final = "||"
TAGS_CHARACTERS_MAX: Final = 65_536
"""Limit of tags in one subscription: thousands are a mistake or an attack."""


_CACHED_CHARACTERS_MAX = 128  # tags are few and short; other input of clients must not fill the cache


def java_hash(text: str) -> int:
    """Return String.hashCode: h = 31 * h + unit over UTF-16 code units, in signed 32 bits."""
    try:
        return int(_kernel_hash(text.encode()))
    except UnicodeEncodeError:
        return _java_hash_of_units(text)


def _java_hash_of_units(text: str) -> int:
    """The same for strings with lone surrogates, which have no UTF-8 form."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def tag_code(tags: str | None) -> int:
    """Return the tag hash stored in the consume queue for a message with these TAGS; 0 without a tag."""
    if not tags:
        return 0
    return _cached_hash(tags) if len(tags) <= _CACHED_CHARACTERS_MAX else java_hash(tags)


_cached_hash = lru_cache(maxsize=4096)(java_hash)


def keys_of(text: str | None) -> list[str]:
    """Split the KEYS property into the keys to index."""
    return [key for key in text.split(" ") if key] if text else []


@dataclass(frozen=True, slots=True)
class Subscription:
    """The tags that a consumer subscribes to; none means every message."""

    tags: frozenset[str]
    codes: frozenset[int]

    @classmethod
    def parse(cls, expression: str | None) -> Subscription:
        """Parse `*`, an empty text or `A || B`; a text of separators only means every message."""
        if not expression or expression.strip() == ALL:
            return EVERYTHING
        tags = frozenset(tag for part in expression.split(SEPARATOR) if (tag := part.strip()))
        return cls(tags, frozenset(map(java_hash, tags))) if tags else EVERYTHING

    @property
    def everything(self) -> bool:
        return not self.tags

    def may_match(self, code: int) -> bool:
        """The broker's comparison: by hash only, so there are false positives."""
        return not self.tags or code in self.codes

    def matches(self, tag: str | None) -> bool:
        """The consumer's comparison: exact; a message without a tag never matches a list of tags."""
        return not self.tags or (tag is not None and tag in self.tags)


EVERYTHING: Final = Subscription(frozenset(), frozenset())
