"""Options of a write: every wrong one is named."""

from __future__ import annotations

import pytest

from kappamq.errors import ConfigError
from kappamq.spark.sink.options import ExactlyOnce, WriteOptions

GOOD = {"nameservers": "127.0.0.1:9876", "topic": "orders"}


def test_good_options() -> None:
    options = WriteOptions.parse({**GOOD, "delivery": "At-Least-Once", "group": "etl"})
    assert (options.topic, options.group) == ("orders", "etl")
    assert WriteOptions.parse({"nameservers": "x:1"}).topic is None


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"delivery": "maybe"}, "must be at-least-once or exactly-once"),
        ({"delivery": "exactly once"}, r"must be .* \(did you mean exactly-once\?\)"),
        ({"transactionScope": "s"}, "transactionScope is for delivery=exactly-once"),
        ({"transactionNumber": "0"}, "transactionNumber is for delivery=exactly-once"),
        ({"topics": "x"}, r"unknown option 'topics' \(did you mean topic\?\)"),
        ({"topic": "a b"}, "topic='a b'"),
        ({"group": "a b"}, "group='a b'"),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        WriteOptions.parse({**GOOD, **changed})


SCOPED = {**GOOD, "delivery": "exactly-once", "transactionScope": "copy"}


def test_exactly_once() -> None:
    assert WriteOptions.parse(SCOPED, streaming=True).exactly_once == ExactlyOnce("copy")
    batch = WriteOptions.parse(
        {**SCOPED, "transactionNumber": "7", "transactionOwner": "etl", "onRepeatedBatch": "Skip"}
    )
    assert batch.exactly_once == ExactlyOnce("copy", 7, "etl", skip_repeated=True)
    assert WriteOptions.parse(GOOD).exactly_once is None


@pytest.mark.parametrize(
    ("streaming", "changed", "told"),
    [
        (True, {"transactionScope": None}, "needs the option transactionScope"),
        (True, {"transactionScope": "a b"}, "transactionScope='a b'"),
        (
            True,
            {"transactionNumber": "0"},
            "transactionNumber is for batch writes, and Spark numbers the batches of a stream",
        ),
        (True, {"transactionOwner": "me"}, "transactionOwner is for batch writes"),
        (True, {"onRepeatedBatch": "skipp"}, r"must be compare .* or skip \(did you mean skip\?\)"),
        (False, {}, "needs the option transactionNumber"),
        (False, {"transactionNumber": "-1"}, "transactionNumber='-1' must be an integer, 0 or more"),
        (False, {"transactionNumber": "1", "transactionOwner": " "}, "transactionOwner=' ' must have 1 to 200"),
        (False, {"transactionNumber": "1", "transactionScop": "x"}, r"did you mean transactionScope\?"),
    ],
)
def test_what_is_wrong_with_a_transaction_is_named(streaming: bool, changed: dict[str, str | None], told: str) -> None:
    given = {name: value for name, value in {**SCOPED, **changed}.items() if value is not None}
    with pytest.raises(ConfigError, match=told):
        WriteOptions.parse(given, streaming=streaming)


def test_what_spark_adds_by_itself_is_passed_over() -> None:
    """A streaming write has a checkpoint, one of a Declarative Pipeline a name, too."""
    sparks_own = {"checkpointLocation": "/tmp/x", "queryName": "to_copies"}
    assert WriteOptions.parse({"nameservers": "x:1", "topic": "tea", **sparks_own}).topic == "tea"
