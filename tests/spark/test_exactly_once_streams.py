"""Streams that write exactly once, on Spark: tasks that fail, batches that are repeated, checkpoints that are lost, brokers that cannot."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kappamq import Message
from kappamq.broker.batches.batch_requests import BATCH_CODES
from kappamq.errors import ConfigError, IllegalOperation, NotSupported
from kappamq.protocol.bodies.batches import ScopeState
from kappamq.spark.failures import our_error
from kappamq.testing import BrokerKit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
ANSWER_S = 5.0


@pytest.fixture
def shop(kappamq_broker: BrokerKit) -> BrokerKit:
    with kappamq_broker.admin() as admin:
        admin.create_topic("orders", queues=3)
        admin.create_topic("bills", queues=2)
        admin.create_topic("parcels", queues=2)
    return kappamq_broker


def send(broker: BrokerKit, first: int, count: int) -> None:
    with broker.producer() as producer:
        for start in range(first, first + count, 100):
            producer.send_batch([Message("orders", b"%d" % number) for number in range(start, start + 100)])


def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a task: the first attempt fails when its rows are on their way to the sink already."""
    from pyspark import TaskContext

    yield from batches
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0:
        raise RuntimeError("this attempt fails")


class Query:
    """Bills and parcels for orders; run until everything is written, again and again."""

    def __init__(self, spark: SparkSession, broker: BrokerKit, folder: Path) -> None:
        self._spark, self._broker = spark, broker
        self.checkpoint = folder / "checkpoint"

    def run(self, *, failing: bool = False, change: str = "body", **options: str) -> None:
        given = {"nameservers": self._broker.nameserver, "topic": "orders", "columns": "body", "minPartitions": "4"}
        rows = self._spark.readStream.format("kappamq").options(**given).load()
        if failing:
            rows = rows.mapInArrow(failing_once, rows.schema)
        number = "cast(cast(body as string) as int)"
        rows = rows.selectExpr(
            f"{change} as body",
            f"if({number} % 2 = 0, 'bills', 'parcels') as topic",
            f"concat('k', {number}) as keys",
            f"if({number} % 10 = 9, 1, 0) as delayLevel",
            f"if({number} % 5 = 0, 1, null) as queueId",
        )
        sink = {
            "nameservers": self._broker.nameserver,
            "delivery": "exactly-once",
            "transactionScope": "shop",
            **options,
        }
        writer = rows.writeStream.format("kappamq").options(**sink).option("checkpointLocation", str(self.checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(200)

    def forget_the_last_commit(self) -> None:
        """As if the driver had been killed when the batch was decided, and Spark did not know yet."""
        last = max((self.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        (self.checkpoint / "commits" / f".{last.name}.crc").unlink()

    def written(self) -> list[int]:
        self._broker.clock.advance("2s")  # every tenth row is delayed
        return sorted(int(body) for topic in ("bills", "parcels") for body in self._broker.bodies(topic))

    def scope(self) -> ScopeState:
        with self._broker.admin() as admin:
            (found,) = admin.scopes("shop")["shop"].values()
        return found


def test_a_stream_and_all_that_happens_to_it(spark: SparkSession, shop: BrokerKit, tmp_path: Path) -> None:
    query = Query(spark, shop, tmp_path)
    send(shop, 0, 1000)
    query.run(failing=True)
    assert query.written() == list(range(1000)), "every task failed once, behind its rows"
    assert query.scope().staged_chunks == 0
    keys = [message.keys for topic in ("bills", "parcels") for message in shop.messages(topic)]
    assert Counter(len(key) for key in keys) == {1: 1000}
    assert all(message.queue.queue_id == 1 for message in shop.messages("bills") if int(message.body) % 5 == 0)

    for topic in ("bills", "orders"):
        with shop.admin() as admin:
            admin.update_topic(topic, queues=5)
    send(shop, 1000, 500)
    query.run()
    decided = query.scope().last
    assert query.written() == list(range(1500))

    query.forget_the_last_commit()
    query.run()
    assert query.scope().last == decided, "it was repeated, and changed nothing"
    assert query.written() == list(range(1500))

    query.forget_the_last_commit()
    with pytest.raises(Exception, match="a batch must give the same rows when it is repeated"):
        query.run(change="concat('0', cast(body as string))")
    query.run(change="concat('0', cast(body as string))", onRepeatedBatch="skip")
    assert query.written() == list(range(1500))
    owner = query.scope().owner

    # A deleted checkpoint: another query, which would write everything again.
    shutil.rmtree(query.checkpoint)
    began = time.monotonic()
    with pytest.raises(Exception) as failure:
        query.run()
    told = our_error(failure.value)
    assert isinstance(told, IllegalOperation)
    assert f"scope shop belongs to {owner}, not to " in str(told)
    assert "run `kappamq scope reset shop`" in str(told)
    text = str(failure.value)
    assert text.index("scope shop belongs to") < text.find("\tat org.apache") % (len(text) + 1)
    assert query.written() == list(range(1500))
    print(f"refused after {time.monotonic() - began:.1f} s")
    with shop.admin() as admin:
        assert admin.reset_scope("shop")
    query.run()
    assert len(query.written()) == 3000, "by the operator's order"


def test_brokers_that_cannot_are_named_at_the_start(spark: SparkSession, shop: BrokerKit, tmp_path: Path) -> None:
    def as_rocketmq_answers(_request: object) -> None:
        raise NotSupported("request type 710010 not supported")

    shop.call(lambda broker: broker.bursts.replace_handlers(dict.fromkeys(BATCH_CODES, as_rocketmq_answers)))
    send(shop, 0, 100)
    with pytest.raises(Exception) as failure:
        Query(spark, shop, tmp_path).run()
    told = our_error(failure.value)
    assert isinstance(told, NotSupported)
    assert "does not know batch transactions, only KappaMQ brokers do: write with at-least-once delivery" in str(told)
    rows = spark.range(10).selectExpr("cast(id as string) as body")
    given = {"nameservers": shop.nameserver, "topic": "bills", "delivery": "exactly-once", "transactionScope": "s"}
    with pytest.raises(Exception) as failure:
        rows.write.format("kappamq").options(**given).mode("append").save()
    told = our_error(failure.value)
    assert isinstance(told, ConfigError)
    assert "needs the option transactionNumber" in str(told)
    assert shop.bodies("bills") == []
