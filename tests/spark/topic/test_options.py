"""Options: every wrong one is named, with what it takes."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, StructType

from kappamq.errors import ConfigError
from kappamq.spark.topic.options import BATCH_ONLY, EARLIEST, LATEST, STREAM_ONLY, OnDataLoss, Position, ReadOptions
from kappamq.spark.topic.source import BatchReader, KappaMQSource
from kappamq.spark.topic.streaming import StreamReader

SCHEMA = StructType().add("body", BinaryType())
GOOD = {"nameservers": "127.0.0.1:9876", "topic": "orders"}


def test_defaults() -> None:
    options = ReadOptions.parse(GOOD)
    assert (options.topics, options.start, options.end) == (("orders",), Position(EARLIEST), Position(LATEST))
    assert (options.on_data_loss, options.min_partitions, options.columns) == (OnDataLoss.FAIL, 1, None)


def test_spark_hands_names_over_in_lower_case() -> None:
    options = ReadOptions.parse({**GOOD, "maxmessagespertrigger": "7", "ONDATALOSS": "Skip"})
    assert (options.messages_per_trigger, options.on_data_loss) == (7, OnDataLoss.SKIP)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Position(EARLIEST)),
        (" Latest ", Position(LATEST)),
        ('{"orders": {"a/b/0": 5, "c/01": -2}}', Position(by_queue={"orders": {"a/b/0": 5, "c/1": EARLIEST}})),
        ('{"orders": {"a/0": "latest"}}', Position(by_queue={"orders": {"a/0": LATEST}})),
    ],
)
def test_positions(text: str, expected: Position) -> None:
    assert ReadOptions.parse({**GOOD, "startingOffsets": text}).start == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000123", 1700000000123),
        ("2023-11-14T22:13:20Z", 1700000000000),
        ("2023-11-14 22:13:20", 1700000000000),
        ("2023-11-14T23:13:20+01:00", 1700000000000),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert ReadOptions.parse({**GOOD, "endingTimestamp": text}).end == Position(time_ms=expected)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"tpic": "x"}, "unknown option 'tpic' \\(did you mean topic\\?\\)"),
        ({"path": "/tmp"}, "unknown option 'path'"),
        ({"topicPattern": "a.*"}, "give either the option topic"),
        ({"topic": " , "}, "topic is empty"),
        ({"topic": "a b"}, "topic='a b'"),
        ({"topic": ""}, "topic is empty"),
        ({"startingOffsets": "first"}, "neither earliest, latest nor JSON"),
        ({"startingOffsets": '{"orders": 3}'}, "neither earliest, latest nor JSON"),
        ({"startingOffsets": '{"orders": {"0": 3}}'}, "is not a queue: write it as broker/number"),
        ({"startingOffsets": '{"orders": {"a/0": true}}'}, "True is not an offset"),
        ({"startingOffsets": '{"orders": {"a/0": -3}}'}, "-3 is not an offset"),
        ({"startingOffsets": '{"orders": {"a/0": 1.5}}'}, "1.5 is not an offset"),
        ({"startingOffsets": "[1]"}, r"nor JSON like .*: \[1\] is no object of topics"),
        ({"startingOffsets": '{"orders": [1]}'}, r"\[1\] is no object of queues"),
        ({"startingOffsets": "earlist"}, r"nor JSON like .* \(did you mean earliest\?\)$"),
        ({"endingOffsets": '{"orders": {"a/0": "lates"}}'}, r"'lates' is not an offset \(did you mean latest\?\)"),
        ({"keys": " , "}, "keys=' , ' contains no key"),
        ({"startingOffsets": "earliest", "startingTimestamp": "5"}, "choose one"),
        ({"endingTimestamp": "tomorrow"}, "is not a time"),
        ({"columns": "body,bodi"}, "unknown column 'bodi' \\(did you mean body\\?\\)"),
        ({"columns": "body,body"}, "named twice"),
        ({"minPartitions": "0"}, "integer above 0"),
        ({"maxBytesPerSecond": "1e6"}, "integer above 0"),
        ({"maxMessagesPerTrigger": "5", "maxBytesPerTrigger": "5"}, "Spark takes one limit"),
        ({"onDataLoss": "ignore"}, "must be fail .* or skip"),
        ({"group": "a b"}, "group='a b'"),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ReadOptions.parse({**GOOD, **changed})


def test_blanks_around_keys_are_not_part_of_them() -> None:
    assert ReadOptions.parse({"nameservers": "h:1", "topic": "orders", "keys": "a, b ,,c,a"}).keys == ("a", "b", "c")


def test_a_pattern_must_be_one() -> None:
    with pytest.raises(ConfigError, match="not a regular expression"):
        ReadOptions.parse({"nameservers": "x:1", "topicPattern": "("})


def test_the_environment_may_name_the_name_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAPPAMQ_NAMESERVER", raising=False)
    with pytest.raises(ConfigError, match="no name server is given"):
        ReadOptions.parse({"topic": "orders"})
    monkeypatch.setenv("KAPPAMQ_NAMESERVER", "10.0.0.1:9876")
    assert ReadOptions.parse({"topic": "orders"}).nameservers == "10.0.0.1:9876"


def test_a_streaming_write_names_its_checkpoint() -> None:
    """Spark hands its own option on, in lower case."""
    from kappamq.spark.sink.options import WriteOptions

    given = {"nameservers": "h:1", "topic": "tea", "checkpointlocation": "/tmp/x"}
    assert WriteOptions.parse(given) == WriteOptions(nameservers="h:1", topic="tea")


@pytest.mark.parametrize("name", STREAM_ONLY)
def test_options_of_streams_are_refused_in_a_batch_read(name: str) -> None:
    source = KappaMQSource({**GOOD, name.lower(): "5"})
    with pytest.raises(ConfigError, match=f"the option {name} is for streams: leave it out, or use spark.readStream"):
        source.reader(SCHEMA)
    assert isinstance(source.streamReader(SCHEMA), StreamReader)


@pytest.mark.parametrize(("name", "value"), [(BATCH_ONLY[0], "latest"), (BATCH_ONLY[1], "5")])
def test_a_stream_has_no_end(name: str, value: str) -> None:
    """Whatever its value: `latest` would not end it either."""
    source = KappaMQSource({**GOOD, name.lower(): value})
    refused = source.streamReader(SCHEMA)
    with pytest.raises(ConfigError, match=f"the option {name} is for batch reads"):
        refused.initialOffset()
    assert isinstance(source.reader(SCHEMA), BatchReader)
