"""Transactions of a plain program, with real brokers: ours by default, Apache's with INTEROP_TARGETS=apache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kappamq import Decision, TransactionProducer
from kappamq.client import Admin, PullConsumer
from kappamq.client.producer.transaction import AsyncTransactionProducer
from kappamq.errors import ConfigError, TransactionFailed
from kappamq.message import Message, ReceivedMessage
from kappamq.testing import BrokerKit
from tests.client.servers import started
from tests.interop import targets
from tests.interop.targets import Target
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(180)
Fresh = Callable[[str], str]


# -- time that can be turned forward ---------------------------------------------------------------------------------------


@pytest.fixture
def kit() -> Iterator[BrokerKit]:
    with BrokerKit() as broker:
        yield broker


def test_the_whole_walk(kit: BrokerKit) -> None:
    done: set[str] = set()
    asked: list[ReceivedMessage] = []

    def check(message: ReceivedMessage) -> Decision:
        asked.append(message)
        return Decision.COMMIT if message.message_id in done else Decision.UNKNOWN

    with kit.transaction_producer(group="shop", check=check) as producer:
        with producer.transaction(Message("orders", b"tea")) as t:
            assert kit.bodies("orders") == []
            assert t.result is not None
            assert (t.message_id, t.message.body) == (t.result.message_id, b"tea")
        assert (t.decision, t.confirmed, kit.bodies("orders")) == (Decision.COMMIT, True, [b"tea"])
        with pytest.raises(ZeroDivisionError), producer.transaction(Message("orders", b"broken cup")):
            1 / 0  # noqa: B018
        with producer.transaction(Message("orders", b"no cup")) as t:
            t.rollback()
        with producer.transaction(Message("orders", b"late cup")) as t:
            t.leave_open()
        kit.clock.advance("10s")
        assert [message.body for message in asked] == [b"late cup"]
        kit.clock.advance("30s")
        assert len(asked) == 2
        done.add(t.message_id)
        kit.clock.advance("1h")
        assert len(asked) == 3
        assert kit.bodies("orders") == [b"tea", b"late cup"]
        assert producer.send(Message("orders", b"plain")).ok


def test_a_listener(kit: BrokerKit) -> None:
    class Shop:
        def execute(self, message: Message, message_id: str) -> Any:
            if message.body == b"crash":
                raise OSError("the database is away")
            return message.body == b"good"

        def check(self, message: ReceivedMessage) -> Any:
            return message.body == b"crash"

    with kit.transaction_producer(group="shop", listener=Shop()) as producer:
        assert producer.send_in_transaction(Message("orders", b"good")).decision is Decision.COMMIT
        assert producer.send_in_transaction(Message("orders", b"bad")).decision is Decision.ROLLBACK
        with pytest.raises(OSError, match="away") as raised:
            producer.send_in_transaction(Message("orders", b"crash"))
        assert "`check` will decide" in raised.value.__notes__[0]
        assert producer.send_in_transaction(Message("orders", b"own"), lambda message, key: None).confirmed is False
        kit.clock.advance("10s")
        assert kit.bodies("orders") == [b"good", b"crash"]
    with (
        kit.transaction_producer(group="shop", check=lambda message: None) as producer,
        pytest.raises(ConfigError, match="nothing to execute"),
    ):
        producer.send_in_transaction(Message("orders", b"x"))


def test_another_process_of_the_group_answers_for_one_that_died(kit: BrokerKit) -> None:
    database: set[str] = set()
    first = kit.transaction_producer(group="shop", check=lambda message: None)
    with first.transaction(Message("orders", b"paid")) as paid:
        database.add(paid.message_id)
        paid.leave_open()  # as if it had died before the end
    with first.transaction(Message("orders", b"never paid")) as t:
        t.leave_open()
    first.close()
    kit.clock.advance("1h")
    assert kit.bodies("orders") == [], "nobody was there to be asked"
    with kit.transaction_producer(group="shop", check=lambda message: message.message_id in database):
        kit.clock.advance("1m")
        assert kit.bodies("orders") == [b"paid"]
        assert kit.call(lambda broker: len(broker.delivery.halves.halves)) == 0


def test_who_takes_longer_than_the_broker_waits_still_decides(kit: BrokerKit) -> None:
    """It is asked meanwhile, and says nothing yet: `check` is not bothered with what is still going on here."""
    with kit.transaction_producer(group="shop", check=lambda message: pytest.fail("asked")) as producer:
        with producer.transaction(Message("orders", b"slow")) as t:
            kit.clock.advance("2m")
        assert (t.confirmed, kit.bodies("orders")) == (True, [b"slow"])
        with pytest.raises(TransactionFailed, match="given up"), producer.transaction(Message("orders", b"too slow")):
            kit.clock.advance("1h")
        assert kit.bodies("orders") == [b"slow"]


def test_it_is_a_producer_of_its_own_kind() -> None:
    producer = TransactionProducer("127.0.0.1:1", group="g", check=print)
    assert isinstance(producer.inner, AsyncTransactionProducer)
    producer.close()


# -- any broker ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=targets.chosen())
def impatient(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A broker that asks soon."""
    properties = {"transactionTimeOut": 500, "transactionCheckInterval": 1000}
    target = started(request.param, tmp_path_factory, properties)
    yield target
    target.kill()


def everything(server: Target, topic: str) -> list[ReceivedMessage]:
    with PullConsumer(server.nameserver, group="reader") as consumer:
        return [m for queue in consumer.queues(topic) for m in consumer.read(queue, consumer.min_offset(queue))]


def test_with_any_broker(impatient: Target, fresh: Fresh, tmp_path: Path) -> None:
    """Committed, rolled back, asked about: the same with Apache's broker and with ours."""
    topic, group = fresh("T"), fresh("P")
    with Admin(impatient.nameserver) as admin:
        admin.create_topic(topic, queues=2)
    asked: dict[bytes, int] = {}
    lock = threading.Lock()

    def check(message: ReceivedMessage) -> Decision:
        with lock:
            count = asked[message.body] = asked.get(message.body, 0) + 1
        assert (message.topic, message.keys) == (topic, ("k",))
        if message.body == b"yes":
            return Decision.COMMIT if count > 1 else Decision.UNKNOWN
        return Decision.ROLLBACK

    with TransactionProducer(impatient.nameserver, group=group, check=check) as producer:
        for body in (b"direct", b"raised", b"yes", b"no"):
            try:
                with producer.transaction(Message(topic, body, keys="k", properties={"cup": "3"})) as t:
                    if body in (b"yes", b"no"):
                        t.leave_open()
                    if body == b"raised":
                        raise ValueError("a test")
            except ValueError:
                pass
            assert t.confirmed == (body in (b"direct", b"raised"))
        eventually(lambda: len(everything(impatient, topic)) == 2, timeout=90)
        eventually(lambda: asked.get(b"no"), timeout=60)
    received = everything(impatient, topic)
    assert sorted(message.body for message in received) == [b"direct", b"yes"]
    assert asked[b"yes"] >= 2
    assert all(message.properties["cup"] == "3" and message.sys_flag & 0xC == 8 for message in received)
