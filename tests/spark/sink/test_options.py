"""Options of a write: every wrong one is named, and what is not built yet is refused."""

from __future__ import annotations

import pytest

from kappamq.errors import ConfigError
from kappamq.spark.sink.options import WriteOptions

GOOD = {"nameservers": "127.0.0.1:9876", "topic": "orders"}


def test_good_options() -> None:
    options = WriteOptions.parse({**GOOD, "delivery": "At-Least-Once", "group": "etl"})
    assert (options.topic, options.group) == ("orders", "etl")
    assert WriteOptions.parse({"nameservers": "x:1"}).topic is None


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"delivery": "exactly-once"}, "exactly-once is not implemented yet"),
        ({"delivery": "maybe"}, "must be at-least-once"),
        ({"topics": "x"}, r"unknown option 'topics' \(did you mean topic\?\)"),
        ({"topic": "a b"}, "topic='a b'"),
        ({"group": "a b"}, "group='a b'"),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        WriteOptions.parse({**GOOD, **changed})


def test_what_spark_adds_by_itself_is_passed_over() -> None:
    """A streaming write has a checkpoint, one of a Declarative Pipeline a name, too."""
    sparks_own = {"checkpointLocation": "/tmp/x", "queryName": "to_copies"}
    assert WriteOptions.parse({"nameservers": "x:1", "topic": "tea", **sparks_own}).topic == "tea"
