"""Which topics a stream has met. One of them that nobody has now is a topic whose brokers are away, not one that never was."""

from __future__ import annotations

import logging
from collections.abc import Iterable

log = logging.getLogger(__name__)


class KnownTopics:
    """Grows with every checkpoint and every look; the log has a line when a topic goes away and one when it is back."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = set(names)
        self._away: set[str] = set()

    def __contains__(self, topic: object) -> bool:
        return topic in self._names

    def add(self, names: Iterable[str]) -> None:
        self._names.update(names)

    def is_there(self, topic: str) -> None:
        self._names.add(topic)
        if topic in self._away:
            self._away.remove(topic)
            log.info("a broker has topic %s again: the stream goes on with it", topic)

    def is_away(self, topic: str) -> None:
        """A stream looks several times a second: it says so once."""
        if topic not in self._away:
            self._away.add(topic)
            log.warning("no broker has topic %s now: the stream goes on with it when one is back", topic)
