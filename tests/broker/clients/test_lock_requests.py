"""Queue locks on request: for members only, on a lease, and a restart honours them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.clock import VirtualClock
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.clients import LockBatch, LockBatchResponse
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.client import LockQueues, UnlockQueues
from tests.broker.operating import beat, make_topic, ok, on_broker, queue, refused
from tests.broker.running import Speaker, appended, crash_copy, run, running, speaking
from tests.store.faulty import SlowFlusher
from tests.waiting import eventually_async as eventually

NOT_A_MEMBER = ResponseCode.SUBSCRIPTION_NOT_EXIST


def batch(client_id: str, *queue_ids: int, group: str = "g") -> bytes:
    queues = {queue("t", number) for number in queue_ids}
    return LockBatch(consumer_group=group, client_id=client_id, queues=queues).encode()


async def lock(client: Speaker, client_id: str, *queue_ids: int, group: str = "g") -> set[int]:
    answer = await ok(client, LockQueues(), batch(client_id, *queue_ids, group=group))
    return {locked.queue_id for locked in LockBatchResponse.decode(answer.body).locked}


@asynccontextmanager
async def joined(broker: Broker, *client_ids: str) -> AsyncIterator[list[Speaker]]:
    """Members of group g, each on a connection of its own, as clients are."""
    async with AsyncExitStack() as stack:
        speakers = [await stack.enter_async_context(speaking(broker)) for _ in client_ids]
        for speaker, client_id in zip(speakers, client_ids, strict=True):
            await beat(speaker, client_id, consumers={"g": ["t"]})
        yield speakers


def test_locks_are_leases(tmp_path: Path) -> None:
    async def test() -> None:
        clock = VirtualClock()
        async with (
            running(tmp_path, clock=clock, net={"idle_s": 0}, client_expiry_ms=1_000_000) as broker,
            joined(broker, "one", "two", "three") as (one, two, three),
        ):
            await beat(two, "two", consumers={"another": ["t"]})
            await make_topic(one, "t")
            assert await lock(one, "one", 0, 1) == {0, 1}
            assert await lock(two, "two", 1, 2) == {2}
            assert await lock(two, "two", 1, group="another") == {1}
            await ok(two, UnlockQueues(), batch("two", 0, 2))
            assert await lock(three, "three", 0, 1, 2) == {2}, "nobody gives back what another holds"
            clock.advance(59)
            assert await lock(one, "one", 1) == {1}
            clock.advance(2)
            assert await lock(two, "two", 0, 1) == {0}, "not renewed for a minute"

    run(test())


@on_broker()
async def test_a_stranger_locks_nothing_and_nobody_notices(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    async with joined(broker, "member") as (member,):
        await strange(broker, client, member)


async def strange(broker: Broker, client: Speaker, member: Speaker) -> None:
    assert await lock(member, "member", 0) == {0}
    before = appended(broker)
    await refused(client, LockQueues(), NOT_A_MEMBER, "stranger", "group g", "heartbeat", body=batch("stranger", 0, 1))
    await ok(client, UnlockQueues(), batch("stranger", 0))
    assert appended(broker) == before
    assert await lock(member, "member", 0, 1) == {0, 1}
    await beat(client, "stranger", consumers={"h": ["t"]})
    await refused(client, LockQueues(), NOT_A_MEMBER, "stranger", body=batch("stranger", 2))
    await beat(client, "stranger", consumers={"g": ["t"]})
    assert await lock(client, "stranger", 0, 2) == {2}, "now it is one of them"


@on_broker()
async def test_a_member_may_ask_over_another_connection(broker: Broker, client: Speaker) -> None:
    """Java's clients can use port-2 for locks and the other one for heartbeats."""
    await make_topic(client, "t")
    async with joined(broker, "member"):
        assert await lock(client, "member", 0) == {0}


