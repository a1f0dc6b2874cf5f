"""What a replay refuses before Spark, and, with Spark: everything once, in order, however often it is run or killed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kappamq import Message
from kappamq.errors import ConfigError, IllegalOperation, NoSuchTopic
from kappamq.protocol.records import properties
from kappamq.spark.jobs import Replay, archive, replay
from kappamq.testing import BrokerKit
from tests.spark.jobs.copies.killing import killed, last_batch, staged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

QUEUES = 3


def sent(broker: BrokerKit, count: int) -> None:
    """Messages that say in which queue they are, and which one of it they are."""
    with broker.admin() as admin, broker.producer() as producer:
        admin.create_topic("orders", queues=QUEUES)
        admin.create_topic("again", queues=2)
        queues = sorted(producer.queues("orders"))
        for queue in queues:
            for start in range(0, count, 500):
                messages = [
                    Message(
                        "orders", b"%d/%d" % (queue.queue_id, number), tags="odd" if number % 2 else "even", keys=(f"k{number}",),
                        properties={"color": "red"}, sharding_key=f"s{queue.queue_id}",
                    )
                    for number in range(start, min(count, start + 500))
                ]  # fmt: skip
                producer.send_batch(messages, queue=queue)


def numbers(broker: BrokerKit) -> dict[int, list[int]]:
    """By queue of the source, in the order of the target's queues."""
    found: dict[int, list[int]] = {}
    for message in sorted(broker.messages("again"), key=lambda message: (message.queue.queue_id, message.queue_offset)):
        queue, _, number = message.body.partition(b"/")
        found.setdefault(int(queue), []).append(int(number))
    return found


