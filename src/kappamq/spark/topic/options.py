"""The options of a read, validated before any request to a broker."""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kappamq.errors import ConfigError, KappaError
from kappamq.protocol.names import check_group, check_topic
from kappamq.spark.columns.schema import check_columns
from kappamq.spark.suggestions import nearest
from kappamq.spark.tls import TLS_OPTIONS, Tls, tls_options

EARLIEST: Final = -2
LATEST: Final = -1
"""Special offsets: the first message that still exists, and the end of the queue (the numbers are Kafka's)."""
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}

READ_OPTIONS: Final = (
    "nameservers", "topic", "topicPattern", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "tags",
    "keys", "filter", "columns", "group", "maxMessagesPerTrigger", "maxBytesPerTrigger", "maxBytesPerSecond", "minPartitions",
    "onDataLoss", *TLS_OPTIONS,
)  # fmt: skip
STREAM_ONLY: Final = ("group", "maxMessagesPerTrigger", "maxBytesPerTrigger")
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp")
ENVIRONMENT: Final = "KAPPAMQ_NAMESERVER"

QueueOffsets = Mapping[str, Mapping[str, int]]
"""topic -> "broker/queue id" -> offset, EARLIEST or LATEST."""


class OnDataLoss(Enum):
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Position:
    """Where to begin or end: at the same place in every queue, at a place given per queue, or at a time."""

    everywhere: int | None = None
    by_queue: QueueOffsets | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    nameservers: str
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    start: Position = Position(EARLIEST)
    end: Position = Position(LATEST)
    tags: str | None = None
    keys: tuple[str, ...] = ()
    filter: str | None = None
    columns: tuple[str, ...] | None = None
    group: str | None = None
    messages_per_trigger: int | None = None
    bytes_per_trigger: int | None = None
    bytes_per_second: int | None = None
    min_partitions: int = 1
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    tls: Tls | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Parse options. Raises ConfigError, which names the option, what is wrong with it, and what is accepted."""
        given = known_options(options, READ_OPTIONS)
        topics, pattern = topic_options(given)
        for late, early in (("startingTimestamp", "startingOffsets"), ("endingTimestamp", "endingOffsets")):
            if late in given and early in given:
                raise ConfigError(f"both {early} and {late} are given: choose one")
        if "maxMessagesPerTrigger" in given and "maxBytesPerTrigger" in given:
            raise ConfigError(
                "both maxMessagesPerTrigger and maxBytesPerTrigger are given: Spark takes one limit, choose one"
            )
        return cls(
            nameservers=nameservers(given),
            topics=topics,
            topic_pattern=pattern,
            start=_position(given, "startingOffsets", "startingTimestamp", EARLIEST),
            end=_position(given, "endingOffsets", "endingTimestamp", LATEST),
            tags=given.get("tags"),
            keys=_keys(given["keys"]) if "keys" in given else (),
            filter=given.get("filter"),
            columns=check_columns([name.strip() for name in given["columns"].split(",")])
            if "columns" in given
            else None,
            group=checked_name("group", given["group"], check_group) if "group" in given else None,
            messages_per_trigger=count_option(given, "maxMessagesPerTrigger"),
            bytes_per_trigger=count_option(given, "maxBytesPerTrigger"),
            bytes_per_second=count_option(given, "maxBytesPerSecond"),
            min_partitions=count_option(given, "minPartitions") or 1,
            on_data_loss=_on_data_loss(given.get("onDataLoss", "fail")),
            tls=tls_options(given),
        )


def known_options(options: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    """Return the options under their own names; Spark passes them in lower case. Raises ConfigError for unknown ones."""
    names = {name.lower(): name for name in known}
    given: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() not in names:
            raise ConfigError(f"unknown option {name!r}{nearest(name, known)}; the options are {', '.join(known)}")
        given[names[name.lower()]] = str(value)
    return given


def refuse_options(options: Mapping[str, str], names: tuple[str, ...], why: str) -> None:
    """Raise ConfigError if one of these is given: an option without effect would mislead the user."""
    given = {name.lower() for name in options}
    for name in names:
        if name.lower() in given:
            raise ConfigError(f"the option {name} {why}")


def nameservers(given: Mapping[str, str]) -> str:
    found = given.get("nameservers") or os.environ.get(ENVIRONMENT, "")
    if not found.strip():
        raise ConfigError(
            f"no name server is given: set the option nameservers (host:port, several with ';') or ${ENVIRONMENT}"
        )
    return found


def topic_options(given: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    """The topics by name, or a pattern that they match as a whole. Raises ConfigError."""
    if ("topic" in given) == ("topicPattern" in given):
        raise ConfigError(
            "give either the option topic (one, or several separated by commas) or the option topicPattern"
        )
    if "topicPattern" in given:
        try:
            re.compile(given["topicPattern"])
        except re.error as error:
            raise ConfigError(f"topicPattern={given['topicPattern']!r} is not a regular expression: {error}") from None
        return (), given["topicPattern"]
    topics = tuple(dict.fromkeys(name.strip() for name in given["topic"].split(",") if name.strip()))
    if not topics:
        raise ConfigError("the option topic is empty")
    return tuple(checked_name("topic", topic, check_topic) for topic in topics), None


def checked_name(name: str, value: str, check: Callable[[str], str]) -> str:
    """Return a topic or group that passes `check`. Raises ConfigError that names the option."""
    try:
        return check(value)
    except KappaError as error:
        raise ConfigError(f"{name}={value!r}: {error}") from None


def _position(given: Mapping[str, str], offsets: str, timestamp: str, default: int) -> Position:
    if timestamp in given:
        return Position(time_ms=_time_ms(timestamp, given[timestamp]))
    text = given.get(offsets)
    if text is None:
        return Position(default)
    if text.strip().lower() in _WORDS:
        return Position(_WORDS[text.strip().lower()])
    try:
        table = _object(json.loads(text), "topics")
        by_queue = {
            str(topic): {_queue_name(queue): _offset(offset) for queue, offset in _object(queues, "queues").items()}
            for topic, queues in table.items()
        }
    except ValueError as error:
        example = '{"orders": {"broker-a/0": 42, "broker-a/1": "latest"}}'
        why = nearest(text.strip(), _WORDS) or f": {error}"
        raise ConfigError(f"{offsets}={text!r} is neither earliest, latest nor JSON like {example}{why}") from None
    return Position(by_queue=by_queue)


def _object(value: object, of: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{json.dumps(value)} is no object of {of}")
    return value


def _keys(text: str) -> tuple[str, ...]:
    keys = tuple(dict.fromkeys(key.strip() for key in text.split(",") if key.strip()))
    if not keys:
        raise ConfigError(f"keys={text!r} contains no key: give some, separated by commas, or leave the option out")
    return keys


def _queue_name(name: str) -> str:
    broker, slash, number = name.rpartition("/")
    if not slash or not broker or not number.isdigit():
        raise ValueError(f"{name!r} is not a queue: write it as broker/number")
    return f"{broker}/{int(number)}"


def _offset(value: object) -> int:
    found = _WORDS.get(value.lower(), value) if isinstance(value, str) else value
    if isinstance(found, bool) or not isinstance(found, int) or not EARLIEST <= found < 1 << 58:
        near = nearest(value, _WORDS) if isinstance(value, str) else ""
        raise ValueError(f"{value!r} is not an offset{near}")
    return found


def _time_ms(name: str, text: str) -> int:
    """Milliseconds since 1970, or a date and time; one without a zone is UTC."""
    if re.fullmatch(r"-?[0-9]{1,16}", text.strip()):
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(
            f"{name}={text!r} is not a time: give milliseconds since 1970 or a date such as 2026-11-16T08:00:00+01:00"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


def count_option(given: Mapping[str, str], name: str) -> int | None:
    """Parse a whole number above 0, None if it is not given. Raises ConfigError."""
    if name not in given:
        return None
    text = given[name].strip()
    if not re.fullmatch("[0-9]{1,18}", text) or int(text) == 0:
        raise ConfigError(f"{name}={given[name]!r} must be an integer above 0")
    return int(text)


def _on_data_loss(text: str) -> OnDataLoss:
    try:
        return OnDataLoss(text.lower())
    except ValueError:
        raise ConfigError(
            f"onDataLoss={text!r} must be fail (the query ends) or skip (it continues and records each gap)"
        ) from None
