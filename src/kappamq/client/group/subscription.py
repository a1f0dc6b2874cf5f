"""From what a caller writes about topics to what a consumer wants of each, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kappamq.client.pulling.pulling import Wanted
from kappamq.errors import ConfigError
from kappamq.message import SqlFilter
from kappamq.protocol.names import check_topic

Topics = str | Iterable[str] | Mapping[str, Wanted]
"""One topic, several, or each with what is wanted of it: {"orders": "new || paid", "returns": sql("price > 100")}."""


def wanted_topics(topics: Topics, wanted: Wanted = "*") -> dict[str, Wanted]:
    """Return what is wanted of each topic; `wanted` holds for those named without. Raises ConfigError."""
    if isinstance(topics, str):
        topics = {topics: wanted}
    elif isinstance(topics, bytes) or not isinstance(topics, Iterable):
        raise ConfigError(
            f'topics is a text, several texts, or a mapping such as {{"orders": "new || paid"}}; got {topics!r}'
        )
    elif not isinstance(topics, Mapping):
        topics = dict.fromkeys(topics, wanted)
    elif wanted != "*":
        raise ConfigError("say what is wanted of each topic in the mapping, not beside it")
    if not topics:
        raise ConfigError('a consumer needs a topic: topics="orders", or topics={"orders": "new || paid"}')
    return {check_topic(topic): _checked(topic, expression) for topic, expression in topics.items()}


def _checked(topic: str, wanted: Wanted) -> Wanted:
    if isinstance(wanted, SqlFilter):
        return wanted
    if not isinstance(wanted, str):
        raise ConfigError(
            f'the tags of {topic!r} are a text such as "new || paid", or "*" for all, or sql("price > 100"); '
            f"got {wanted!r}"
        )
    return wanted.strip() or "*"
