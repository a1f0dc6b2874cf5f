"""What dedup refuses before Spark, and, with Spark: of duplicates one, of everything else everything, also when it is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kappamq import Message
from kappamq.errors import ConfigError, NoSuchTopic
from kappamq.spark.jobs import Dedup, dedup
from kappamq.spark.pipelines.progress import Batch
from kappamq.testing import BrokerKit
from tests.spark.jobs.copies.killing import killed, last_batch, staged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerKit]:
    with BrokerKit(data=tmp_path / "broker") as kit, kit.admin() as admin:
        admin.create_topic("orders", queues=3)
        admin.create_topic("once", queues=2)
        yield kit


def sent(broker: BrokerKit, keys: list[str], start: int = 0) -> None:
    """A message for each key, none for a key that is empty; bodies differ."""
    with broker.producer() as producer:
        for at in range(0, len(keys), 200):
            part = [
                Message("orders", b"%d" % (start + number), keys=(key,) if key else ())
                for number, key in enumerate(keys[at : at + 200], at)
            ]
            producer.send_batch(part, queue=sorted(producer.queues("orders"))[at // 200 % 3])


def wanted(broker: BrokerKit, tmp_path: Path, **given: Any) -> Dedup:
    given = {"name": "d", "source": "orders", "target": "once", "by": "key", "state": tmp_path / "state", **given}
    return Dedup(nameservers=broker.nameserver, **given)


def keys_in_target(broker: BrokerKit) -> list[str]:
    return sorted(" ".join(message.keys) for message in broker.messages("once"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"by": "color"}, "by='color' must be id, key, body"),
        ({"within_s": 0.0}, "within_s"),
        ({"target": "orders"}, "into itself"),
        ({"name": "no/name"}, "name"),
        ({"on_data_loss": "perhaps"}, "onDataLoss"),
    ],
)
def test_what_is_wrong_is_told_before_spark(
    broker: BrokerKit, tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        wanted(broker, tmp_path, **given).check()


def test_topics_that_do_not_exist(broker: BrokerKit, tmp_path: Path) -> None:
    wanted(broker, tmp_path).check()
    for given in ({"source": "tea"}, {"target": "tea"}):
        with pytest.raises(NoSuchTopic, match="tea"):
            wanted(broker, tmp_path, **given).check()


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_of_duplicates_one_and_of_others_all(spark: SparkSession, broker: BrokerKit, tmp_path: Path) -> None:
    sent(broker, ["a", "b", "a", "", "", "c"])
    told: list[Batch] = []
    done = dedup(spark, wanted(broker, tmp_path), reported=told.append)
    assert (done.read, done.written) == (6, 5)
    assert keys_in_target(broker) == ["", "", "a", "b", "c"]
    assert sum(batch.rows for batch in told) == 6
    sent(broker, ["c", "d", "a"], start=10)  # the state is that of the run before
    assert dedup(spark, wanted(broker, tmp_path)).written == 1
    assert keys_in_target(broker) == ["", "", "a", "b", "c", "d"]
    assert dedup(spark, wanted(broker, tmp_path)).read == 0
    with pytest.raises(ConfigError, match="by 'key', and now it is 'id'"):
        dedup(spark, wanted(broker, tmp_path, by="id"))
    # By id they all differ: in a topic that has the copies, too.
    assert dedup(spark, wanted(broker, tmp_path, by="id", name="other")).written == 9


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_killed_and_run_again(spark: SparkSession, broker: BrokerKit, tmp_path: Path) -> None:
    """Every key comes four times, far apart, so that most repeats are in other batches than the first."""
    keys = [f"k{number % 500}" for number in range(2000)]
    sent(broker, keys)
    command = ["dedup", "d", "orders", "once", "--by", "key", "--round", "100", "--state", str(tmp_path / "state")]
    killed(command, broker, tmp_path / "log", lambda: last_batch(broker, "d") >= 1)
    before = last_batch(broker, "d")
    killed(command, broker, tmp_path / "log", lambda: last_batch(broker, "d") > before)
    done = dedup(spark, wanted(broker, tmp_path, batch_rows=100))
    assert 0 < done.read < 2000, "it was killed too late to prove anything"
    assert keys_in_target(broker) == sorted({*keys})
    assert staged(broker, "d") == 0
