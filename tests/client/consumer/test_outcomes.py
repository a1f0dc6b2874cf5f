from __future__ import annotations

import asyncio
import contextlib

import pytest

from kappamq.client.consumer.inbox import Delivery, Inbox
from kappamq.client.consumer.outcomes import Broadcast, Concurrent, InOrder
from kappamq.errors import BrokerError
from kappamq.message import RETRY, Message, ReceivedMessage, Redeliver
from kappamq.testing import BrokerKit
from tests.client.loop import on_loop
from tests.client.messages import QUEUE, held, message
from tests.waiting import eventually, eventually_async


class Brokers:
    """Where messages go back to; refuses as often as it is told to."""

    group = "g"

    def __init__(self, refuse: int = 0, error: Exception | None = None, reconsume_max: int = 16) -> None:
        self.refuse = refuse
        self.reconsume_max = reconsume_max
        self._error = error or BrokerError("not today")
        self.given_back: list[tuple[int, int]] = []
        self.buried: list[int] = []

    async def give_back(self, message: ReceivedMessage, level: int = 0) -> None:
        await self._maybe()
        self.given_back.append((message.queue_offset, level))

    async def bury(self, message: ReceivedMessage) -> None:
        await self._maybe()
        self.buried.append(message.queue_offset)

    async def _maybe(self) -> None:
        await asyncio.sleep(0)
        if self.refuse:
            self.refuse -= 1
            raise self._error


def taken(inbox: Inbox, count: int) -> Delivery:
    """A queue with `count` messages, and the delivery of all of them."""
    queue = held(count)
    inbox.put(queue, [message(n) for n in range(count)])
    delivery = inbox.take(count)
    assert delivery is not None
    return delivery


def offsets(delivery: Delivery | None) -> list[tuple[int, int]]:
    return [] if delivery is None else [(one.queue_offset, one.reconsume_times) for one in delivery.messages]


@on_loop
async def test_side_by_side_what_is_done_is_acknowledged_and_the_rest_given_back() -> None:
    inbox, brokers = Inbox(), Brokers()
    rule = Concurrent(inbox, brokers, 0.01)  # type: ignore[arg-type]
    good, bad = taken(inbox, 3), taken(inbox, 4)
    rule.succeeded(good)
    await rule.failed(bad, Redeliver(done=1, level=7))
    assert (good.queue.committable, bad.queue.committable) == (3, 4)
    assert brokers.given_back == [(1, 7), (2, 7), (3, 7)]


@on_loop
async def test_side_by_side_what_no_broker_takes_comes_again_and_holds_the_offset() -> None:
    inbox, brokers = Inbox(), Brokers(refuse=1)
    rule = Concurrent(inbox, brokers, 0.01)  # type: ignore[arg-type]
    bad = taken(inbox, 2)
    await rule.failed(bad, RETRY)
    assert bad.queue.committable == 0
    await eventually_async(lambda: len(inbox) == 1)
    assert offsets(inbox.take(5)) == [(0, 0)]  # that nobody took it back is not the message's fault
    assert brokers.given_back == [(1, 0)]


@on_loop
async def test_side_by_side_a_queue_that_is_anothers_gives_nothing_back() -> None:
    inbox, brokers = Inbox(), Brokers()
    bad = taken(inbox, 1)
    inbox.drop(bad.queue)
    await Concurrent(inbox, brokers, 0.01).failed(bad, RETRY)  # type: ignore[arg-type]
    assert brokers.given_back == []


@on_loop
async def test_in_order_what_failed_comes_first_after_a_pause() -> None:
    inbox = Inbox(ordered=True)
    rule = InOrder(inbox, Brokers(), 0.01, None)  # type: ignore[arg-type]
    bad = taken(inbox, 3)
    inbox.put(bad.queue, [message(3)])
    await rule.failed(bad, Redeliver(done=1))
    assert bad.queue.suspended
    assert inbox.take() is None
    await eventually_async(lambda: not bad.queue.suspended)
    again = inbox.take(5)
    assert offsets(again) == [(1, 1), (2, 1), (3, 0)]
    assert again is not None
    rule.succeeded(again)
    assert not inbox.is_out(QUEUE)
    assert bad.queue.committable == 3


@on_loop
async def test_in_order_the_listener_may_choose_the_pause() -> None:
    inbox = Inbox(ordered=True)
    bad = taken(inbox, 1)
    await InOrder(inbox, Brokers(), 3600, None).failed(bad, Redeliver(pause_ms=0))  # type: ignore[arg-type]
    await eventually_async(lambda: len(offsets(inbox.take())) == 1)


