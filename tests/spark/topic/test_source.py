"""The format `kappamq` in Spark itself: found by name, right in every row, clear about what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kappamq import Message
from kappamq.testing import BrokerKit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def orders(kappamq_broker: BrokerKit) -> BrokerKit:
    """300 orders in 3 queues, a third of them paid."""
    with kappamq_broker.admin() as admin:
        admin.create_topic("orders", queues=3)
    with kappamq_broker.producer() as producer:
        for part in range(3):
            messages = [
                Message("orders", b"order %d" % (100 * part + n), tags="paid" if n % 3 == 0 else "new", keys=(f"k{n}",))
                for n in range(100)
            ]
            producer.send_batch(messages)
    return kappamq_broker


def read(spark: SparkSession, broker: BrokerKit, **options: Any) -> DataFrame:
    given = {"nameservers": broker.nameserver, "topic": "orders", **options}
    return spark.read.format("kappamq").options(**given).load()


def test_a_topic_is_a_table(spark: SparkSession, orders: BrokerKit) -> None:
    rows = read(spark, orders).collect()
    expected = {message.message_id: message for message in orders.messages("orders")}
    assert len(rows) == len(expected) == 300
    for row in rows:
        message = expected.pop(row.msgId)
        assert (bytes(row.body), row.tags, row.keys) == (message.body, message.tags, " ".join(message.keys))
        assert (row.topic, row.brokerName, row.queueId, row.queueOffset) == (
            "orders", message.queue.broker, message.queue.queue_id, message.queue_offset,
        )  # fmt: skip
        assert int(row.storeTimestamp.timestamp() * 1000 + 0.5) == message.stored_ms
        assert row.properties["UNIQ_KEY"] == row.msgId


def test_filters_columns_and_schemas(spark: SparkSession, orders: BrokerKit) -> None:
    assert read(spark, orders, tags="paid").count() == 102
    assert read(spark, orders, tags="paid", keys="k0,k1").count() == 3
    assert read(spark, orders, filter="TAGS = 'new'", minPartitions="5").count() == 198
    assert read(spark, orders, columns="queueOffset,body").columns == ["queueOffset", "body"]
    options = {"nameservers": orders.nameserver, "topic": "orders"}
    projected = spark.read.format("kappamq").schema("body binary").options(**options).load()
    assert projected.columns == ["body"]
    declared = spark.read.format("kappamq").schema("queueOffset bigint not null, body binary").options(**options).load()
    assert declared.count() == 300
    assert len({bytes(row.body) for row in projected.collect()}) == 300


def test_an_empty_topic_has_no_rows(spark: SparkSession, kappamq_broker: BrokerKit) -> None:
    with kappamq_broker.admin() as admin:
        admin.create_topic("orders", queues=2)
    assert read(spark, kappamq_broker).collect() == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tag": "x"}, r"unknown option 'tag' \(did you mean tags\?\)"),
        ({"topic": "order"}, r"topic 'order' does not exist \(did you mean orders\?\)"),
        ({"filter": "price >"}, "filter='price >'"),
        ({"startingOffsets": '{"orders": {"x/0": 1}}'}, "unknown queue orders x/0"),
        ({"nameservers": "127.0.0.1:1"}, "127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_told(spark: SparkSession, orders: BrokerKit, options: dict[str, str], told: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=told) as failure:
        read(spark, orders, **options).collect()
    # Our sentence alone: no lines of Python before it.
    assert "Traceback" not in str(failure.value).partition("kappamq.errors.")[0]
    assert 'File "' not in str(failure.value)
