"""Applications under test: their own clients, asyncio or not, started before their topics exist. Nobody sleeps here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kappamq import (
    RETRY,
    AsyncConsumer,
    AsyncLitePullConsumer,
    AsyncProducer,
    Consumer,
    Message,
    Producer,
    ReceivedMessage,
    Redeliver,
)
from kappamq.errors import ClientError
from kappamq.testing import BrokerKit
from tests.waiting import eventually


def in_loop(test: Callable[[BrokerKit], Coroutine[Any, Any, None]]) -> Callable[[BrokerKit], None]:
    """Run on an event loop of the test's own; the broker has another one."""

    def run(kappamq_broker: BrokerKit) -> None:
        asyncio.run(test(kappamq_broker))

    run.__name__ = test.__name__
    return run


class Shop:
    """An application: it takes orders, bills them, and ships what was billed; it knows nothing but an address."""

    def __init__(self, nameserver: str) -> None:
        self.producer = AsyncProducer(nameserver, group="shop")
        self.billing = AsyncConsumer(nameserver, group="billing", topics="orders", listener=self.bill)
        self.shipping = AsyncConsumer(nameserver, group="shipping", topics="bills", listener=self.ship)
        self.billed: list[tuple[str, int]] = []
        self.shipped: list[str] = []

    async def __aenter__(self) -> Shop:
        await self.billing.start()
        await self.shipping.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in (self.billing, self.shipping, self.producer):
            await client.close()

    async def order(self, text: str, **when: Any) -> None:
        await self.producer.send(Message("orders", text.encode(), **when))

    async def bill(self, message: ReceivedMessage) -> Redeliver | None:
        self.billed.append((message.text, message.reconsume_times))
        if message.text == "bad":
            return RETRY
        await self.producer.send(Message("bills", message.body, delay_level=5))  # ships a minute later
        return None

    async def ship(self, message: ReceivedMessage) -> None:
        self.shipped.append(message.text)


@in_loop
async def test_an_asyncio_application_whose_consumers_start_before_their_topics(kit: BrokerKit) -> None:
    async with Shop(kit.nameserver) as shop:
        await shop.order("tea")
        await kit.clock.advance_async("5m")
        assert shop.billed == [("tea", 0)]
        assert shop.shipped == ["tea"]


@in_loop
async def test_settling_lets_no_time_pass(kit: BrokerKit) -> None:
    async with Shop(kit.nameserver) as shop:
        began = kit.clock.message_ms()
        await shop.order("tea")
        await shop.order("cake", delay_level=1)
        await kit.settle_async()
        assert (shop.billed, shop.shipped) == ([("tea", 0)], [])
        assert kit.clock.message_ms() == began
        await kit.clock.advance_async("1s")
        assert shop.billed == [("tea", 0), ("cake", 0)]
        await kit.clock.advance_async("59s")
        assert shop.shipped == ["tea"]
        await kit.clock.advance_async("1s")
        assert shop.shipped == ["tea", "cake"]


@in_loop
async def test_retries_of_an_application_happen_in_virtual_time(kit: BrokerKit) -> None:
    async with Shop(kit.nameserver) as shop:
        await shop.order("bad")
        await kit.clock.advance_async("10s")
        assert shop.billed == [("bad", 0), ("bad", 1)]
        await kit.clock.advance_async("1d")
        assert shop.billed == [("bad", times) for times in range(17)]
        assert kit.bodies("%DLQ%billing") == [b"bad"]


@in_loop
async def test_in_order_the_pauses_of_a_queue_pass_with_virtual_time(kit: BrokerKit) -> None:
    tried: list[tuple[str, int]] = []

    async def never(message: ReceivedMessage) -> Redeliver | None:
        tried.append((message.text, kit.clock.message_ms() - began))
        return RETRY if message.text == "bad" else None

    began = kit.clock.message_ms()
    consumer = AsyncConsumer(
        kit.nameserver,
        group="g",
        topics="steps",
        listener=never,
        ordered=True,
        suspend_ms=3_600_000,
        reconsume_max=2,
    )
    async with consumer, AsyncProducer(kit.nameserver) as producer:
        for text in ("bad", "good"):
            await producer.send(Message("steps", text.encode()), key="one queue")
        await kit.settle_async()
        assert tried == [("bad", 0)]
        await kit.clock.advance_async("1d")
        hour = 3_600_000
        assert tried == [("bad", 0), ("bad", hour), ("bad", 2 * hour), ("good", 2 * hour)]
        assert kit.bodies("%DLQ%g") == [b"bad"]


@in_loop
async def test_factories_for_asyncio(kit: BrokerKit) -> None:
    heard: list[str] = []

    async def listen(message: ReceivedMessage) -> None:
        heard.append(message.text)

    async with (
        kit.async_consumer(group="g", topics="tea", listener=listen),
        kit.async_producer() as producer,
        kit.async_admin() as admin,
        kit.async_pull_consumer(group="by-hand") as by_hand,
        kit.async_lite_pull_consumer(group="lite", topics="tea", consume_from="first") as lite,
        kit.async_transaction_producer(group="t", check=lambda message: True) as transactions,
    ):
        await producer.send(Message("tea", b"cup"))
        async with transactions.transaction(Message("tea", b"pot")):
            pass
        await kit.settle_async()
        assert sorted(heard) == ["cup", "pot"]
        assert "tea" in await admin.topics()
        assert sum([await by_hand.max_offset(queue) for queue in await by_hand.queues("tea")]) == 2
        assert sorted(message.text for message in await lite.poll(5)) == ["cup", "pot"]