@on_loop
async def test_in_order_too_many_failures_end_in_a_dead_letter_and_the_queue_goes_on() -> None:
    inbox, brokers = Inbox(ordered=True), Brokers(refuse=1)
    rule = InOrder(inbox, brokers, 0.0, 2)  # type: ignore[arg-type]
    delivery: Delivery | None = taken(inbox, 1)
    assert delivery is not None
    queue = delivery.queue
    inbox.put(queue, queue.add([message(1)], 2))
    for _ in range(4):  # two tries again, one funeral that fails, one that does not
        assert delivery is not None
        await rule.failed(delivery, RETRY)
        await eventually_async(lambda: not queue.suspended)
        delivery = inbox.take()
    assert brokers.buried == [0]
    assert offsets(delivery) == [(1, 0)]
    assert queue.committable == 1


@on_loop
async def test_in_order_a_listener_may_send_a_message_to_the_dead_letters() -> None:
    inbox, brokers = Inbox(ordered=True), Brokers()
    bad = taken(inbox, 2)
    await InOrder(inbox, brokers, 3600, None).failed(bad, Redeliver(level=-1))  # type: ignore[arg-type]
    assert (brokers.buried, bad.queue.committable, bad.queue.suspended) == ([0, 1], 2, False)


@on_loop
async def test_in_order_nothing_of_anothers_queue_is_buried() -> None:
    inbox, brokers = Inbox(ordered=True), Brokers()
    bad = taken(inbox, 1)
    inbox.drop(bad.queue)
    await InOrder(inbox, brokers, 0.0, 0).failed(bad, RETRY)  # type: ignore[arg-type]
    assert brokers.buried == []
    assert not inbox.is_out(QUEUE)


@on_loop
async def test_a_message_comes_again_whatever_goes_wrong_when_it_is_given_back() -> None:
    inbox = Inbox()
    bad = taken(inbox, 1)
    await Concurrent(inbox, Brokers(1, RuntimeError("a bug")), 0.0).failed(bad, RETRY)  # type: ignore[arg-type]
    await eventually_async(lambda: offsets(inbox.take()) == [(0, 0)])


@pytest.mark.parametrize("error", [RuntimeError("a bug"), asyncio.CancelledError()], ids=["bug", "cancelled"])
@on_loop
async def test_in_order_the_queue_goes_on_whatever_goes_wrong(error: Exception) -> None:
    inbox = Inbox(ordered=True)
    bad = taken(inbox, 2)
    inbox.put(bad.queue, [message(2)])
    with contextlib.suppress(asyncio.CancelledError):
        await InOrder(inbox, Brokers(1, error), 0.0, 0).failed(bad, RETRY)  # type: ignore[arg-type]
    assert not inbox.is_out(QUEUE)
    await eventually_async(lambda: not bad.queue.suspended)
    assert offsets(inbox.take(5)) == [(0, 0), (1, 0), (2, 0)]


@on_loop
async def test_in_order_a_message_that_cannot_be_buried_stays_at_its_last_try() -> None:
    inbox, brokers = Inbox(ordered=True), Brokers(refuse=5)
    rule = InOrder(inbox, brokers, 0.0, 2)  # type: ignore[arg-type]
    delivery: Delivery | None = taken(inbox, 1)
    assert delivery is not None
    queue, tries = delivery.queue, []
    while delivery is not None:
        tries += offsets(delivery)
        await rule.failed(delivery, RETRY)
        await eventually_async(lambda: not queue.suspended)
        delivery = inbox.take()
    assert [times for _, times in tries] == [0, 1, 2, 2, 2, 2, 2, 2]
    assert brokers.buried == [0]


@pytest.mark.parametrize("ordered", [False, True])
@on_loop
async def test_a_message_that_dies_is_logged_with_the_reason(ordered: bool, caplog: pytest.LogCaptureFixture) -> None:
    inbox, brokers = Inbox(ordered=ordered), Brokers(reconsume_max=2)
    rule = InOrder(inbox, brokers, 0.0, 2) if ordered else Concurrent(inbox, brokers, 0.0)  # type: ignore[arg-type]

    async def fail(tries: int, verdict: Redeliver) -> str:
        caplog.clear()
        queue = held(1)
        inbox.put(queue, [message(0, reconsume_times=tries)])
        delivery = inbox.take()
        assert delivery is not None
        await rule.failed(delivery, verdict)
        inbox.drop(queue)
        return caplog.text

    assert await fail(1, RETRY) == ""
    dead = "message id-0 of topic tea went to the dead-letter queue of group g, topic %DLQ%g: "
    assert f"{dead}its listener rejected it (level=-1)" in await fail(0, Redeliver(level=-1))
    assert f"{dead}its listener failed after 2 of at most 2 redeliveries (reconsume_max)" in await fail(2, RETRY)


