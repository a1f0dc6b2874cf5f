"""Transactions of the client: what each step does when a broker is slow, silent, away or of another mind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kappamq.client.producer.transaction import AsyncTransactionProducer
from kappamq.errors import (
    BrokerError,
    ConfigError,
    IllegalMessage,
    InvalidParameter,
    MaybeStored,
    NoPermission,
    NotAvailable,
    NotConnected,
    SendTimeout,
    TransactionFailed,
)
from kappamq.message import Decision, Message, ReceivedMessage
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers.client import EndTransaction, SendMessageResponse, SendMessageV2
from kappamq.protocol.leader_hint import not_known
from kappamq.protocol.records import properties
from kappamq.testing import BrokerKit
from tests.client.fake import FakeCluster, Peer, fake_cluster, hang_up, never
from tests.client.loop import on_loop
from tests.waiting import eventually_async as eventually

SEND, END = RequestCode.SEND_MESSAGE_V2, RequestCode.END_TRANSACTION
TEA = Message("tea", b"green", tags="t", keys="k")


def stored(peer: Peer, frame: Frame, code: int = 0) -> Frame:
    """As a broker answers to a half."""
    header = SendMessageV2.decode(frame.ext)
    unique = properties.decode(header.properties or "")["UNIQ_KEY"]
    offset_id = "7F00000100002A9F0000000000001F40"
    answer = SendMessageResponse(message_id=offset_id, queue_id=header.queue_id, queue_offset=3, transaction_id=unique)
    return reply(frame, code, header=answer)


@asynccontextmanager
async def producing(brokers: int = 1, **options: Any) -> AsyncIterator[tuple[FakeCluster, AsyncTransactionProducer]]:
    async with fake_cluster(brokers=brokers, tea=1, TBW102=1) as cluster:
        for broker in cluster.brokers:
            broker._handlers[SEND] = stored
            broker._handlers[END] = lambda peer, frame: reply(frame)
        values = {"group": "shop", "check": lambda message: None} | options
        if "listener" in values:
            del values["check"]
        async with AsyncTransactionProducer(**cluster.options(**values)) as producer:
            yield cluster, producer


def ends(cluster: FakeCluster) -> list[EndTransaction]:
    return [EndTransaction.decode(frame.ext) for broker in cluster.brokers for frame in broker.seen(END)]


# -- the steps -------------------------------------------------------------------------------------------------------------


@on_loop
async def test_a_normal_end_commits() -> None:
    async with producing() as (cluster, producer):
        async with producer.transaction(TEA, check_after=12.5) as t:
            (frame,) = cluster.broker.seen(SEND)
            header = SendMessageV2.decode(frame.ext)
            named = properties.decode(header.properties or "")
            assert header.sys_flag & 0xC == 4
            assert (named["TRAN_MSG"], named["PGROUP"], named["UNIQ_KEY"]) == ("true", "shop", t.message_id)
            assert (named["CHECK_IMMUNITY_TIME_IN_SECONDS"], named["TAGS"], named["KEYS"]) == ("13", "t", "k")
            assert producer._known.get(t.message_id) is Decision.UNKNOWN, "still at it"
            assert not cluster.broker.seen(END)
        (end,) = ends(cluster)
        assert (end.decision, end.from_check, end.producer_group, end.topic) == (8, False, "shop", "tea")
        assert (end.log_offset, end.transaction_offset) == (8000, 3)
        assert (end.message_id, end.transaction_id, end.logical_broker) == (t.message_id, t.message_id, "broker-0")
        assert (t.decision, t.confirmed) == (Decision.COMMIT, True)
        assert producer._known._decided[t.message_id] is Decision.COMMIT


@on_loop
async def test_an_exception_rolls_it_back_and_goes_on() -> None:
    async with producing() as (cluster, producer):
        transaction = producer.transaction(TEA)
        with pytest.raises(ZeroDivisionError):
            async with transaction:
                1 / 0  # noqa: B018
        assert [end.decision for end in ends(cluster)] == [12]
        assert (transaction.decision, transaction.confirmed) == (Decision.ROLLBACK, True)


@on_loop
async def test_a_cancelled_task_rolls_it_back() -> None:
    async with producing() as (cluster, producer):
        inside = asyncio.Event()

        async def work() -> None:
            async with producer.transaction(TEA):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [end.decision for end in ends(cluster)] == [12]


@on_loop
async def test_decided_otherwise() -> None:
    async with producing() as (cluster, producer):
        async with producer.transaction(TEA) as t:
            t.rollback()
        async with producer.transaction(TEA) as open_one:
            open_one.leave_open()
        await eventually(lambda: len(ends(cluster)) == 2)
        assert [end.decision for end in ends(cluster)] == [12, 0]
        assert cluster.broker.seen(END)[1].is_oneway
        assert (open_one.decision, open_one.confirmed) == (Decision.UNKNOWN, False)
        assert producer._known.get(open_one.message_id) is None, "check is asked about it"


# -- execute ---------------------------------------------------------------------------------------------------------------


class Shop:
    def __init__(self, says: Any) -> None:
        self.says = says
        self.executed: list[tuple[Message, str]] = []

    def execute(self, message: Message, message_id: str) -> Any:
        self.executed.append((message, message_id))
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def check(self, message: ReceivedMessage) -> Any:
        return None


@pytest.mark.parametrize(
    ("says", "decision"), [(Decision.COMMIT, 8), (True, 8), (False, 12), (Decision.ROLLBACK, 12), (None, 0)]
)
@on_loop
async def test_a_listener_decides(says: Any, decision: int) -> None:
    shop = Shop(says)
    async with producing(listener=shop) as (cluster, producer):
        t = await producer.send_in_transaction(TEA)
        assert shop.executed == [(TEA, t.message_id)]
        await eventually(lambda: [end.decision for end in ends(cluster)] == [decision])

        async def execute(message: Message, message_id: str) -> Any:
            return says

        await producer.send_in_transaction(TEA, execute)
        await eventually(lambda: [end.decision for end in ends(cluster)] == [decision] * 2)


@pytest.mark.parametrize("says", [OSError("no"), "odd"])
@on_loop
async def test_a_listener_that_fails_leaves_it_to_check(says: Any) -> None:
    """It may have done its work before it failed: only a look at the database can tell."""
    async with producing(listener=Shop(says)) as (cluster, producer):
        with pytest.raises((OSError, TypeError)) as raised:
            await producer.send_in_transaction(TEA)
        assert "stays open: `check` will decide" in raised.value.__notes__[0]
        await eventually(lambda: [end.decision for end in ends(cluster)] == [0])


# -- what can go wrong with the half -----------------------------------------------------------------------------------------


@on_loop
async def test_a_half_is_tried_elsewhere_only_if_it_was_certainly_not_stored() -> None:
    async with producing(brokers=2) as (cluster, producer):
        # Refused, or nobody there: another broker gets it.
        for broker in cluster.brokers:
            broker.script(SEND, ResponseCode.SYSTEM_BUSY)
        async with producer.transaction(TEA) as t:
            pass
        assert t.confirmed
        assert sum(len(broker.seen(SEND)) for broker in cluster.brokers) == 3
        await cluster.brokers[0].stop()
        core = producer.running()
        await eventually(lambda: len(core.brokers.open) == 1)
        for _ in range(3):
            async with producer.transaction(TEA) as t:
                assert t.result is not None
                assert t.result.queue.broker == "broker-1"


def maybe(peer: Peer, frame: Frame) -> Frame:
    """The broker led when it took the half, and does not any more."""
    return reply(frame, ResponseCode.SERVICE_NOT_AVAILABLE, not_known("another broker leads now"))


@pytest.mark.parametrize("fault", [never, hang_up, 1, maybe])
@on_loop
async def test_a_half_that_may_have_been_stored_is_not_sent_twice(fault: Any) -> None:
    async with producing(brokers=2, send_timeout_ms=1000) as (cluster, producer):
        for broker in cluster.brokers:
            broker.script(SEND, fault)
        with pytest.raises((SendTimeout, NotConnected, BrokerError, MaybeStored)):
            async with producer.transaction(TEA):
                raise AssertionError("the work must not begin")
        (frame,) = [frame for broker in cluster.brokers for frame in broker.seen(SEND)]
        unique = properties.decode(SendMessageV2.decode(frame.ext).properties or "")["UNIQ_KEY"]
        assert producer._known.get(unique) is Decision.ROLLBACK, "if a broker asks"


@on_loop
async def test_errors_that_trying_again_does_not_help() -> None:
    async with producing(brokers=2, send_retries=1) as (cluster, producer):
        for broker in cluster.brokers:
            broker.script(SEND, ResponseCode.MESSAGE_ILLEGAL)
        with pytest.raises(IllegalMessage, match="scripted"):
            await producer.transaction(TEA).__aenter__()
        assert sum(len(broker.seen(SEND)) for broker in cluster.brokers) == 1
        for broker in cluster.brokers:
            broker._scripted.clear()
            broker.script(SEND, ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION)
        with pytest.raises(NoPermission):
            await producer.transaction(TEA).__aenter__()
        assert sum(len(broker.seen(SEND)) for broker in cluster.brokers) == 3, "two tries"
        for broker in cluster.brokers:
            await broker.stop()
        with pytest.raises(NotConnected):
            await producer.transaction(TEA).__aenter__()


@on_loop
async def test_a_half_that_is_not_safe_is_rolled_back() -> None:
    async with producing() as (cluster, producer):
        cluster.broker.script(SEND, lambda peer, frame: stored(peer, frame, ResponseCode.FLUSH_DISK_TIMEOUT))
        with pytest.raises(NotAvailable, match=r"not durably \(flush timeout\): it was rolled back"):
            await producer.transaction(TEA).__aenter__()
        assert [end.decision for end in ends(cluster)] == [12]


# -- what can go wrong with the end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [never, hang_up, 1, 14, 604, maybe])
@on_loop
async def test_an_end_that_is_lost_is_left_to_the_question(fault: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The work is done: it would help nobody to raise now. The broker asks, and gets the same answer."""
    async with producing(request_timeout_ms=1000) as (cluster, producer):
        cluster.broker.script(END, fault)
        async with producer.transaction(TEA) as t:
            pass
        assert (t.decision, t.confirmed) == (Decision.COMMIT, False)
        assert f"transaction {t.message_id}: commit may not have reached the broker" in caplog.text
        assert producer._known.get(t.message_id) is Decision.COMMIT


