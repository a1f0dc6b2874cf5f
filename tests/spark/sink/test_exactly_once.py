"""Tasks stage, a committer decides, and what is repeated changes nothing; without Spark, which the last test has."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from kappamq.errors import ConfigError, IllegalOperation, NoSuchTopic, NotConnected, TransactionFailed
from kappamq.spark.sink.exactly_once import ExactlyOnceBatchWriter, Staged, abort, batch_of_task, commit, stage_rows
from kappamq.spark.sink.options import ExactlyOnce, WriteOptions
from kappamq.spark.topic.source import KappaMQSource
from kappamq.testing import BrokerKit
from tests.client.announcing import announced
from tests.interop.process import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def tea(kappamq_broker: BrokerKit) -> BrokerKit:
    with kappamq_broker.admin() as admin:
        admin.create_topic("tea", queues=4)
        admin.create_topic("coffee", queues=2)
    return kappamq_broker


def options(broker: BrokerKit, topic: str | None = "tea", **changed: Any) -> WriteOptions:
    return WriteOptions(nameservers=broker.nameserver, topic=topic, exactly_once=ExactlyOnce("copy", 0, **changed))


def staged(given: WriteOptions, attempt: str = "a", number: int = 0, /, **columns: Any) -> Staged:
    """What a task has staged, as Spark brings it to the committer."""
    done = stage_rows(given, "me", number, attempt, iter([pa.record_batch(columns)]))
    found: Staged = pickle.loads(pickle.dumps(done))
    return found


def left_over(broker: BrokerKit) -> int:
    with broker.admin() as admin:
        return sum(scope.staged_chunks for scope in admin.scopes()["copy"].values())


def test_tasks_of_a_batch_are_published_as_one(tea: BrokerKit) -> None:
    given = options(tea, topic=None)
    parts = [staged(given, body=[b"%d" % n], topic=["tea" if n % 2 else "coffee"]) for n in range(6)]
    assert tea.bodies("tea") == tea.bodies("coffee") == []
    commit(given, 0, parts, streaming=True)
    assert (sorted(tea.bodies("tea")), sorted(tea.bodies("coffee"))) == ([b"1", b"3", b"5"], [b"0", b"2", b"4"])
    commit(given, 0, parts, streaming=True)  # its answer was lost
    abort(given, parts)  # as Spark does when a commit seems to have failed
    assert len(tea.bodies("tea")) == 3
    assert left_over(tea) == 0


def test_a_second_attempt_of_a_task_does_not_count(tea: BrokerKit) -> None:
    given = options(tea)
    first, second, other = (staged(given, body=[body]) for body in (b"x", b"x", b"y"))
    assert first.ticket == second.ticket
    commit(given, 0, [second, other], streaming=True)
    assert sorted(tea.bodies("tea")) == [b"x", b"y"]
    assert left_over(tea) == 0


def test_a_new_run_of_a_batch_drops_what_the_last_one_staged(tea: BrokerKit) -> None:
    given = options(tea)
    before = staged(given, "before", body=[b"lost"])
    again = staged(given, "again", body=[b"kept"])
    with pytest.raises(TransactionFailed, match=r"attempt before at batch 0 .* was replaced"):
        staged(given, "before", body=[b"zombie"])
    with pytest.raises(TransactionFailed, match="not open"):
        commit(given, 0, [before], streaming=True)
    abort(given, [before, None])
    commit(given, 0, [again], streaming=True)
    assert tea.bodies("tea") == [b"kept"]


def test_an_abort_drops_everything(tea: BrokerKit) -> None:
    given = options(tea)
    part = staged(given, body=[b"x"])
    assert left_over(tea) == 1
    abort(given, [part, None])
    tea.call(lambda broker: broker.delivery.batches.participant.settle("copy"))
    with pytest.raises(TransactionFailed, match="not open"):
        commit(given, 0, [part], streaming=True)
    abort(given, [])
    assert tea.bodies("tea") == []


def test_a_repeated_batch_is_compared(tea: BrokerKit) -> None:
    given = options(tea)
    commit(given, 0, [staged(given, body=["a"]), staged(given, body=["b", "c"])], streaming=True)
    again = [staged(given, "b", body=["c"]), staged(given, "b", body=["a", "b"])]
    assert all(part.ticket.transaction is None and not part.part.chunks for part in again)
    commit(given, 0, again, streaming=True)
    for wrong in (["a", "b"], ["a", "b", "d"]):
        with pytest.raises(IllegalOperation, match="a batch must give the same rows when it is repeated"):
            commit(given, 0, [staged(given, "c", body=wrong)], streaming=True)
    skipping = options(tea, skip_repeated=True)
    nothing = staged(skipping, "d", body=["something else"])
    assert nothing.part.rows == 0
    commit(skipping, 0, [nothing], streaming=True)
    assert sorted(tea.bodies("tea")) == [b"a", b"b", b"c"]


def test_a_repeated_batch_does_not_need_its_topic(tea: BrokerKit) -> None:
    given = options(tea)
    commit(given, 0, [staged(given, body=[b"x"], queueId=pa.array([3], pa.int32()))], streaming=True)
    with tea.admin() as admin:
        admin.delete_topic("tea")
    commit(given, 0, [staged(given, "b", body=[b"x"], queueId=pa.array([3], pa.int32()))], streaming=True)


def test_an_empty_batch(tea: BrokerKit) -> None:
    given = options(tea)
    commit(given, 0, [staged(given, body=pa.array([], pa.binary()))], streaming=True)
    assert staged(given, "b", body=[b"x"]).ticket.transaction is None


def test_what_another_run_decided_while_tasks_began(tea: BrokerKit) -> None:
    given = options(tea)
    slow = staged(given, "a", body=[b"x"])
    decided = [staged(given, "b", body=[b"x"]), staged(given, "b", body=[b"y"])]
    commit(given, 0, decided, streaming=True)
    late = staged(given, "a", body=[b"y"])
    commit(given, 0, [slow, late], streaming=True)
    assert sorted(tea.bodies("tea")) == [b"x", b"y"]


def test_tasks_of_different_transactions_are_not_decided(tea: BrokerKit) -> None:
    given = options(tea)
    first = staged(given, body=[b"x"])
    abort(given, [first])  # as the coordinator does after an hour
    with pytest.raises(TransactionFailed, match="it took longer than the brokers keep an undecided one"):
        commit(given, 0, [first, staged(given, body=[b"y"])], streaming=True)
    for lost in ([], [None]):
        with pytest.raises(TransactionFailed, match="without the messages of all its tasks"):
            commit(given, 0, lost, streaming=True)
    assert tea.bodies("tea") == []


def test_a_topic_that_is_gone_and_a_bad_row_stage_nothing(tea: BrokerKit, caplog: pytest.LogCaptureFixture) -> None:
    given = options(tea)
    with pytest.raises(NoSuchTopic, match="'milk'"):
        staged(options(tea, topic=None), body=[b"x"], topic=["milk"])
    with pytest.raises(ConfigError, match="row 1 of this task cannot be a message: its body is null"):
        staged(given, body=[b"x", None])
    part = staged(given, body=[b"x", b"y"])
    with tea.admin() as admin:
        admin.delete_topic("tea")
    commit(given, 0, [part], streaming=True)
    assert "messages that no topic took any more: {'tea': 2}" in caplog.text


def test_a_writer_of_a_batch(tea: BrokerKit) -> None:
    writer = ExactlyOnceBatchWriter(options(tea, owner="me"))
    message = pickle.loads(pickle.dumps(writer)).write(iter([pa.record_batch({"body": [b"x"]})]))
    pickle.loads(pickle.dumps(writer)).commit([message])
    writer.abort([message])
    assert tea.bodies("tea") == [b"x"]
    assert isinstance(message, Staged)
    assert message.ticket.owner == "me"


def test_a_commit_does_not_need_all_brokers(tea: BrokerKit) -> None:
    """Spark unpickles the source for it, in another process; for the tasks it makes a new one, and then all must be there."""
    options = {"nameservers": tea.nameserver, "topic": "tea", "delivery": "exactly-once", "transactionScope": "copy"}
    schema = StructType([StructField("body", BinaryType())])
    gone = f"127.0.0.1:{free_port()}"

    async def test() -> None:
        async with announced(tea.nameserver, "gone", gone):
            source = KappaMQSource(options)
            with pytest.raises(NotConnected, match=f"broker gone at {gone} cannot be reached"):
                await asyncio.to_thread(source.streamWriter, schema, False)
            source._process -= 1
            assert await asyncio.to_thread(source.streamWriter, schema, False)

    asyncio.run(test())


def test_outside_of_a_stream_nobody_knows_the_batch() -> None:
    with pytest.raises(ConfigError, match="does not tell its tasks which batch of which query"):
        batch_of_task()


@pytest.mark.spark
def test_a_batch_write_of_spark(spark: SparkSession, tea: BrokerKit) -> None:
    rows = spark.range(0, 5000, 1, 3).selectExpr("concat('cup ', id) as body")
    given = {"nameservers": tea.nameserver, "topic": "tea", "delivery": "exactly-once", "transactionScope": "copy"}
    for number in (0, 0, 1):
        rows.write.format("kappamq").options(**given, transactionNumber=str(number)).mode("append").save()
    assert len(tea.bodies("tea")) == 2 * 5000
    assert len(set(tea.bodies("tea"))) == 5000
    assert left_over(tea) == 0
    with tea.admin() as admin:
        (scope,) = admin.scopes()["copy"].values()
    assert (scope.last, scope.owner) == (1, "kappamq-spark-writer")