@on_loop
async def test_broadcast_messages_are_let_go(caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox()
    bad = taken(inbox, 2)
    await Broadcast().failed(bad, Redeliver(done=1))
    assert bad.queue.committable == 2
    assert "dropped broadcast message id-1 of topic tea after its listener failed" in caplog.text
    assert "id-0" not in caplog.text
    in_order = Inbox(ordered=True)
    bad = taken(in_order, 1)
    await InOrder(in_order, None, 0.0, 0).failed(bad, RETRY)
    assert bad.queue.committable == 1
    assert (
        "dropped broadcast message id-0 of topic tea: its listener failed after 0 of at most 0 redeliveries"
        in caplog.text
    )


def test_only_in_order_a_slow_listener_is_waited_for() -> None:
    inbox = Inbox()
    delivery = taken(inbox, 1)
    assert Broadcast().gives_up(delivery)
    assert Concurrent(inbox, Brokers(), 1).gives_up(delivery)  # type: ignore[arg-type]
    assert not InOrder(inbox, None, 1, None).gives_up(delivery)


def test_what_happens_next_is_told() -> None:
    inbox, brokers = Inbox(), Brokers(reconsume_max=2)
    side_by_side = Concurrent(inbox, brokers, 5.0)  # type: ignore[arg-type]
    in_order = InOrder(inbox, brokers, 1.0, 2)  # type: ignore[arg-type]
    for_ever = InOrder(inbox, None, 1.0, None)

    def after(tries: int) -> Delivery:
        return Delivery(held(1), [message(0, reconsume_times=tries)])

    assert side_by_side.forecast(after(0), RETRY) == "will be redelivered in 10 s (attempt 1 of 2)"
    assert side_by_side.forecast(after(1), RETRY) == "will be redelivered in 30 s (attempt 2 of 2)"
    assert side_by_side.forecast(after(2), RETRY) == "goes to the dead-letter queue of group g"
    assert side_by_side.forecast(after(0), Redeliver(level=99)) == "will be redelivered in 7200 s (attempt 1 of 2)"
    assert side_by_side.forecast(after(0), Redeliver(level=-1)) == "goes to the dead-letter queue of group g"
    assert (
        in_order.forecast(after(1), RETRY) == "will be retried in 1 s (attempt 2 of 2); its queue is blocked until then"
    )
    assert in_order.forecast(after(2), RETRY) == "goes to the dead-letter queue of group g"
    assert for_ever.forecast(after(9), Redeliver(pause_ms=50)) == (
        "will be retried in 0.05 s (attempt 10 without limit); its queue is blocked until then"
    )
    assert for_ever.forecast(after(0), Redeliver(level=-1)) == "is dropped"
    assert Broadcast().forecast(after(0), RETRY).startswith("is dropped")
    lost = after(0)
    lost.queue.dropped = True
    assert "to the member that has its queue now" in side_by_side.forecast(lost, RETRY)
    assert "to the member that has its queue now" in in_order.forecast(lost, RETRY)


def test_the_log_of_a_failed_listener_comes_true(kappamq_broker: BrokerKit, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise ValueError("no tea")

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "failed on" in record.getMessage()]

    with kappamq_broker.producer() as producer:
        sent = producer.send(Message("orders", b"tea", keys=("order-7", "cup")))
    with kappamq_broker.consumer(
        group="billing", topics="orders", listener=fail, consume_from="first", reconsume_max=1
    ):
        eventually(lambda: len(told()) == 1)
        assert told()[0].startswith(
            f"group billing: the listener failed on message {sent.message_id} of topic orders, keys order-7 cup (offset"
        )
        assert told()[0].endswith("); it will be redelivered in 10 s (attempt 1 of 1)")
        kappamq_broker.clock.advance("10s")
        eventually(lambda: len(told()) == 2)
        assert "of topic orders, keys order-7 cup (offset" in told()[1]
        assert told()[1].endswith("); it goes to the dead-letter queue of group billing")
        eventually(lambda: len(kappamq_broker.messages("%DLQ%billing")) == 1)