@on_loop
async def test_a_broker_that_was_told_otherwise_before() -> None:
    async with producing() as (cluster, producer):
        cluster.broker.script(END, *[ResponseCode.TRANSACTION_FAILED] * 2)
        with pytest.raises(TransactionFailed, match="scripted 4"):
            async with producer.transaction(TEA):
                pass
        with pytest.raises(ZeroDivisionError) as raised:
            async with producer.transaction(TEA):
                1 / 0  # noqa: B018
        assert raised.value.__notes__ == ["and the message could not be rolled back: scripted 4"]


# -- bad input ---------------------------------------------------------------------------------------------------------------


@on_loop
async def test_what_cannot_be() -> None:
    for wrong in ({}, {"check": print, "listener": Shop(None)}):
        with pytest.raises(ConfigError, match="needs either `check`"):
            AsyncTransactionProducer("127.0.0.1:1", group="g", **wrong)
    with pytest.raises(InvalidParameter):
        AsyncTransactionProducer("127.0.0.1:1", group="no good", check=print)
    with pytest.raises(ConfigError, match="check_threads"):
        AsyncTransactionProducer("127.0.0.1:1", group="g", check=print, check_threads=0)
    async with producing() as (cluster, producer):
        for message, options, text in [
            (Message("tea", b"x", delay_level=3), {}, "cannot be delayed: RocketMQ's brokers would lose it"),
            (TEA, {"check_after": -1}, "check_after must be a number of seconds"),
            (Message("RMQ_SYS_TRANS_HALF_TOPIC", b"x"), {}, "is reserved for the broker"),
        ]:
            with pytest.raises(IllegalMessage, match=text):
                await producer.transaction(message, **options).__aenter__()  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="nothing to execute"):
            await producer.send_in_transaction(TEA)
        assert not cluster.broker.seen(SEND)


