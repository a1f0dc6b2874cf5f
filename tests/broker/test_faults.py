"""A disk that is full, slow or broken: senders hear a code and a reason, reading goes on, nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kappamq.broker.broker import Broker
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import QueryConsumerOffset, UpdateConsumerOffset
from kappamq.protocol.records.record import iter_records
from tests.broker.running import MODES, Speaker, run, running, speaking
from tests.needs import needs
from tests.store.faulty import FaultyFiles, SlowFlusher
from tests.store.small_disk import fill, small_disk
from tests.store.stores import kernels
from tests.waiting import eventually_async as eventually

KERNELS = kernels()
SMALL = {
    "segment_bytes": 1 << 20,
    "message_bytes_max": 64 << 10,
    "clean_interval_ms": 50,
    "queue_flush_interval_ms": 50,
}


class Books:
    """What a sender was promised."""

    def __init__(self, client: Speaker, topic: str = "t") -> None:
        self.client = client
        self.topic = topic
        self.stored: list[bytes] = []

    async def send(self, size: int = 1000) -> Frame:
        body = b"%06d" % len(self.stored) + b"." * size
        answer = await self.client.send(self.topic, body)
        if answer.code == 0:
            self.stored.append(body)
        return answer

    async def send_until_refused(self, size: int = 20_000, limit: int = 5000) -> Frame:
        for _ in range(limit):
            answer = await self.send(size)
            if answer.code != 0:
                return answer
        raise AssertionError("the disk never got full")

    async def send_until_taken(self) -> None:
        async def taken() -> bool:
            return (await self.send()).code == 0

        await eventually(taken, text="writing resumes by itself")

    async def check(self, client: Speaker | None = None) -> None:
        assert [record.body for record in await (client or self.client).read(self.topic)] == self.stored


async def reading_goes_on(broker: Broker, books: Books) -> None:
    """A consumer that comes now, of a group nobody has seen, reads, commits and waits for more."""
    await books.check()
    group = f"new{broker.groups.version.counter}"
    async with speaking(broker) as consumer:
        assert (await consumer.subscribe(group, books.topic)).code == 0
        answer = await consumer.pull(books.topic, 0, group=group)
        assert answer.code == 0
        commit = UpdateConsumerOffset(consumer_group=group, topic=books.topic, queue_id=0, commit_offset=1)
        assert (await consumer.ask(commit)).code == 0
        asked = await consumer.ask(QueryConsumerOffset(consumer_group=group, topic=books.topic, queue_id=0))
        assert asked.ext["offset"] == "1"
        empty = await consumer.pull(books.topic, len(books.stored), group=group, sys_flag=2, hold_ms=50)
        assert empty.code == ResponseCode.PULL_NOT_FOUND


# --- full ---------------------------------------------------------------------------------------------------------------


@needs("loop")
@pytest.mark.parametrize("mode", KERNELS)
def test_the_guard_refuses_before_the_disk_is_full_and_opens_again(mode: str) -> None:
    async def test(root: Path) -> None:
        limits = {"disk_refuse_ratio": 0.5, "disk_refuse_free_bytes": 8 << 20}
        async with running(root, mode, store=SMALL | limits) as broker, speaking(broker) as client:
            books = Books(client)
            for _ in range(10):
                assert (await books.send()).code == 0
            ballast = fill(root, leave=6 << 20)
            await eventually(lambda: broker.gate.has("disk full"))
            answer = await books.send()
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "full" in (answer.remark or "")
            assert "free some space" in (answer.remark or "")
            await reading_goes_on(broker, books)
            ballast.unlink()
            await books.send_until_taken()
        async with running(root, mode, store=SMALL) as broker, speaking(broker) as client:
            assert broker.recovered.clean
            await books.check(client)

    with small_disk(64 << 20) as root:
        run(test(root))


@needs("loop")
@pytest.mark.parametrize("mode", [*KERNELS, "slow"])
def test_no_space_for_the_next_log_file(mode: str) -> None:
    async def test(root: Path) -> None:
        unguarded = {"disk_refuse_ratio": 1.0, "disk_refuse_free_bytes": 0}
        async with running(root, mode, store=SMALL | unguarded) as broker, speaking(broker) as client:
            books = Books(client)
            for _ in range(10):
                assert (await books.send()).code == 0
            ballast = fill(root, leave=700 << 10)  # less than the next file
            answer = await books.send_until_refused()
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "next log file" in (answer.remark or "")
            assert "No space left" in (answer.remark or "")
            await reading_goes_on(broker, books)
            ballast.unlink()
            await books.send_until_taken()
            for _ in range(100):
                assert (await books.send(20_000)).code == 0
            await books.check()
        async with running(root, mode, store=SMALL) as broker, speaking(broker) as client:
            assert broker.recovered.clean
            await books.check(client)

    with small_disk(64 << 20) as root:
        run(test(root))


@needs("loop")
def test_a_disk_without_a_byte_left_loses_nothing_and_kills_nobody() -> None:
    """Queue files, index, snapshots and positions cannot be written any more: the log has it all."""

    async def test(root: Path) -> None:
        unguarded = {"disk_refuse_ratio": 1.0, "disk_refuse_free_bytes": 0, "clean_interval_ms": 3_600_000}
        async with running(root, store=SMALL | unguarded) as broker, speaking(broker) as client:
            books = Books(client)
            for _ in range(10):
                assert (await books.send()).code == 0
            await broker.upkeep.write_derived()
            ballast = fill(root, leave=0)
            other = Books(client, "other")
            for _ in range(3):  # its queue files have nowhere to go
                await other.send()
            await eventually(lambda: broker.gate.has("files") or broker.gate.has("no room"))
            answer = await books.send()
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            await reading_goes_on(broker, books)
            await other.check()
            ballast.unlink()
            await books.send_until_taken()
            await other.send_until_taken()
            ballast = fill(root, leave=0)
            await books.send()
        # It was stopped with the disk full. The next start has to do what could not be done.
        assert (root / "abort").exists()
        ballast.unlink()
        async with running(root, store=SMALL) as broker, speaking(broker) as client:
            await books.check(client)
            await other.check(client)

    with small_disk(32 << 20) as root:
        run(test(root))


@pytest.mark.parametrize("where", ["consumequeue", "index", "config", "kappamq.position", "checkpoint"])
def test_files_beside_the_log_that_cannot_be_written(tmp_path: Path, where: str) -> None:
    """The same without a real disk, file by file: the broker goes on or refuses, and makes up for it later."""

    async def test() -> None:
        files = FaultyFiles()
        async with running(tmp_path, files=files, store=SMALL) as broker, speaking(broker) as client:
            books = Books(client)
            assert (await books.send()).code == 0
            files.fail("pwrite", "open", "truncate", code=errno.ENOSPC, on=where)
            await books.send()
            if where not in ("config", "checkpoint"):  # these are written seldom, and are missed by nobody meanwhile
                await eventually(lambda: broker.gate.has("files"))
                answer = await books.send()
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert "cannot be written" in (answer.remark or "")
            await reading_goes_on(broker, books)
            files.repair()
            await books.send_until_taken()
        async with running(tmp_path, store=SMALL) as broker, speaking(broker) as client:
            assert broker.recovered.clean
            await books.check(client)
            assert len(broker.offsets.groups_of("t")) == 1, "and the offset that was committed meanwhile is there"

    run(test())


def test_offsets_committed_while_nothing_can_be_recorded_survive_a_stop(tmp_path: Path) -> None:
    async def test() -> None:
        files = FaultyFiles()
        async with running(tmp_path, files=files, store=SMALL) as broker, speaking(broker) as client:
            books = Books(client)
            await books.send()
            files.fail("pwrite", on="commitlog")
            assert (await books.send()).code == ResponseCode.SERVICE_NOT_AVAILABLE
            await reading_goes_on(broker, books)
        async with running(tmp_path, store=SMALL) as broker, speaking(broker) as client:
            (group,) = broker.offsets.groups_of("t")
            assert broker.offsets.get(group, "t", 0) == 1
            assert broker.groups.get(group) is not None
            assert (await Books(client).send()).code == 0

    run(test())


# --- broken -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_fdatasync_fails(tmp_path: Path, mode: str, flush: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode, flusher=SlowFlusher, store=SMALL | {"flush": flush}) as broker:
            flusher = SlowFlusher.made
            async with speaking(broker) as client, speaking(broker) as consumer:
                books = Books(client)
                first = asyncio.ensure_future(books.send())
                while not first.done():
                    flusher.sync()
                    await asyncio.sleep(0)
                assert (await first).code == 0
                waiting = asyncio.ensure_future(consumer.pull("t", 1, explicit=True, sys_flag=6, hold_ms=20_000))
                await eventually(lambda: broker.pulls.waiting.count)
                late = [asyncio.ensure_future(client.send("t", b"late %d" % number)) for number in range(20)]
                await eventually(lambda: broker.kernel.queue_state("t", 0).next == 21 and flusher.behind)
                flusher.break_down()
                answers = await asyncio.gather(*late)
                if flush == "sync":
                    assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}
                    assert "not known to be stored" in (answers[0].remark or "")
                    assert not waiting.done(), "what may be gone tomorrow is shown to nobody"
                else:
                    assert {answer.code for answer in answers} == {0}
                    books.stored += [b"late %d" % number for number in range(20)]
                    assert (await waiting).code == 0
                await eventually(lambda: broker.gate.has("failed"))
                refused = await books.send()
                assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert "restart" in (refused.remark or "")
                unknown = await client.send("another", b"x")
                assert unknown.code == ResponseCode.SERVICE_NOT_AVAILABLE
                await reading_goes_on(broker, books)
                waiting.cancel()
        async with running(tmp_path, mode, store=SMALL | {"flush": flush}) as broker, speaking(broker) as client:
            assert not broker.recovered.clean
            found = [record.body for record in await client.read("t")]
            assert found[: len(books.stored)] == books.stored
            assert (await client.send("t", b"again")).code == 0

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_a_write_of_the_log_fails(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        files = FaultyFiles()
        async with running(tmp_path, mode, files=files, store=SMALL) as broker, speaking(broker) as client:
            books = Books(client)
            for _ in range(5):
                assert (await books.send()).code == 0
            files.fail("pwrite", on="commitlog")
            lost = await asyncio.gather(*(client.send("t", b"lost") for _ in range(5)))
            assert {answer.code for answer in lost} == {ResponseCode.SERVICE_NOT_AVAILABLE}
            assert all("Input/output error" in (answer.remark or "") for answer in lost)
            files.repair()
            refused = await books.send()
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE, "until a restart, whatever the disk says now"
            await reading_goes_on(broker, books)
        async with running(tmp_path, mode, store=SMALL) as broker, speaking(broker) as client:
            await books.check(client)
            await Books(client).send_until_taken()

    run(test())


@pytest.mark.parametrize("mode", KERNELS)
def test_records_that_cannot_be_read(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        files = FaultyFiles()
        async with running(tmp_path, mode, files=files, store=SMALL) as broker, speaking(broker) as client:
            books = Books(client)
            for _ in range(5):
                await books.send()
            broker.kernel.hot_from = broker.store.log.end  # as if they had left the memory long ago
            files.fail("warm", on="commitlog")
            answer = await client.pull("t", 0, explicit=True)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "Input/output error" in (answer.remark or "")
            assert (await books.send()).code == 0, "sending has nothing to do with it"
            files.repair()
            await books.check()

    run(test())


# --- slow ---------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def stopped_disk(root: Path, mode: str, **store: object) -> AsyncIterator[tuple[Broker, SlowFlusher]]:
    async with running(root, mode, flusher=SlowFlusher, store=SMALL | store) as broker:
        yield broker, SlowFlusher.made


@pytest.mark.parametrize("mode", MODES)
def test_senders_wait_then_hear_that_the_disk_is_busy_then_go_on(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with (
            stopped_disk(tmp_path, mode, unflushed_bytes_max=64 << 10) as (broker, flusher),
            speaking(broker) as client,
            speaking(broker) as other,
        ):
            books = Books(client)
            answers = [asyncio.ensure_future(books.send(3000)) for _ in range(60)]
            await eventually(lambda: broker.writer._held, text="the socket waits first")
            assert not broker.gate.reasons
            assert (await other.pull("t", 0, explicit=True)).code == 0, "who only reads does not wait"
            await eventually(lambda: broker.gate.has("congested"), text="and is told after a second")
            await asyncio.gather(*answers)
            busy = await other.send("t", b"x")
            assert busy.code == ResponseCode.SYSTEM_BUSY
            assert "behind" in (busy.remark or "")
            for _ in range(3):
                assert (await other.pull("t", 0, explicit=True)).code == 0
                assert (await other.send("t", b"x")).code == ResponseCode.SYSTEM_BUSY, "at once, every time"
            flusher.sync()
            await eventually(lambda: not broker.gate.reasons)
            sent = await books.send()
            assert sent.code == 0
            assert len(await other.read("t")) == len(books.stored)
            flusher.keep_up()

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_a_sync_flush_that_takes_too_long_is_code_10_and_the_message_is_stored(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with (
            stopped_disk(tmp_path, mode, flush="sync", sync_flush_timeout_ms=50) as (broker, flusher),
            speaking(broker) as client,
        ):
            answer = await client.send("t", b"slow")
            assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
            assert answer.ext["queueOffset"] == "0", "the answer still says where it is"
            assert "not confirmed" in (answer.remark or "")
            empty = await client.pull("t", 0, explicit=True)
            assert empty.code == ResponseCode.PULL_NOT_FOUND, "not on disk, not visible"
            unwaiting = await client.send("t", b"fast", properties="UNIQ_KEY\x01U\x02WAIT\x01false")
            assert unwaiting.code == 0, "who does not wait for the disk is not held up by it"
            flusher.sync()

            async def visible() -> bool:
                answer = await client.pull("t", 0, explicit=True)
                return [record.body for record in iter_records(answer.body)] == [b"slow", b"fast"]

            await eventually(visible)
            object.__setattr__(broker.store.config, "sync_flush_timeout_ms", 60_000)  # as an operator may
            flusher.keep_up()
            assert (await client.send("t", b"quick again")).code == 0

    run(test())


@pytest.mark.parametrize("mode", KERNELS)
def test_one_connection_cannot_have_everything_in_flight(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        net = {"connection_inflight_bytes_max": 64 << 10}
        async with running(tmp_path, mode, flusher=SlowFlusher, store=SMALL | {"flush": "sync"}, net=net) as broker:
            flusher = SlowFlusher.made
            async with speaking(broker) as greedy, speaking(broker) as modest:
                first = asyncio.ensure_future(modest.send("t", b"x"))
                while not first.done():
                    flusher.sync()
                    await asyncio.sleep(0)
                answers = [asyncio.ensure_future(greedy.send("t", bytes(8000))) for _ in range(400)]
                await eventually(lambda: any(connection.is_held for connection in broker.server.connections))
                parked = broker.store.log.end - broker.store.marks.flushed.offset
                assert parked < 1 << 20, "it was not all taken in"
                small = asyncio.ensure_future(modest.send("t", b"y"))
                await eventually(
                    lambda: broker.kernel.put_count and broker.store.log.end > broker.store.marks.flushed.offset
                )
                while not all(answer.done() for answer in [*answers, small]):
                    flusher.sync()
                    await asyncio.sleep(0)
                assert {answer.result().code for answer in [*answers, small]} == {0}
            flusher.keep_up()

    run(test())


def test_the_next_log_file_is_waited_for_and_never_made_twice(tmp_path: Path) -> None:
    """Two that made the same file removed each other's: messages in it were gone after a restart."""

    class SlowDisk(FaultyFiles):
        def allocate(self, fd: int, size: int) -> None:
            super().allocate(fd, size)
            started.set()
            release.wait(30)

    import threading

    started, release = threading.Event(), threading.Event()

    async def test() -> None:
        files = SlowDisk()
        release.set()
        async with running(tmp_path, files=files, store=SMALL) as broker, speaking(broker) as client:
            books = Books(client)
            release.clear()
            started.clear()
            answers = [asyncio.ensure_future(books.send(20_000)) for _ in range(48)]  # just under one file
            await asyncio.gather(*answers[:30])
            await eventually(started.is_set)
            await eventually(lambda: broker.writer._held or all(answer.done() for answer in answers))
            asyncio.get_running_loop().call_later(0.2, release.set)
            await asyncio.gather(*answers)
            while broker.store.log.end < 2 << 20:
                assert (await books.send(20_000)).code == 0
            made = [path for operation, path in files.calls if operation == "allocate"]
            assert len(made) == len(set(made))
        async with running(tmp_path, store=SMALL) as broker, speaking(broker) as client:
            found = sorted(record.body for record in await client.read("t"))
            assert found == sorted(books.stored)

    run(test())
