"""A project as plain streams in the tests' own Spark: what runs, what is told, and which row is named when one cannot be computed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kappamq import Message
from kappamq.errors import ConfigError, NoSuchTopic
from kappamq.spark.pipelines import project
from kappamq.spark.pipelines.failure import PipelineFailed
from kappamq.spark.pipelines.init import init
from kappamq.spark.pipelines.progress import Batch
from kappamq.spark.pipelines.project import Project
from kappamq.spark.pipelines.resident import Resident
from kappamq.testing import BrokerKit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
WAIT_S = 240.0


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerKit]:
    with BrokerKit(data=tmp_path / "broker") as kit, kit.admin() as admin:
        for topic in ("orders", "orders_checked", "orders_quarantine"):
            admin.create_topic(topic, queues=2)
        yield kit


@pytest.fixture
def shop(spark: SparkSession, broker: BrokerKit, tmp_path: Path) -> Iterator[Project]:
    """The template; its database lies in the test's folder, and its topics are named with their broker."""
    init(tmp_path / "shop", "orders")
    for file in (tmp_path / "shop" / "transformations").iterdir():
        text = file.read_text()
        text = text.replace('topic="orders"', f'topic="orders", nameservers="{broker.nameserver}"')
        file.write_text(text.replace('"topic":', f'"nameservers": "{broker.nameserver}", "topic":'))
    spark.sql(f"CREATE DATABASE shop LOCATION '{(tmp_path / 'warehouse').as_uri()}'")
    found = replace(project.find(tmp_path / "shop"), database="shop")
    yield found
    spark.sql("USE default")
    spark.sql("DROP DATABASE shop CASCADE")
    sys.modules.pop("orders", None)


def send(broker: BrokerKit, *bodies: bytes) -> None:
    with broker.producer() as producer:
        queue = sorted(producer.queues("orders"))[1]
        producer.send_batch([Message("orders", body) for body in bodies], queue=queue)


def order(number: int | str, quantity: int = 2) -> bytes:
    return json.dumps({"id": f"a{number}", "item": "tea", "quantity": quantity, "cents": 100}).encode()


def run(
    spark: SparkSession, shop: Project, enough: Callable[[Resident], bool], views_every_s: float = 0.0
) -> list[Batch]:
    """Until it is enough; raises what the pipeline failed with."""
    told: list[Batch] = []
    resident = Resident(spark, shop, trigger_s=0.2, views_every_s=views_every_s)
    until = time.monotonic() + WAIT_S
    resident.start()
    try:
        resident.follow(told.append, lambda: enough(resident) or time.monotonic() > until)
    finally:
        resident.stop()
    assert time.monotonic() < until, f"it took too long: {told}"
    return told


@pytest.mark.long
def test_orders_go_all_the_way(spark: SparkSession, shop: Project, broker: BrokerKit) -> None:
    send(broker, order(1), order(2), b"nonsense")

    def sold() -> list[int]:
        return [row["pieces"] for row in spark.read.table("shop.gold").collect()]

    def done(resident: Resident) -> bool:
        # A sink has its rows before the batch is reported.
        is_told = all(resident.rows.get(dataset) for dataset in ("bronze", "silver", "quarantine", "checked"))
        return is_told and sold() == [4]

    told = run(spark, shop, done)
    assert len(broker.bodies("orders_checked")) == 2
    (rejected,) = broker.messages("orders_quarantine")
    assert rejected.body == b"nonsense"
    assert {name: rejected.properties[f"origin-{name}"] for name in ("topic", "queueId", "queueOffset")} == {
        "topic": "orders", "queueId": "1", "queueOffset": "2"
    }  # fmt: skip
    bronze = next(batch for batch in told if batch.dataset == "bronze")
    assert (bronze.rows, bronze.lag) == (3, 0)
    assert {batch.dataset for batch in told if batch.rows} == {"bronze", "silver", "quarantine", "checked"}
    # The next run goes on: nothing is there twice.
    send(broker, order(3))
    run(spark, shop, lambda _resident: len(broker.bodies("orders_checked")) == 3 and sold() == [6])
    assert len(broker.bodies("orders_quarantine")) == 1
    assert spark.read.table("shop.bronze").count() == 4


def test_the_row_that_fails_is_named(spark: SparkSession, shop: Project, broker: BrokerKit) -> None:
    send(broker, *map(order, range(40)))
    run(spark, shop, lambda _resident: len(broker.bodies("orders_checked")) == 40)
    silver = shop.root / "transformations" / "silver.py"
    text = silver.read_text()
    silver.write_text(
        text.replace(
            'orders(spark.readStream.table("bronze"))',
            'orders(spark.readStream.table("bronze")).where("int(substr(id, 2)) >= 0")',
        )
    )
    send(broker, *map(order, range(40, 60)), order("x"), *map(order, range(60, 80)))
    with pytest.raises(
        PipelineFailed,
        match=r"^dataset silver: the row of topic orders, broker \S+, queue 1, offset 60: .*CAST_INVALID_INPUT.*'x'",
    ) as error:
        run(spark, shop, lambda _resident: False)
    assert "\n" not in str(error.value)
    assert "org.apache" not in str(error.value)
    # Once the definition is right the batch is done: nothing is lost.
    silver.write_text(text)
    run(spark, shop, lambda _resident: len(broker.bodies("orders_checked")) == 81)


@pytest.mark.long
def test_a_row_that_a_sink_refuses_is_named(spark: SparkSession, shop: Project, broker: BrokerKit) -> None:
    gold = shop.root / "transformations" / "gold.py"
    gold.write_text(
        gold.read_text().replace(
            'return as_messages(spark.readStream.table("silver"))',
            "return as_messages(spark.readStream.table(\"silver\")).selectExpr(\"if(keys = 'a3', '', body) as body\")",
        )
    )
    send(broker, *map(order, range(8)))
    with pytest.raises(
        PipelineFailed,
        match=r"^dataset checked: the row of topic orders, broker \S+, queue 1, offset 3: .*its body is empty",
    ):
        run(spark, shop, lambda _resident: False)


def test_what_is_wrong_with_a_definition_names_its_dataset(
    spark: SparkSession, shop: Project, broker: BrokerKit
) -> None:
    gold = shop.root / "transformations" / "gold.py"
    text = gold.read_text()
    gold.write_text(text.replace('spark.read.table("silver")', 'spark.read.table("sliver")'))
    with pytest.raises(PipelineFailed, match=r"dataset gold: \[TABLE_OR_VIEW_NOT_FOUND\].*sliver"):
        Resident(spark, shop).start()
    gold.write_text(text.replace('"topic": "orders_checked"', '"topic": "orders_chekced"'))
    with pytest.raises(NoSuchTopic, match=r"dataset checked: .*orders_chekced"):
        send(broker, order(1))
        run(spark, shop, lambda _resident: False)
    gold.write_text(text.replace('"delivery": "exactly-once"', '"delivery": "perhaps"'))
    with pytest.raises(ConfigError, match=r"dataset checked: .*delivery"):
        run(spark, shop, lambda _resident: False)
