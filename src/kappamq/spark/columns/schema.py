"""The columns of a topic: names, Spark types, and selection."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from kappamq.errors import ConfigError
from kappamq.spark.suggestions import nearest

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS: Final = {
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "msgId": "string",
    "keys": "string",
    "tags": "string",
    "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp",
    "properties": "map<string,string>",
    "body": "binary",
}
"""name -> type. `keys` is RocketMQ's property: keys separated by blanks."""

STORE_COLUMNS: Final = {name: kind for name, kind in COLUMNS.items() if name != "brokerName"} | {
    "logOffset": "bigint",
    "size": "int",
    "bornHost": "string",
    "storeHost": "string",
    "damage": "string",
}
"""Columns of the log itself: position and size of a record, the addresses (`host:port`) of the client that sent it and of the
broker that stored it; for an unreadable range, `damage` says why."""

OPTIONAL: Final = frozenset({"keys", "tags", "damage"})
"""Columns that a message may lack; the others are never null."""


class Projection(NamedTuple):
    """The columns of a read, in order, and those that are declared as never null."""

    columns: tuple[str, ...]
    required: frozenset[str] = frozenset()


def ddl(columns: Sequence[str] | None = None, known: Mapping[str, str] = COLUMNS) -> str:
    """Return the schema for Spark: `topic string, queueId int, ...`; by default all known columns."""
    return ", ".join(f"{name} {known[name]}" for name in (known if columns is None else columns))


def check_columns(names: Sequence[str], known: Mapping[str, str] = COLUMNS) -> tuple[str, ...]:
    """Return the named columns, in that order. Raises ConfigError."""
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown column {name!r}{nearest(name, known)}; the columns are {', '.join(known)}")
    if len(set(names)) != len(names):
        raise ConfigError(f"a column is named twice: {', '.join(names)}")
    if not names:
        raise ConfigError(f"no column is named; the columns are {', '.join(known)}")
    return tuple(names)


def check_schema(
    schema: StructType, known: Mapping[str, str] = COLUMNS, optional: Collection[str] = OPTIONAL
) -> Projection:
    """Return the columns of a user's schema. Raises ConfigError if it does not fit."""
    names = check_columns([field.name for field in schema.fields], known)
    for field in schema.fields:
        if field.dataType.simpleString() != known[field.name]:
            raise ConfigError(
                f"column {field.name} is {known[field.name]}, not {field.dataType.simpleString()}: "
                f"declare it as {ddl([field.name], known)}, and cast it afterwards"
            )
        if not field.nullable and field.name in optional:
            raise ConfigError(f"column {field.name} may be null here: declare it without NOT NULL")
    return Projection(names, frozenset(field.name for field in schema.fields if not field.nullable))
