from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kappamq.client.admin.admin import AsyncAdmin
from kappamq.client.group.offsets import ConsumeFrom, Offsets, check_consume_from, time_ms
from kappamq.errors import Busy, ConfigError
from kappamq.message import MessageQueue
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.headers.client import BoundaryType, OffsetResponse, QueryConsumerOffset, SearchOffset
from tests.client.fake import FakeCluster, Peer, fake_cluster
from tests.client.loop import on_loop
from tests.waiting import eventually_async

QUEUE = MessageQueue("tea", "broker-0", 0)
RETRY = MessageQueue("%RETRY%g", "broker-0", 0)
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET


@asynccontextmanager
async def offsets() -> AsyncIterator[tuple[FakeCluster, Offsets]]:
    async with fake_cluster(tea=2) as cluster, AsyncAdmin(**cluster.options()) as admin:
        cluster.create("%RETRY%g", 1)
        cluster.broker.first["tea", 0] = cluster.broker.first["%RETRY%g", 0] = 3
        cluster.broker.put("tea", 0, b"a", b"b")
        cluster.broker.put("%RETRY%g", 0, b"a", b"b")
        yield cluster, Offsets(admin.start(), "g")


async def start(cluster: FakeCluster, queue: MessageQueue, where: ConsumeFrom) -> int:
    async with AsyncAdmin(**cluster.options()) as admin:
        return await Offsets(admin.start(), "g", where).start_of(queue)


@on_loop
async def test_a_group_without_offsets_begins_where_it_was_told() -> None:
    async with offsets() as (cluster, _):
        searched = lambda peer, frame: reply(frame, header=OffsetResponse(offset=4))  # noqa: E731
        cluster.broker.script(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, searched)
        assert await start(cluster, QUEUE, "last") == 5
        assert await start(cluster, QUEUE, "first") == 3
        assert await start(cluster, QUEUE, 1_700_000_000_000) == 4
        assert await start(cluster, RETRY, "last") == 3  # what is to be tried again is never skipped
        assert await start(cluster, RETRY, 1_700_000_000_000) == 5
        asked = [
            QueryConsumerOffset.decode(frame.ext) for frame in cluster.broker.seen(RequestCode.QUERY_CONSUMER_OFFSET)
        ]
        assert [header.zero_if_not_found for header in asked] == [None, False, False, None, False]


@on_loop
async def test_a_stored_offset_wins() -> None:
    async with offsets() as (cluster, _):
        cluster.broker.offsets["g", "tea", 0] = 4
        for where in ("last", "first", 5):
            assert await start(cluster, QUEUE, where) == 4  # type: ignore[arg-type]


@on_loop
async def test_only_what_changed_is_stored() -> None:
    async with offsets() as (cluster, group):
        await group.commit({QUEUE: 5}, strict=True)
        await group.commit({QUEUE: 5}, strict=True)
        assert len(cluster.broker.seen(UPDATE)) == 1
        await group.commit({QUEUE: 6})
        assert cluster.broker.offsets["g", "tea", 0] == 6
        group.forget(QUEUE)
        await group.commit({QUEUE: 6}, strict=True)
        assert len(cluster.broker.seen(UPDATE)) == 3


@on_loop
async def test_offsets_never_go_back_unless_the_queue_begins_anew() -> None:
    async with offsets() as (cluster, group):
        await group.commit({QUEUE: 5}, strict=True)
        await group.commit({QUEUE: 4}, strict=True)
        assert cluster.broker.offsets["g", "tea", 0] == 5
        group.forget(QUEUE)
        await group.commit({QUEUE: 4}, strict=True)
        assert cluster.broker.offsets["g", "tea", 0] == 4


@on_loop
async def test_a_commit_that_was_on_its_way_when_the_queue_began_anew_is_forgotten() -> None:
    async with offsets() as (cluster, group):
        late = asyncio.Event()

        async def slow(peer: Peer, frame: Frame) -> Frame:
            await late.wait()
            return reply(frame)

        cluster.broker.script(UPDATE, slow)
        old = asyncio.ensure_future(group.commit({QUEUE: 100}))
        await eventually_async(lambda: cluster.broker.seen(UPDATE))
        group.forget(QUEUE)
        late.set()
        await old
        await group.commit({QUEUE: 3}, strict=True)
        assert cluster.broker.offsets["g", "tea", 0] == 3


