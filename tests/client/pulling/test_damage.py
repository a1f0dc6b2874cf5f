"""A damaged message stops no consumer of any kind: it is told once, counted, and skipped."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kappamq.client.admin.admin import AsyncAdmin
from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.client.consumer.lite_pull import AsyncLitePullConsumer
from kappamq.client.consumer.pull_consumer import AsyncPullConsumer
from kappamq.client.pulling.damage import TELL_AGAIN_S, DamageReports
from kappamq.client.pulling.pull_loop import DAMAGED_S
from kappamq.clock import VirtualClock
from kappamq.message import DamagedMessage, MessageQueue, ReceivedMessage
from tests.client.fake import FakeCluster, fake_cluster
from tests.client.loop import on_loop
from tests.client.pulling.test_pulling import FLIPS
from tests.waiting import eventually_async as eventually

BODIES = [b"%02d" % number for number in range(60)]
GOOD = BODIES[:20] + BODIES[21:]


def fill(cluster: FakeCluster, flip: str = "body") -> None:
    cluster.broker.put("tea", 0, *BODIES)
    cluster.broker.spoil["tea", 0, 20] = FLIPS[flip]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "damaged" in record.getMessage()]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("flip", ["body", "size up", "zeros"])
@on_loop
async def test_a_listener_gets_everything_else(caplog: pytest.LogCaptureFixture, ordered: bool, flip: str) -> None:
    seen: list[bytes] = []

    async def listener(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async with fake_cluster(tea=1) as cluster:
        fill(cluster, flip)
        consumer = AsyncConsumer(
            **cluster.options(commit_ms=20),
            group="g",
            topics="tea",
            consume_from="first",
            listener=listener,
            ordered=ordered,
        )
        with caplog.at_level(logging.WARNING):
            async with consumer:
                await eventually(lambda: cluster.broker.offsets.get(("g", "tea", 0)) == 60, timeout=30)
        assert (seen if ordered else sorted(seen)) == GOOD
        assert consumer.damaged == 1
        (line,) = told(caplog)
        assert "topic tea queue 0 of broker broker-0" in line
        assert "offset 20" in line
        if flip != "zeros":
            assert "log offset 20000" in line


@on_loop
async def test_the_same_one_is_told_once_to_a_consumer_that_meets_it_again(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster(tea=1) as cluster:
        fill(cluster)
        queue = MessageQueue("tea", "broker-0", 0)
        async with AsyncLitePullConsumer(**cluster.options(), group="g") as consumer:
            await consumer.assign([queue])
            for _ in range(2):
                await consumer.seek(queue, 0)
                got: list[bytes] = []
                async with asyncio.timeout(30):
                    while len(got) < 59:
                        got += [message.body for message in await consumer.poll(1.0)]
                assert got == GOOD
            assert consumer.damaged == 1
        assert len(told(caplog)) == 1


@on_loop
async def test_polling_and_reading_by_hand_go_on_too(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster(tea=1) as cluster:
        fill(cluster, "size huge")
        async with AsyncConsumer(**cluster.options(), group="g", topics="tea", consume_from="first") as consumer:
            polled = [await consumer.poll(10.0) for _ in range(59)]
            assert [message.body for message in polled if message] == GOOD
        async with AsyncPullConsumer(**cluster.options(), group="h") as reader:
            queue = MessageQueue("tea", "broker-0", 0)
            assert [message.body async for message in reader.read(queue, 0)] == GOOD
            assert (reader.damaged, reader.missing) == (1, 0)
        async with AsyncAdmin(**cluster.options()) as admin:
            assert admin.start().damage.count == 0


@on_loop
async def test_nothing_but_damage_is_neither_asked_for_nor_told_without_pause(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, *BODIES[:6])
        for offset in range(5):
            cluster.broker.spoil["tea", 0, offset] = FLIPS["body"]
        options = cluster.options(pull_batch=1)
        began = asyncio.get_running_loop().time()
        async with AsyncConsumer(**options, group="g", topics="tea", consume_from="first") as consumer:
            message = await consumer.poll(30.0)
            assert message is not None
            assert message.body == BODIES[5]
            assert consumer.damaged == 5
        assert asyncio.get_running_loop().time() - began >= 5 * DAMAGED_S * 0.9
        assert len(told(caplog)) == 1


def test_of_each_queue_one_is_told_in_a_while_with_the_number_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    reports = DamageReports(clock.liveness)

    def report(queue_id: int, number: int) -> None:
        queue = MessageQueue("tea", "b", queue_id)
        assert reports.report(
            DamagedMessage(queue=queue, queue_offset=number, log_offset=None, reason="why", fingerprint=number)
        )

    for number in range(1000):
        report(1, number)
    report(2, 0)
    assert [line.split(" of broker")[0] for line in told(caplog)] == ["topic tea queue 1", "topic tea queue 2"]
    clock.advance(TELL_AGAIN_S)
    report(1, 1000)
    assert reports.count == 1002
    assert "as were 999 others of this queue" in told(caplog)[-1]


def test_reports_are_remembered_within_bounds(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kappamq.client.pulling.damage._REMEMBERED_MAX", 2)
    reports = DamageReports()
    queue = MessageQueue("tea", "b", 1)

    def damaged(number: int) -> DamagedMessage:
        return DamagedMessage(queue=queue, queue_offset=number, log_offset=None, reason="why", fingerprint=number)

    assert [reports.report(damaged(number)) for number in (1, 1, 2, 3, 3)] == [True, False, True, True, False]
    assert reports.count == 3
    assert "log offset unknown" in caplog.text
