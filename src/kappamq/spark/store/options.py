"""The options of the format `kappamq.store`, checked once."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from kappamq.errors import ConfigError
from kappamq.spark.columns.schema import OPTIONAL, STORE_COLUMNS, check_columns
from kappamq.spark.topic.options import count_option, known_options, topic_options
from kappamq.store.reader import check_is_store

STORE_OPTIONS: Final = (
    "path",
    "topic",
    "topicPattern",
    "tags",
    "keys",
    "filter",
    "columns",
    "system",
    "onDamage",
    "minPartitions",
)


class OnDamage(Enum):
    FAIL = "fail"
    ROWS = "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    path: str
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    tags: str | None = None
    keys: tuple[str, ...] = ()
    filter: str | None = None
    columns: tuple[str, ...] | None = None
    system: bool = False  # also the brokers' own topics, retries, dead letters, half messages
    on_damage: OnDamage = OnDamage.FAIL
    min_partitions: int = 1

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StoreOptions:
        """Parse options. Raises ConfigError, which names the option and what is accepted; StoreError if the path is not a store."""
        given = known_options(options, STORE_OPTIONS)
        path = given.get("path", "")
        if not path:
            raise ConfigError("no store is given: pass the broker's data directory, as in load('/var/lib/kappamq')")
        check_is_store(Path(path))
        topics, pattern = topic_options(given) if {"topic", "topicPattern"} & given.keys() else ((), None)
        damage = given.get("onDamage", "fail").lower()
        if damage not in {one.value for one in OnDamage}:
            raise ConfigError(
                f"onDamage={damage!r} must be fail (the query ends) or rows (a row for each damaged stretch)"
            )
        system = given.get("system", "false").lower()
        if system not in ("true", "false"):
            raise ConfigError(f"system={system!r} must be true or false")
        columns = [name.strip() for name in given["columns"].split(",")] if "columns" in given else None
        return cls(
            path=path,
            topics=topics,
            topic_pattern=pattern,
            tags=given.get("tags"),
            keys=tuple(key for key in given.get("keys", "").split(",") if key),
            filter=given.get("filter"),
            columns=check_columns(columns, STORE_COLUMNS) if columns is not None else None,
            system=system == "true",
            on_damage=OnDamage(damage),
            min_partitions=count_option(given, "minPartitions") or 1,
        )

    @property
    def optional(self) -> Collection[str]:
        """The columns that may be null: for a damaged stretch only its place is known."""
        return STORE_COLUMNS.keys() - {"logOffset", "size"} if self.on_damage is OnDamage.ROWS else OPTIONAL

    def wants(self, topic: str) -> bool:
        if self.topic_pattern is not None:
            return re.fullmatch(self.topic_pattern, topic) is not None
        return not self.topics or topic in self.topics
