"""The kit for tests, used as its users would."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import pytest

from kappamq import Message, ReceivedMessage
from kappamq.errors import ConfigError, KappaError
from kappamq.testing import BrokerKit
from tests.waiting import eventually


def test_delays_happen_when_time_is_turned_forward(kappamq_broker: BrokerKit) -> None:
    broker = kappamq_broker
    with broker.producer() as producer:
        producer.send(Message("tea", b"now"))
        producer.send(Message("tea", b"in ten seconds", delay_level=3))
        producer.send(Message("tea", b"in two hours", delay_level=18))
    assert broker.bodies("tea") == [b"now"]
    broker.clock.advance("9999ms")
    assert broker.bodies("tea") == [b"now"]
    broker.clock.advance("1ms")
    assert broker.bodies("tea") == [b"now", b"in ten seconds"]
    began = broker.clock.message_ms()
    broker.clock.advance("2h")
    messages = broker.messages("tea")
    assert [message.body for message in messages][2:] == [b"in two hours"]
    assert messages[2].stored_ms == began - 10_000 + 7_200_000, "at its time, not at the end of the step"
    assert broker.clock.message_ms() == began + 7_200_000
    assert broker.messages("no such topic") == []


def test_retries_happen_in_order(kappamq_broker: BrokerKit) -> None:
    """A listener that fails hears of the message again and again, at the times at which it would have."""
    broker = kappamq_broker
    heard: list[tuple[int, int]] = []
    done = threading.Event()

    def listener(message: ReceivedMessage) -> None:
        times = message.reconsume_times
        heard.append((times, broker.clock.message_ms()))
        if times < 3:
            raise ValueError("not yet")
        done.set()

    with (
        broker.producer() as producer,
        broker.consumer(group="g", topics="tea", listener=listener, consume_from="first"),
    ):
        start = broker.clock.message_ms()
        producer.send(Message("tea", b"x"))
        eventually(lambda: heard)
        broker.clock.advance("1h")
        assert done.wait(30)
    assert [times for times, _at in heard] == [0, 1, 2, 3]
    assert [at - start for _times, at in heard] == [0, 10_000, 40_000, 100_000]


def test_a_consumer_may_be_there_before_its_topic(kappamq_broker: BrokerKit) -> None:
    heard: list[int] = []

    def failing(message: ReceivedMessage) -> None:
        heard.append(message.reconsume_times)
        raise ValueError("never")

    with (
        kappamq_broker.producer() as producer,
        kappamq_broker.consumer(group="g", topics="q", listener=failing, reconsume_max=2, consume_from="first"),
    ):
        producer.send(Message("q", b"x"))
        kappamq_broker.clock.advance("5m")
        assert heard == [0, 1, 2]
        assert kappamq_broker.bodies("%DLQ%g") == [b"x"]


def test_what_has_expired_goes_and_the_rest_stays(tmp_path: Path) -> None:
    with (
        BrokerKit(data=tmp_path, properties={"mappedFileSizeCommitLog": "65536", "maxMessageSize": "32768"}) as broker,
        broker.producer() as producer,
    ):
        for _ in range(20):
            producer.send(Message("tea", random.randbytes(9000)))
        assert len(broker.messages("tea")) == 20
        broker.clock.advance("70h")
        assert len(broker.messages("tea")) == 20
        producer.send(Message("tea", b"late"))
        broker.clock.advance("30h")
        left = broker.messages("tea")
        assert 1 <= len(left) < 20, "the last file of the old ones may have got the new one"
        assert left[-1].body == b"late"
    assert tmp_path.exists()


def test_from_coroutines() -> None:
    async def test() -> None:
        async with BrokerKit() as broker:
            with await asyncio.to_thread(broker.producer) as producer:
                await asyncio.to_thread(producer.send, Message("tea", b"later", delay_level=1))
                await broker.clock.advance_async("1s")
                assert await asyncio.to_thread(broker.bodies, "tea") == [b"later"]

    asyncio.run(test())


def test_it_leaves_nothing_behind() -> None:
    kit = BrokerKit()
    with kit as broker:
        data = broker.call(lambda inside: inside.store.config.root)
        assert data.exists()
        assert broker.address
        with broker.admin() as admin:
            admin.create_topic("tea")
        with pytest.raises(KappaError, match="broker"):
            BrokerKit(data=data).__enter__()  # one broker for one folder
    assert not data.exists()


def test_clients_of_the_kit_share_its_clock(kappamq_broker: BrokerKit) -> None:
    kappamq_broker.clock.advance("5h")
    with kappamq_broker.producer() as producer:
        producer.send(Message("tea", b"x"))
    (message,) = kappamq_broker.messages("tea")
    assert message.born_ms == kappamq_broker.clock.message_ms()


def test_properties_as_python_has_them() -> None:
    given = {"defaultTopicQueueNums": 2, "autoCreateTopicEnable": True}
    with BrokerKit(properties=given) as kit, kit.producer() as producer:
        producer.send(Message("tea", b"x"))
        assert len(producer.queues("tea")) == 2
    with (
        pytest.raises(ConfigError, match=r"defaultTopicQueueNum.*defaultTopicQueueNums"),
        BrokerKit(properties={"defaultTopicQueueNum": 2}),
    ):
        pass


def test_a_consumer_without_topics_is_refused_as_everywhere(kappamq_broker: BrokerKit) -> None:
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'topics'"):
        kappamq_broker.consumer(group="g")  # type: ignore[call-arg]
