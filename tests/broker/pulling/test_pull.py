"""Pulls that the kernel cannot answer alone: what is only on disk, what is far apart, what waits in vain."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.pulling import lending
from kappamq.broker.pulling import pull as pull_module
from kappamq.broker.pulling.filtering import Filtering
from kappamq.clock import VirtualClock
from kappamq.config.broker import BrokerConfig
from kappamq.protocol.bodies.clients import ConsumerData, HeartbeatData, MessageModel, SubscriptionData
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.client import HeartBeat, PullMessage
from kappamq.protocol.records.record import iter_records
from kappamq.protocol.records.tags import java_hash
from tests.broker.operating import make_topic, on_broker, refused
from tests.broker.running import MODES, Speaker, run, running, speaking
from tests.store.faulty import FaultyFiles
from tests.store.stores import kernels
from tests.waiting import eventually_async as eventually

with_each_mode = pytest.mark.parametrize("mode", MODES)
with_each_kernel = pytest.mark.parametrize("kernel", kernels())


def bodies(answer: Any) -> list[int]:
    assert answer.code == 0, (answer.code, answer.remark)
    return [int(record.body[:8]) for record in iter_records(answer.body)]


async def send(
    client: Speaker, count: int, *, topic: str = "t", queue_id: int = 0, size: int = 8, tags: str = ""
) -> None:
    for number in range(count):
        text = f"UNIQ_KEY\x01U{number}" + (f"\x02TAGS\x01{tags[number % len(tags)]}" if tags else "")
        answer = await client.send(topic, b"%08d" % number + bytes(size - 8), queue_id, text)
        assert answer.code == 0, answer.remark


# -- on disk only ----------------------------------------------------------------------------------------------------------


@with_each_mode
def test_entries_and_records_on_disk_only(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several queue files, from everywhere, with and without tags; what is sent now follows what was sent then."""
    monkeypatch.setattr(lending, "_ENTRIES_AT_ONCE", 50)

    async def test() -> None:
        store = {"queue_file_entries": 64}
        async with running(tmp_path, mode, store=store) as broker, speaking(broker) as client:
            await send(client, 200, tags="abc")
        async with running(tmp_path, mode, store=store) as broker, speaking(broker) as client:
            await send(client, 3)
            for offset in (0, 13, 63, 64, 127, 199):
                answer = await client.pull("t", offset, explicit=True, count_max=20)
                seen = bodies(answer)
                assert seen
                assert seen == [*range(200), 0, 1, 2][offset : offset + len(seen)]
                assert answer.ext["maxOffset"] == "203"
            everything = [int(record.body) for record in await client.read("t")]
            assert everything == [*range(200), 0, 1, 2]
            await client.subscribe("g", "t", "b", {java_hash("b")})
            seen, offset = [], 0
            while offset < 203:
                answer = await client.pull("t", offset)
                seen += bodies(answer) if answer.code == 0 else []
                assert int(answer.ext["nextBeginOffset"]) > offset
                offset = int(answer.ext["nextBeginOffset"])
            assert seen == list(range(1, 200, 3))

    run(test())


@with_each_kernel
def test_what_a_worker_has_read_is_not_read_again(tmp_path: Path, kernel: str) -> None:
    async def test() -> None:
        clock = VirtualClock()
        async with running(tmp_path, kernel) as broker, speaking(broker) as client:
            await send(client, 100)
        files = FaultyFiles()
        async with (
            running(tmp_path, kernel, clock=clock, files=files, net={"idle_s": 0}) as broker,
            speaking(broker) as client,
        ):
            await eventually(lambda: not broker.store.catching_up(), text="the key index reads the log, too")

            async def reads() -> int:
                before = files.count("warm", "commitlog")
                assert bodies(await client.pull("t", 10, explicit=True)) == list(range(10, 42))
                return files.count("warm", "commitlog") - before

            assert await reads() > 0, "cold: warmed first"
            assert await reads() == 0, "warm: gathered at once"
            assert bodies(await client.pull("t", 60, explicit=True)) == list(range(60, 92))
            assert await reads() == 0, "and so is what follows it"
            clock.advance(11)
            broker.pulls.ahead.expire()  # as it happens ten times a second
            assert await reads() > 0, "nobody knows whether it is still in memory"

    run(test())


