"""Validates the topics and filters that a caller passes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from kappamq.client.pulling.pulling import Wanted
from kappamq.errors import ConfigError
from kappamq.message import SqlFilter
from kappamq.protocol.names import check_topic

_SQL: Final = re.compile(
    r"[<>]|\s=|=\s|\s(between\s.+\sand\s|is\s+(not\s+)?null\b|in\s*\(|like\s*')", re.IGNORECASE | re.DOTALL
)
"""A pattern for conditions. A tag may contain blanks and words, but hardly a comparison."""
Topics = str | Iterable[str] | Mapping[str, Wanted]
"""One topic, several, or each with its filter: {"orders": "new || paid", "returns": sql("price > 100")}."""


def wanted_topics(topics: Topics, wanted: Wanted = "*") -> dict[str, Wanted]:
    """Return the filter of each topic; `wanted` applies to topics given without one. Raises ConfigError."""
    if isinstance(topics, str):
        topics = {topics: wanted}
    elif isinstance(topics, bytes) or not isinstance(topics, Iterable):
        raise ConfigError(
            f'topics must be a string, several strings, or a mapping such as {{"orders": "new || paid"}}; got {topics!r}'
        )
    elif not isinstance(topics, Mapping):
        topics = dict.fromkeys(topics, wanted)
    elif wanted != "*":
        raise ConfigError("topics is a mapping: put the filter of each topic into it")
    if not topics:
        raise ConfigError('a consumer needs a topic: topics="orders", or topics={"orders": "new || paid"}')
    return {check_topic(topic): _checked(topic, expression) for topic, expression in topics.items()}


def _checked(topic: str, wanted: Wanted) -> Wanted:
    if isinstance(wanted, SqlFilter):
        return wanted
    if not isinstance(wanted, str):
        raise ConfigError(
            f'the filter of {topic!r} must be tags such as "new || paid", or "*" for all, or sql("price > 100"); '
            f"got {wanted!r}"
        )
    if _SQL.search(wanted):
        raise ConfigError(
            f"the filter of {topic!r} is a list of tags, and {wanted!r} looks like SQL: no message would match it as a tag. "
            f"For SQL: sql({wanted!r})"
        )
    return wanted.strip() or "*"