def test_locks_that_make_no_sense(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            await beat(client, "c", consumers={"g": ["t"]})
            one = {MessageQueue("t", "b", 0)}
            for body in (LockBatch(consumer_group="g", queues=one), LockBatch(client_id="c", queues=one)):
                await refused(client, LockQueues(), ResponseCode.INVALID_PARAMETER, "clientId", body=body.encode())
            for broken in (b"", b"null", b"{"):
                assert (await client.ask(LockQueues(), broken)).code != 0
            rows = b",".join(b'{"brokerName":"b","queueId":%d,"topic":"t"}' % number for number in range(65_537))
            many = b'{"clientId":"c","consumerGroup":"g","mqSet":[' + rows + b"]}"
            await refused(client, LockQueues(), ResponseCode.INVALID_PARAMETER, "list_bytes_max", body=many)
            assert await lock(client, "c", 0) == {0}

    run(test())


@on_broker()
async def test_only_queues_that_are_here_can_be_locked(broker: Broker, client: Speaker) -> None:
    """Every lock is kept for a minute: there must not be more of them than queues."""
    await make_topic(client, "t", 2)
    await beat(client, "c", consumers={"g": ["t"]})
    others = [
        MessageQueue("t", "b", 2),
        MessageQueue("t", "b", -1),
        MessageQueue("t", "other", 0),
        MessageQueue("u", "b", 0),
    ]
    wanted = LockBatch(consumer_group="g", client_id="c", queues={queue("t", 0), *others})
    locked = LockBatchResponse.decode((await ok(client, LockQueues(), wanted.encode())).body).locked
    assert locked == {queue("t", 0)}
    assert [len(leases) for leases in broker.locks._groups.values()] == [1]


@on_broker(auto_create_group=False)
async def test_only_groups_that_exist_can_lock(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 2)
    body = batch("c", 0, group="unknown")
    await refused(client, LockQueues(), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "unknown", body=body)
    assert not broker.locks._groups


@pytest.mark.parametrize("crash", [False, True])
def test_a_restart_honours_locks_for_a_whole_lease(tmp_path: Path, crash: bool) -> None:
    async def test() -> None:
        clock = VirtualClock()
        settings: dict[str, Any] = {"clock": clock, "net": {"idle_s": 0}, "client_expiry_ms": 1_000_000}
        folder = tmp_path / "store"
        async with running(folder, **settings) as broker, joined(broker, "one") as (one,):
            await make_topic(one, "t")
            assert await lock(one, "one", 0, 1, 2) == {0, 1, 2}
            await ok(one, UnlockQueues(), batch("one", 2))
            clock.advance(50)
            assert await lock(one, "one", 0) == {0}
            if crash:  # what the files hold now, without a farewell
                folder = await crash_copy(broker, tmp_path / "crashed")
        async with running(folder, **settings) as broker, speaking(broker) as owner, joined(broker, "two") as (two,):
            assert await lock(two, "two", 0, 1, 2) == {2}, "the others have an owner"
            assert await lock(owner, "one", 0) == {0}, "it need not introduce itself again for what it has"
            clock.advance(30)
            assert await lock(two, "two", 0, 1, 2) == {2}, "also the one that was not renewed before the restart"
            assert await lock(owner, "one", 0) == {0}
            clock.advance(31)
            assert await lock(two, "two", 0, 1, 2) == {1, 2}
        async with running(folder, **settings) as broker, joined(broker, "three") as (three,):
            assert await lock(three, "three", 0, 1, 2) == set(), "two has 1 and 2 now, one has 0"

    run(test())


def test_strictly_means_on_disk_before_it_is_yours(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, flusher=SlowFlusher, lock_strictly=True) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            await beat(client, "c", consumers={"g": ["t"]})
            asked = asyncio.ensure_future(lock(client, "c", 0))
            await eventually(lambda: bool(broker.locks._groups))
            await make_topic(client, "u")
            assert not asked.done(), "who came later and does not care was answered"
            await eventually(lambda: SlowFlusher.made.behind)
            SlowFlusher.made.keep_up()
            assert await asked == {0}
            assert await lock(client, "c", 0) == {0}, "a renewal waits for nothing"

    run(test())
