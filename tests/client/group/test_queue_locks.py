from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from kappamq.client.admin.admin import AsyncAdmin
from kappamq.client.core.core import ClientCore
from kappamq.client.group.queue_locks import LOST, QueueLocks
from kappamq.clock import VirtualClock
from kappamq.errors import Busy
from kappamq.message import MessageQueue
from kappamq.protocol.codes import RequestCode, ResponseCode
from tests.client.fake import FakeBroker, FakeCluster, fake_cluster
from tests.client.loop import on_loop
from tests.waiting import eventually_async

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
ONE, TWO = MessageQueue("tea", "broker-0", 0), MessageQueue("tea", "broker-1", 0)


@dataclass
class Setup:
    cluster: FakeCluster
    core: ClientCore
    clock: VirtualClock
    locks: QueueLocks = field(init=False)
    changes: list[tuple[MessageQueue, float, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core.clock = self.clock
        self.locks = QueueLocks(self.core, "g", lambda *change: self.changes.append(change))

    def owner(self, queue: MessageQueue, broker: FakeBroker) -> str | None:
        return broker.locks.get(("g", queue), (None,))[0]


@asynccontextmanager
async def setup(**options: int) -> AsyncIterator[Setup]:
    async with fake_cluster(brokers=2, tea=1) as cluster, AsyncAdmin(**cluster.options(**options)) as admin:
        yield Setup(cluster, admin.start(), VirtualClock(liveness=1000.0))


@on_loop
async def test_a_lock_counts_from_the_question_on() -> None:
    async with setup() as it:
        assert await it.locks.acquire(ONE)
        assert (it.locks.until(ONE), it.locks.until(TWO)) == (1030.0, LOST)
        assert it.owner(ONE, it.cluster.brokers[0]) == it.core.client_id
        it.clock.advance_liveness(29.9)
        assert it.locks.holds(ONE)
        it.clock.advance_liveness(0.1)
        assert not it.locks.holds(ONE)


@on_loop
async def test_somebody_elses_lock_is_not_ours() -> None:
    async with setup() as it:
        it.cluster.brokers[0].locks["g", ONE] = ("another", 1e12)
        assert not await it.locks.acquire(ONE)
        assert it.locks.until(ONE) == LOST
        it.cluster.brokers[0].script(LOCK, ResponseCode.SYSTEM_BUSY)
        with pytest.raises(Busy):
            await it.locks.acquire(ONE)


@on_loop
async def test_renewals_reach_every_broker_and_say_what_has_changed() -> None:
    async with setup() as it:
        assert await it.locks.acquire(ONE)
        assert await it.locks.acquire(TWO)
        it.clock.advance_liveness(20)
        it.cluster.brokers[1].locks["g", TWO] = ("another", 1e12)
        assert await it.locks.renew()
        assert sorted(it.changes) == [(ONE, 1050.0, False), (TWO, LOST, False)]
        assert (it.locks.holds(ONE), it.locks.holds(TWO)) == (True, False)


@on_loop
async def test_a_lock_that_comes_back_after_it_ran_out_is_said_to_have_lapsed() -> None:
    async with setup() as it:
        assert await it.locks.acquire(ONE)
        it.cluster.brokers[0].script(LOCK, ResponseCode.SYSTEM_BUSY)
        it.clock.advance_liveness(31)
        assert not await it.locks.renew()
        assert it.changes == []
        assert await it.locks.renew()
        assert it.changes == [(ONE, 1061.0, True)]


@on_loop
async def test_what_is_given_back_is_free_and_is_not_renewed() -> None:
    async with setup() as it:
        assert await it.locks.acquire(ONE)
        assert await it.locks.acquire(TWO)
        await it.locks.release([ONE])
        assert it.owner(ONE, it.cluster.brokers[0]) is None
        it.locks.forget(TWO)
        assert it.owner(TWO, it.cluster.brokers[1]) == it.core.client_id
        assert await it.locks.renew()
        assert it.changes == []


@on_loop
async def test_a_lock_that_ran_out_is_not_given_back_for_it_may_be_anothers() -> None:
    async with setup() as it:
        assert await it.locks.acquire(ONE)
        it.clock.advance_liveness(31)
        await it.locks.release([ONE])
        assert it.cluster.brokers[0].seen(UNLOCK) == []


@on_loop
async def test_a_broker_out_of_reach_takes_its_time_to_forget_us() -> None:
    async with setup() as it:
        assert await it.locks.acquire(ONE)
        await it.cluster.brokers[0].stop()
        await it.locks.release([ONE])
        assert it.locks.until(ONE) == LOST


@on_loop
async def test_locks_are_renewed_by_themselves_and_soon_again_after_a_failure() -> None:
    async with setup(lock_renew_ms=20, lock_lease_ms=30_000) as it:
        assert await it.locks.acquire(ONE)
        it.cluster.brokers[0].script(LOCK, ResponseCode.SYSTEM_BUSY)
        it.locks.start()
        await eventually_async(lambda: len(it.changes) >= 2)
        await it.locks.stop()


@on_loop
async def test_whatever_goes_wrong_does_not_end_the_renewals(caplog: pytest.LogCaptureFixture) -> None:
    async with setup(lock_renew_ms=20, lock_lease_ms=30_000) as it:
        assert await it.locks.acquire(ONE)

        def changed(*change: object) -> None:
            calls.append(change)
            if len(calls) == 1:
                raise RuntimeError("a bug")

        calls: list[object] = []
        it.locks._changed = changed
        it.locks.start()
        await eventually_async(lambda: len(calls) >= 2)
        await it.locks.stop()
    assert "renewing the queue locks failed" in caplog.text