@on_loop
async def test_brokers_that_cannot_be_told_of_us_are_no_reason_to_wait(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster(tea=1) as cluster:
        options = cluster.options(group="shop", check=print, topics=["tea", "none"])
        async with AsyncTransactionProducer(**options):
            await eventually(lambda: "shop" in cluster.broker.producers)
            assert "could not register with the brokers of topic none yet" in caplog.text
        assert "shop" not in cluster.broker.producers


# -- with a real broker ------------------------------------------------------------------------------------------------------


@on_loop
async def test_traces_tell_the_whole_story() -> None:
    async with BrokerKit() as kit:
        options: dict[str, Any] = {"config": kit.client_config, "trace": True, "trace_flush_ms": 10}
        done: set[str] = set()
        check = lambda message: message.message_id in done  # noqa: E731
        async with AsyncTransactionProducer(group="shop", check=check, **options) as producer:
            async with producer.transaction(TEA) as direct:
                pass
            async with producer.transaction(TEA) as asked:
                asked.leave_open()
            done.add(asked.message_id)
            await asyncio.to_thread(kit.clock.advance, "10s")
            assert await asyncio.to_thread(kit.bodies, "tea") == [b"green", b"green"]
        traces = b"".join(await asyncio.to_thread(kit.bodies, "RMQ_SYS_TRACE_TOPIC")).split(b"\x02")
        ended = [trace.split(b"\x01") for trace in traces if trace.startswith(b"EndTransaction")]
        assert {(fields[5].decode(), fields[11], fields[12]) for fields in ended} == {
            (direct.message_id, b"COMMIT_MESSAGE", b"false"),
            (asked.message_id, b"UNKNOW", b"false"),
            (asked.message_id, b"COMMIT_MESSAGE", b"true"),
        }