def wanted(broker: BrokerKit, tmp_path: Path, **given: Any) -> Replay:
    given = {"name": "r", "target": "again", "topics": ("orders",), "state": tmp_path / "state", **given}
    return Replay(nameservers=broker.nameserver, **given)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerKit]:
    with BrokerKit(data=tmp_path / "broker") as kit:
        yield kit


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topics": ()}, "nothing to replay is named"),
        ({"target": "orders"}, "into itself"),
        ({"target": "no/topic"}, "target"),
        ({"name": "no/name"}, "name"),
        ({"per_second": 0.0}, "per_second"),
        ({"round_rows": 0}, "round_rows"),
        ({"read": {"columns": "body"}}, "columns is no limit"),
        ({"read": {"startingOffsets": "x"}}, "startingOffsets"),
        ({"archive": Path("/nowhere")}, "is not an archive"),
        ({"archive": Path("/nowhere"), "read": {"tags": "x"}}, "tags is for topics"),
    ],
)
def test_what_is_wrong_is_told_before_spark(
    broker: BrokerKit, tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    sent(broker, 1)
    with pytest.raises(ConfigError, match=said):
        wanted(broker, tmp_path, **given).check()


def test_topics_that_do_not_exist(broker: BrokerKit, tmp_path: Path) -> None:
    with pytest.raises(NoSuchTopic, match="again"):
        wanted(broker, tmp_path).check()
    sent(broker, 1)
    wanted(broker, tmp_path).check()
    with pytest.raises(NoSuchTopic, match="tea"):
        wanted(broker, tmp_path, topics=("tea",)).check()


def test_the_plan_is_what_there_is(broker: BrokerKit, tmp_path: Path) -> None:
    sent(broker, 20)
    plan = wanted(
        broker,
        tmp_path,
        read={"startingOffsets": '{"orders": {"%s/0": 5, "%s/1": 0, "%s/2": 20}}' % ((name(broker),) * 3)},
    ).plan()
    assert [(one.queue.queue_id, one.start, one.stop) for one in plan.ranges] == [(0, 5, 20), (1, 0, 20)]
    assert [target.topic for target in plan.lanes.values()] == ["again", "again"]
    assert len(set(plan.lanes.values())) == 2


def name(broker: BrokerKit) -> str:
    with broker.producer() as producer:
        sent_to: str = producer.queues("orders")[0].broker
        return sent_to


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_range_once_and_in_order(spark: SparkSession, broker: BrokerKit, tmp_path: Path) -> None:
    sent(broker, 100)
    job = wanted(broker, tmp_path, round_rows=130)
    told: list[tuple[int, int]] = []
    done = replay(spark, job, lambda *numbers: told.append(numbers))
    assert (done.written, done.read, done.rounds, done.planned) == (300, 300, 3, 300)
    assert told[0] == (0, 300)
    assert told[-1] == (300, 300)
    assert numbers(broker) == {queue: list(range(100)) for queue in range(QUEUES)}
    message = broker.messages("again")[0]
    assert message.properties["color"] == "red"
    assert (message.tags, message.keys) == ("even", ("k0",))
    assert message.properties[properties.SHARDING_KEY] == f"s{message.body[:1].decode()}"
    again = replay(spark, job)  # also with messages that came since
    assert (again.rounds, again.written, again.rounds_before) == (0, 0, 3)
    assert len(broker.bodies("again")) == 300
    with pytest.raises(ConfigError, match="where None, and now it is"):
        replay(spark, wanted(broker, tmp_path, where="true"))
    # A job whose folder is lost would write everything again.
    with pytest.raises(IllegalOperation, match="scope"):
        replay(spark, wanted(broker, tmp_path, state=tmp_path / "elsewhere"))
    assert len(broker.bodies("again")) == 300


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_filters_and_speed(spark: SparkSession, broker: BrokerKit, tmp_path: Path) -> None:
    sent(broker, 100)
    job = wanted(broker, tmp_path, read={"tags": "odd"}, where="queueId < 2 and queueOffset >= 50", per_second=50.0)
    waits: list[float] = []
    done = replay(spark, job, clock=lambda: 0.0, sleep=waits.append)
    assert (done.read, done.written, done.rounds) == (300, 50, 3)
    # About 100 messages a round, by a clock that stands still.
    assert waits == [0.0, pytest.approx(2.0, abs=0.1), pytest.approx(4.0, abs=0.1)]
    assert numbers(broker) == {queue: list(range(51, 100, 2)) for queue in range(2)}


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_an_archive(spark: SparkSession, broker: BrokerKit, tmp_path: Path) -> None:
    sent(broker, 60)
    archive(spark, tmp_path / "archive", nameservers=broker.nameserver, topics=["orders"], round_rows=100)
    job = wanted(broker, tmp_path, topics=(), archive=tmp_path / "archive", round_rows=100)
    with broker.admin() as admin:
        admin.delete_topic("orders")
    done = replay(spark, job)
    assert (done.written, done.rounds) == (180, 2)
    assert numbers(broker) == {queue: list(range(60)) for queue in range(QUEUES)}
    assert replay(spark, job).rounds == 0
    with pytest.raises(ConfigError, match="has nothing of tea"):
        wanted(broker, tmp_path, topics=("tea",), archive=tmp_path / "archive").check()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_killed_and_run_again(spark: SparkSession, broker: BrokerKit, tmp_path: Path) -> None:
    """The second kill comes while chunks are staged: they belong to a round that nobody has decided."""
    sent(broker, 1000)
    command = ["replay", "r", "again", "--topic", "orders", "--round", "100", "--state", str(tmp_path / "state")]
    killed(command, broker, tmp_path / "log", lambda: last_batch(broker, "r") >= 1)
    before = last_batch(broker, "r")
    killed(command, broker, tmp_path / "log", lambda: last_batch(broker, "r") > before and staged(broker, "r") > 0)
    assert last_batch(broker, "r") < 29, "it was killed too late to prove anything"
    done = replay(spark, wanted(broker, tmp_path, round_rows=100))
    assert done.rounds + done.rounds_before == 30
    assert done.rounds_before > before
    assert numbers(broker) == {queue: list(range(1000)) for queue in range(QUEUES)}
    assert staged(broker, "r") == 0