@with_each_mode
def test_a_queue_sparse_over_the_log(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records are far apart: only they are read, not what lies between them."""
    monkeypatch.setattr(pull_module, "COMPACT_BYTES", 100_000)

    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            await make_topic(client, "filler")
            for number in range(12):
                assert (await client.send("t", b"%08d" % number)).code == 0
                await send(client, 2, topic="filler", size=60_000)
        files = FaultyFiles()
        async with running(tmp_path, mode, files=files) as broker, speaking(broker) as client:
            await eventually(lambda: not broker.store.catching_up(), text="the key index reads the log, too")
            sizes: list[int] = []
            warm = files.warm

            def watched(fd: int, count: int, at: int) -> None:
                sizes.append(count)
                warm(fd, count, at)

            files.warm = watched  # type: ignore[method-assign]
            answer = await client.pull("t", 0, explicit=True)
            assert bodies(answer) == list(range(12))
            assert 0 < sum(sizes) < 20_000, "1.4 MB lie between the first and the last"
            assert bodies(await client.pull("t", 3, explicit=True, count_max=4)) == [3, 4, 5, 6]

    run(test())


@with_each_kernel
def test_entries_that_have_to_be_fetched_by_a_worker(tmp_path: Path, kernel: str) -> None:
    """As on a disk whose pages are not in memory: the loop is told so, and does not wait."""

    async def test() -> None:
        async with running(tmp_path, kernel) as broker, speaking(broker) as client:
            await send(client, 40)
        async with running(tmp_path, kernel) as broker, speaking(broker) as client:
            broker.store.queues.read_resident = lambda *place: None  # type: ignore[method-assign]
            fetched: list[Any] = []
            worker = broker.pulls.lending._worker

            def watched(work: Any, *arguments: Any) -> Any:
                fetched.append(work.__name__)
                return worker(work, *arguments)

            broker.pulls.lending._worker = watched
            ahead = broker.pulls.ahead._blocks
            assert bodies(await client.pull("t", 5, explicit=True, count_max=10)) == list(range(5, 15))
            assert fetched == ["read"]
            assert len(ahead) == 1
            assert bodies(await client.pull("t", 8, explicit=True, count_max=10)) == list(range(8, 18))
            assert (fetched, len(ahead)) == (["read"], 1), "the loan and the warmth last"

    run(test())


@with_each_kernel
def test_entries_that_cannot_be_read(tmp_path: Path, kernel: str) -> None:
    async def test() -> None:
        async with running(tmp_path, kernel) as broker, speaking(broker) as client:
            await send(client, 40)
        files = FaultyFiles()
        async with running(tmp_path, kernel, files=files) as broker, speaking(broker) as client:
            broker.store.queues.read_resident = lambda *place: None  # type: ignore[method-assign]
            files.fail("pread", on="consumequeue")
            answer = await client.pull("t", 5, explicit=True)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "t/0 from 5 on cannot be read: Input/output error; check the broker's disk" in (answer.remark or "")
            files.repair()
            assert bodies(await client.pull("t", 38, explicit=True)) == [38, 39]

    run(test())


@with_each_kernel
def test_entries_that_are_not_there_after_all(tmp_path: Path, kernel: str) -> None:
    """A queue file was removed by hand: the answer comes, and it is not a message."""

    async def test() -> None:
        store = {"queue_file_entries": 16}
        async with running(tmp_path, kernel, store=store) as broker, speaking(broker) as client:
            await send(client, 40)
        async with running(tmp_path, kernel, store=store) as broker, speaking(broker) as client:
            (tmp_path / "consumequeue" / "t" / "0" / f"{320:020d}").unlink()
            answer = await client.pull("t", 20, explicit=True, timeout=30)
            assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_FOUND_NULL")
            assert bodies(await client.pull("t", 33, explicit=True)) == list(range(33, 40))

    run(test())


@with_each_kernel
def test_records_that_are_gone(tmp_path: Path, kernel: str) -> None:
    """The log lost its first file, and the queue has not heard of it yet."""

    async def test() -> None:
        small = {"segment_bytes": 64 << 10, "message_bytes_max": 16 << 10}
        async with running(tmp_path, kernel, store=small) as broker, speaking(broker) as client:
            await send(client, 4, size=8000, tags="o")
            await send(client, 36, size=8000, tags="n")
        async with running(tmp_path, kernel, store=small) as broker, speaking(broker) as client:
            log = broker.store.log
            log.discard(log.detach(0))
            answer = await client.pull("t", 0, explicit=True)
            first = next(iter_records(answer.body)).queue_offset
            assert 4 < first < 10, "what is left of what was asked for"
            await client.subscribe("g", "t", "o", {java_hash("o")})
            answer = await client.pull("t", 0)
            assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING")
            assert answer.ext["nextBeginOffset"] == "40"
            await broker.upkeep.raise_minimums()
            answer = await client.pull("t", 0, explicit=True)
            assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL")
            assert (answer.ext["nextBeginOffset"], answer.ext["minOffset"]) == (str(first), str(first))

    run(test())


# -- waiting ---------------------------------------------------------------------------------------------------------------


async def parked(broker: Broker, client: Speaker, offset: int, hold_ms: int, **changes: Any) -> asyncio.Future[Any]:
    before = broker.pulls.waiting.count
    waiting = asyncio.ensure_future(client.pull("t", offset, sys_flag=2, hold_ms=hold_ms, timeout=60, **changes))
    await eventually(lambda: broker.pulls.waiting.count == before + 1)
    return waiting


@with_each_mode
def test_parked_pulls_expire_in_their_order(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        clock = VirtualClock()
        patient: dict[str, Any] = {"net": {"idle_s": 0}, "client_expiry_ms": 86_400_000}
        async with running(tmp_path, mode, clock=clock, **patient) as broker, speaking(broker) as client:
            await send(client, 1)
            await client.subscribe("g", "t")
            long = await parked(broker, client, 1, 20_000)
            short = await parked(broker, client, 1, 15_000)
            endless = await parked(broker, client, 1, 1 << 40)
            clock.advance(14.9)
            broker.pulls.expire()
            assert broker.pulls.waiting.count == 3
            clock.advance(0.2)
            answer = await asyncio.wait_for(short, 30)
            assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")
            assert (answer.ext["nextBeginOffset"], answer.ext["maxOffset"]) == ("1", "1")
            assert not long.done()
            clock.advance(5)
            assert (await asyncio.wait_for(long, 5)).code == ResponseCode.PULL_NOT_FOUND
            clock.advance(39)
            broker.pulls.expire()
            assert not endless.done()
            clock.advance(1)
            assert (await asyncio.wait_for(endless, 5)).code == ResponseCode.PULL_NOT_FOUND, "a minute at most"
            assert broker.pulls.waiting.count == 0

    run(test())


@with_each_mode
def test_a_queue_that_never_held_anything_is_waited_for_at_its_beginning_only(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            await client.subscribe("g", "t")
            waiting = await parked(broker, client, 0, 30_000, queue_id=2)
            answer = await client.pull("t", 5, queue_id=2, sys_flag=2, hold_ms=30_000)
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
            await send(client, 1, queue_id=2)
            assert bodies(await asyncio.wait_for(waiting, 5)) == [0]

    run(test())


def test_without_long_polling_pulls_wait_the_short_time(tmp_path: Path) -> None:
    async def test() -> None:
        clock = VirtualClock()
        async with (
            running(tmp_path, clock=clock, long_polling=False, short_polling_ms=500) as broker,
            speaking(broker) as client,
        ):
            await send(client, 1)
            await client.subscribe("g", "t")
            waiting = await parked(broker, client, 1, 30_000)
            clock.advance(0.4)
            broker.pulls.expire()
            assert not waiting.done()
            clock.advance(0.2)
            assert (await asyncio.wait_for(waiting, 5)).code == ResponseCode.PULL_NOT_FOUND

    run(test())


@with_each_mode
def test_who_waits_for_a_rare_tag_is_not_woken_for_others(tmp_path: Path, mode: str) -> None:
    """It waits on behind what it does not want, no longer than it wanted to wait."""

    async def test() -> None:
        clock = VirtualClock()
        patient: dict[str, Any] = {"net": {"idle_s": 0}, "client_expiry_ms": 86_400_000}
        async with running(tmp_path, mode, clock=clock, **patient) as broker, speaking(broker) as client:
            await send(client, 1, tags="a")
            await client.subscribe("g", "t", "rare", {java_hash("rare")})
            waiting = await parked(broker, client, 1, 20_000)
            missed = broker.pulls.missed
            clock.advance(10)
            await send(client, 7, tags="ab")
            assert (broker.pulls.waiting.count, broker.pulls.missed) == (1, missed)
            assert not waiting.done()
            clock.advance(9.9)
            await send(client, 2, tags="a")
            broker.pulls.expire()
            assert not waiting.done()
            clock.advance(0.2)
            answer = await asyncio.wait_for(waiting, 5)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "10"), (
                "as far as was seen"
            )
            waiting = await parked(broker, client, 10, 20_000)
            await send(client, 3, tags="a")
            sent = await client.send("t", b"%08d" % 99, 0, "UNIQ_KEY\x01R\x02TAGS\x01rare")
            assert sent.code == 0
            answer = await asyncio.wait_for(waiting, 5)
            assert (bodies(answer), answer.ext["nextBeginOffset"]) == ([99], "14")
            assert (await client.pull("t", 0, sys_flag=2, hold_ms=1000, count_max=5)).code == 0, "a first look answers"

    run(test())


@with_each_kernel
def test_cold_pulls_of_one_connection_have_an_end(tmp_path: Path, kernel: str) -> None:
    async def test() -> None:
        async with running(tmp_path, kernel) as broker, speaking(broker) as client:
            await send(client, 40)
        net = {"connection_inflight_bytes_max": 2 << 20}
        async with running(tmp_path, kernel, net=net) as broker, speaking(broker) as client:
            released = asyncio.Event()
            reading = 0

            fetch = broker.pulls.ahead.fetch

            async def slow(low: int, high: int) -> None:
                nonlocal reading
                reading += 1
                await released.wait()
                await fetch(low, high)

            broker.pulls.ahead.fetch = slow  # type: ignore[method-assign]
            (connection,) = broker.server.connections
            pulls = []
            for number in range(6):
                pulls.append(asyncio.ensure_future(client.pull("t", number, explicit=True, timeout=30)))
                await eventually(lambda: connection.is_held or reading == len(pulls))
            assert connection.is_held, "no more is taken from who has so much to read"
            assert reading == 5
            released.set()
            for number, pull in enumerate(pulls):
                assert bodies(await pull)[0] == number
            assert not connection.is_held

    run(test())


def test_when_too_many_wait_the_next_is_answered_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, parked_pulls_max=2) as broker, speaking(broker) as client:
            await send(client, 1)
            await client.subscribe("g", "t")
            waiting = [await parked(broker, client, 1, 30_000) for _ in range(2)]
            missed = broker.pulls.missed
            answer = await client.pull("t", 1, sys_flag=2, hold_ms=30_000)
            assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert broker.pulls.missed == missed + 1
            await send(client, 1)
            for future in waiting:
                assert bodies(await asyncio.wait_for(future, 20)) == [0]

    run(test())


# -- rules -----------------------------------------------------------------------------------------------------------------


def pull(**changes: Any) -> PullMessage:
    values: dict[str, Any] = {
        "consumer_group": "g", "topic": "t", "queue_id": 0, "queue_offset": 0, "count_max": 32, "sys_flag": 0, "commit_offset": 0,
        "hold_ms": 0, "subscription_version": 1,
    }  # fmt: skip
    return PullMessage(**(values | changes))


@on_broker()
async def test_subscriptions_unknown_outdated_or_not_of_tags(broker: Broker, client: Speaker) -> None:
    await send(client, 3)
    await refused(client, pull(), ResponseCode.SUBSCRIPTION_NOT_EXIST, "heartbeat for group g")
    await client.subscribe("g", "other")
    await refused(client, pull(), ResponseCode.SUBSCRIPTION_NOT_EXIST, "not subscribed to t")
    await client.subscribe("g", "t", version=1)
    await refused(client, pull(subscription_version=2), ResponseCode.SUBSCRIPTION_NOT_LATEST, "1 < 2")
    assert bodies(await client.ask(pull(subscription_version=0))) == [0, 1, 2]
    filtered = SubscriptionData(topic="t", expression="a", expression_type="XPATH", version=5)
    data = HeartbeatData(client_id="c1", consumers=[ConsumerData(group="g", subscriptions=[filtered])])
    await client.ask(HeartBeat(), data.encode())
    await refused(client, pull(subscription_version=5), ResponseCode.SYSTEM_ERROR, "by XPATH")


@on_broker()
async def test_groups_that_may_not(broker: Broker, client: Speaker) -> None:
    await send(client, 1)
    data = ConsumerData(
        group="g", message_model=MessageModel.BROADCASTING, subscriptions=[SubscriptionData(topic="t", version=1)]
    )
    await client.ask(HeartBeat(), HeartbeatData(client_id="c1", consumers=[data]).encode())
    assert (await client.ask(pull())).code == 0
    group = broker.groups.table["g"]
    for change in ("consume_broadcast_enable", "consume_enable"):
        setattr(group, change, False)
        broker.subscriptions.drop_group("g")
        await refused(client, pull(), ResponseCode.NO_PERMISSION, "g")
        setattr(group, change, True)
    assert (await client.ask(pull())).code == 0


@on_broker(permission=2)
async def test_a_broker_that_is_not_for_reading(broker: Broker, client: Speaker) -> None:
    assert (await client.send("t", b"x")).code == 0
    await refused(
        client, pull(sys_flag=4, subscription="*"), ResponseCode.NO_PERMISSION, "pulling message is forbidden"
    )


@on_broker()
async def test_an_explicit_subscription_needs_no_heartbeat(broker: Broker, client: Speaker) -> None:
    await send(client, 9, tags="abc")
    for subscription, wanted in (("*", range(9)), ("", range(9)), ("a||c", (0, 2, 3, 5, 6, 8)), ("b", (1, 4, 7))):
        answer = await client.ask(pull(sys_flag=4, subscription=subscription))
        assert bodies(answer) == list(wanted), subscription
    await refused(
        client, pull(sys_flag=4, subscription="x", expression_type="XPATH"), ResponseCode.SYSTEM_ERROR, "XPATH"
    )


def test_codes_of_tags_come_from_the_expression() -> None:
    tag_codes = Filtering(BrokerConfig(), asyncio.sleep).tag_codes
    assert tag_codes(SubscriptionData(topic="t", expression="*")) is None
    assert tag_codes(SubscriptionData(topic="t", expression="")) is None
    lying = SubscriptionData(topic="t", expression="a || b", codes={0})
    assert tag_codes(lying) == {java_hash("a"), java_hash("b")}


@with_each_kernel
def test_senders_do_not_wait_for_all_who_read_from_disk(tmp_path: Path, kernel: str) -> None:
    """Eight pulls at once that have to ask the disk: each has a turn of the loop to itself."""

    async def test() -> None:
        async with running(tmp_path, kernel) as broker, speaking(broker) as client:
            await make_topic(client, "t", 8)
            for queue_id in range(8):
                await send(client, 5, queue_id=queue_id)
        async with running(tmp_path, kernel) as broker, speaking(broker) as client:
            await client.pull("t", 0, 0, explicit=True)  # from now on the kernel knows who is asking
            turns: list[int] = []
            lend = broker.pulls.lending.lend_resident
            loop = asyncio.get_running_loop()
            turn = 0

            def count() -> None:
                nonlocal turn
                turn += 1
                loop.call_soon(count)

            def watched(request: Any) -> bool:
                turns.append(turn)
                return lend(request)

            broker.pulls.lending.lend_resident = watched  # type: ignore[method-assign]
            count()
            answers = await asyncio.gather(*(client.pull("t", 0, queue_id, explicit=True) for queue_id in range(1, 8)))
            assert [bodies(answer) for answer in answers] == [[0, 1, 2, 3, 4]] * 7
            assert len(turns) == len(set(turns)) == 7

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_a_record_that_cannot_be_given_out_is_told_once_and_costs_no_neighbour(
    tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            bodies = [b"cup %d" % number for number in range(5)]
            for body in bodies:
                await client.send("t", body)
            log_offset = (await client.read("t"))[2].log_offset
            path = min((tmp_path / "commitlog").iterdir())
            with path.open("r+b") as log:
                log.seek(log_offset + 2)
                log.write(b"\x7f")  # in its size
            for _ in range(2):
                answer = await client.pull("t", 0, explicit=True)
                assert [record.body for record in iter_records(answer.body)] == bodies[:2]
                answer = await client.pull("t", 2, explicit=True)
                assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "3")
                assert [record.body for record in await client.read("t", offset=3)] == bodies[3:]
        assert caplog.text.count("message 2 cannot be read, its log record is damaged or gone") == 1

    run(test())