@on_loop
async def test_a_refused_offset_is_raised_if_confirmation_was_asked_for_and_stored_next_time() -> None:
    async with offsets() as (cluster, group):
        cluster.broker.script(UPDATE, ResponseCode.SYSTEM_BUSY)
        with pytest.raises(Busy):
            await group.commit({QUEUE: 5, MessageQueue("tea", "broker-0", 1): 0}, strict=True)
        await group.commit({QUEUE: 5}, strict=True)
        assert cluster.broker.offsets["g", "tea", 0] == 5


@on_loop
async def test_a_broker_out_of_reach_costs_only_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with offsets() as (cluster, group):
        await group.max_offset(QUEUE)
        await cluster.broker.stop()
        await group.commit({QUEUE: 5})
        assert "could not commit offset" in caplog.text


async def crash(cluster: FakeCluster, group: Offsets, knows: int) -> None:
    """The broker goes down and comes back with another offset, as one does that was killed before it wrote the last one."""
    await cluster.broker.stop()
    await eventually_async(lambda: group._core.connection_to(QUEUE) is None)
    cluster.broker.offsets["g", "tea", 0] = knows
    await cluster.broker.start()


@on_loop
async def test_what_a_killed_broker_forgot_is_stored_again() -> None:
    async with offsets() as (cluster, group):
        await group.commit({QUEUE: 5}, strict=True)
        await crash(cluster, group, knows=3)
        await group.max_offset(QUEUE)  # any request connects again
        await group.commit({QUEUE: 5})
        assert cluster.broker.offsets["g", "tea", 0] == 5
        await group.commit({QUEUE: 5}, strict=True)
        assert len(cluster.broker.seen(UPDATE)) == 2  # and not again and again


@on_loop
async def test_what_a_group_began_with_is_stored_again_too() -> None:
    async with offsets() as (cluster, group):
        cluster.broker.offsets["g", "tea", 0] = 5
        assert await group.start_of(QUEUE) == 5
        await crash(cluster, group, knows=3)
        await group.commit({QUEUE: 5}, strict=True)
        assert cluster.broker.offsets["g", "tea", 0] == 5


@on_loop
async def test_closing_stores_again_even_if_nobody_has_connected_yet() -> None:
    async with offsets() as (cluster, group):
        await group.commit({QUEUE: 5}, strict=True)
        await crash(cluster, group, knows=3)
        await group.commit({QUEUE: 5}, strict=True)
        assert cluster.broker.offsets["g", "tea", 0] == 5


@on_loop
async def test_nothing_is_repeated_while_no_broker_is_there(caplog: pytest.LogCaptureFixture) -> None:
    async with offsets() as (cluster, group):
        await group.commit({QUEUE: 5}, strict=True)
        await cluster.broker.stop()
        await eventually_async(lambda: group._core.connection_to(QUEUE) is None)
        await group.commit({QUEUE: 5})
        assert not [record for record in caplog.records if record.name == "kappamq.client.group.offsets"]


@on_loop
async def test_an_offset_that_another_member_has_stored_meanwhile_is_not_set_back() -> None:
    async with offsets() as (cluster, group):
        await group.commit({QUEUE: 4}, strict=True)
        await crash(cluster, group, knows=5)
        await group.commit({QUEUE: 4}, strict=True)
        assert cluster.broker.offsets["g", "tea", 0] == 5


@on_loop
async def test_after_the_queue_began_anew_only_its_new_offset_is_repeated() -> None:
    async with offsets() as (cluster, group):
        await group.commit({QUEUE: 5}, strict=True)
        group.forget(QUEUE)  # an operator has sent the group back
        await group.commit({QUEUE: 3}, strict=True)
        await crash(cluster, group, knows=3)
        await group.commit_again(strict=True)
        assert cluster.broker.offsets["g", "tea", 0] == 3


@on_loop
async def test_searching_names_the_boundary() -> None:
    async with offsets() as (cluster, group):
        answer = lambda peer, frame: reply(frame, header=OffsetResponse(offset=7))  # noqa: E731
        cluster.broker.script(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, answer)
        assert await group.search(QUEUE, 99, BoundaryType.UPPER) == 7
        asked = SearchOffset.decode(cluster.broker.seen(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)[0].ext)
        assert (asked.timestamp, asked.boundary) == (99, BoundaryType.UPPER)


def test_times_are_milliseconds_or_datetimes() -> None:
    assert time_ms(5) == 5
    assert time_ms(datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)) == 1000
    for wrong in ("middle", True, None, 1.5):
        with pytest.raises(ConfigError, match="consume_from"):
            check_consume_from(wrong)  # type: ignore[arg-type]
