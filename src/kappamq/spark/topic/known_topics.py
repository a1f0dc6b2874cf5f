"""The topics a stream has seen. If one of them is missing now, its brokers are unavailable; the name is not wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterable

log = logging.getLogger(__name__)


class KnownTopics:
    """Grows with every checkpoint and every refresh; logs once when a topic becomes unavailable and once when it is back."""

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
            log.info("topic %s is available again; the stream resumes reading it", topic)

    def is_away(self, topic: str) -> None:
        """A stream refreshes several times a second, so log only once."""
        if topic not in self._away:
            self._away.add(topic)
            log.warning(
                "topic %s is not available: no broker has it; the stream resumes reading it when a broker is back",
                topic,
            )