@in_loop
async def test_whoever_iterates_is_waited_for(kit: BrokerKit) -> None:
    seen: list[str] = []
    slow = asyncio.Event()

    async def read() -> None:
        async with AsyncConsumer(kit.nameserver, group="g", topics="tea") as consumer:
            async for message in consumer:
                await slow.wait()
                seen.append(message.text)

    reading = asyncio.create_task(read())
    async with AsyncProducer(kit.nameserver) as producer:
        await producer.send(Message("tea", b"cup"))
        settling = asyncio.create_task(kit.settle_async())
        done, _ = await asyncio.wait([settling], timeout=0.5)
        assert not done
        slow.set()
        await settling
        assert seen == ["cup"]
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


@in_loop
async def test_who_settles_does_not_wait_for_itself(kit: BrokerKit) -> None:
    async with AsyncProducer(kit.nameserver) as producer:
        await producer.send(Message("tea", b"cup"))
        async with AsyncConsumer(kit.nameserver, group="g", topics="tea") as consumer:
            async for message in consumer:
                await kit.settle_async()
                assert message.text == "cup"
                break
        async with AsyncLitePullConsumer(kit.nameserver, group="lite", topics="tea", consume_from="first") as reader:
            async for _ in reader:
                await kit.settle_async()
                break


def test_blocking_clients_of_an_application_count_too(kappamq_broker: BrokerKit) -> None:
    heard: list[str] = []
    # By another name of the same address, too.
    address = kappamq_broker.nameserver.replace("127.0.0.1", "localhost")
    with Consumer(address, group="g", topics="tea", listener=lambda message: heard.append(message.text)):
        with Producer(address) as producer:
            producer.send(Message("tea", b"cup"))
            producer.send(Message("tea", b"pot", delay=30))
        kappamq_broker.settle()
        assert heard == ["cup"]
        kappamq_broker.clock.advance("30s")
        assert heard == ["cup", "pot"]
    (first, _) = kappamq_broker.messages("tea")
    assert first.born_ms == kappamq_broker.clock.message_ms() - 30_000, "clients by address share the clock"


def test_two_members_share_a_topic_that_comes_later(kappamq_broker: BrokerKit) -> None:
    heard: list[str] = []

    def member() -> Consumer:
        return Consumer(
            kappamq_broker.nameserver, group="g", topics="tea", listener=lambda message: heard.append(message.text)
        )

    with member() as one, member() as other, kappamq_broker.producer() as producer:
        producer.send(Message("tea", b"first"))
        kappamq_broker.settle()
        assert heard == ["first"]
        assert len({*one.assigned, *other.assigned}) == len(one.assigned) + len(other.assigned)
        for number in range(20):
            producer.send(Message("tea", b"%d" % number))
        kappamq_broker.settle()
        assert sorted(heard) == sorted(["first", *map(str, range(20))])


def test_a_listener_that_hangs_is_named(caplog: pytest.LogCaptureFixture) -> None:
    entered, released = threading.Event(), threading.Event()

    def hang(_: ReceivedMessage) -> None:
        entered.set()
        released.wait(60)

    with (
        BrokerKit(patience=0.1) as kit,
        kit.consumer(group="g", topics="tea", listener=hang, consume_from="first"),
        kit.producer() as producer,
    ):

        def why() -> str:
            try:
                kit.settle()
            except TimeoutError as error:
                return str(error)
            return ""

        producer.send(Message("tea", b"cup"))
        assert entered.wait(30)
        # A little later than the listener: a request that was still out may be named first.
        eventually(lambda: why() == "not settled after 0.1 s: a consumer of group g has 1 messages in flight")
        began = kit.clock.message_ms()
        kit.clock.advance("1s")
        assert kit.clock.message_ms() == began + 1000
        assert "message time was advanced before everything had settled: " in caplog.text
        released.set()
        eventually(lambda: why() == "")


def test_paused_queues_and_topics_that_never_come_hold_nobody_up(kappamq_broker: BrokerKit) -> None:
    heard: list[str] = []
    with (
        kappamq_broker.consumer(
            group="g", topics="tea", listener=lambda message: heard.append(message.text), consume_from="first"
        ) as consumer,
        Consumer(kappamq_broker.nameserver, group="h", topics="never", listener=print),
        kappamq_broker.producer() as producer,
    ):
        kappamq_broker.settle()
        consumer.pause()
        producer.send(Message("tea", b"cup"))
        kappamq_broker.settle()
        assert heard == []
        consumer.resume()
        kappamq_broker.settle()
        assert heard == ["cup"]


@in_loop
async def test_waiting_for_clients_on_their_own_loop_is_refused(kit: BrokerKit) -> None:
    kit.settle()  # nobody lives on this loop yet
    async with AsyncProducer(kit.nameserver) as producer:
        await producer.send(Message("tea", b"cup"))
        with pytest.raises(ClientError, match=r"await settle_async\(\) instead"):
            kit.settle()
        with pytest.raises(ClientError, match=r"await advance_async\(\) instead"):
            kit.clock.advance("1s")
