"""Damage under a running broker: it costs what it hit and nothing else, it is told, and what the log knows is repaired."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.upkeep.damage import EntryRepair
from kappamq.native.mapping import MappedFile
from kappamq.net.channel import Channel
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import GetBrokerRuntimeInfo
from kappamq.protocol.records.record import RecordError, iter_records
from kappamq.store.log.commit_log import Segment
from kappamq.store.log.log_reader import LogReader
from kappamq.store.log.pread_around import PreadAround
from tests.broker.running import MODES, Speaker, run, running
from tests.broker.test_fault_processes import ENVIRONMENT, UP, speaker
from tests.needs import needs
from tests.store.small_disk import small_disk
from tests.store.stores import kernels
from tests.waiting import eventually_async as eventually

pytestmark = pytest.mark.timeout(120)


async def fill(client: Speaker, count: int, topic: str = "t") -> list[bytes]:
    bodies = [b"%05d" % number * 40 for number in range(count)]
    for body in bodies:
        assert (await client.send(topic, body, properties="UNIQ_KEY\x01U\x02TAGS\x01TagA")).code == 0
    return bodies


async def send_when_ready(client: Speaker, body: bytes, topic: str = "t") -> None:
    """A busy machine may be late with the next log file: senders are told to try again."""

    async def is_stored() -> bool:
        code = (await client.send(topic, body)).code
        assert code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY)
        return code == ResponseCode.SUCCESS

    await eventually(is_stored)


async def drain(
    client: Speaker, end: int, topic: str = "t", *, across_a_cut: bool = False, is_patient: bool = False
) -> list[bytes]:
    """All messages up to number `end`, as a consumer reads: it goes where it is sent and asks again. A patient one may be sent to where
    it is."""
    found: list[bytes] = []
    offset = 0
    while offset < end:
        answer = await client.pull(topic, offset, explicit=True, timeout=30)
        following = int(answer.ext["nextBeginOffset"])
        # An entry may be replaced while a pull reads it: "nothing now" at the same place is an answer, too.
        is_nothing_now = answer.code == ResponseCode.PULL_NOT_FOUND and is_patient and following == offset
        assert is_nothing_now or answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), answer
        assert following > offset or (is_patient and following == offset)
        try:
            for record in iter_records(answer.body) if answer.code == 0 else ():
                found.append(record.body)
        except RecordError:
            # Behind the cut the file grew again: the end of one record is zeros, and a client tells by the checksum.
            assert across_a_cut
        offset = following
    return found


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte ^ 0x80 >> bit % 8]))


# --- queue entries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bit", [5, 20, 40, 54, 62, 64, 65, 78, 92, 95])
def test_a_flip_in_a_queue_entry_hides_nothing(
    tmp_path: Path, mode: str, bit: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever bit of an entry's log offset or size has changed: every message is delivered, once and in order."""

    async def test() -> None:
        async with running(tmp_path, mode) as broker:
            bodies = await fill(client := await connected(broker), 60)
            client.channel.close()
        flip(tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}", 41 * 160 + bit)
        async with running(tmp_path, mode) as broker:
            client = await connected(broker)
            with caplog.at_level(logging.WARNING):
                assert await drain(client, 60) == bodies
            assert "the queue entry of message 41 was damaged, it is rebuilt from the log record at" in caplog.text
            assert (broker.damage.found, broker.damage.repaired) == (1, 1)
            caplog.clear()
            assert await drain(client, 60) == bodies
            told = [record for record in caplog.records if record.name == "kappamq.broker.upkeep.damage"]
            assert not told, "it is told once"
            client.channel.close()
        async with running(tmp_path, mode) as broker:
            client = await connected(broker)
            assert await drain(client, 60) == bodies, "it is in the file"
            assert broker.damage.found == 0
            client.channel.close()

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_a_record_that_is_gone_is_told_once_and_passed_over(
    tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker:
            client = await connected(broker)
            bodies = await fill(client, 60)
            entry = broker.store.entry("t", 0, 41)
            assert entry is not None
            os.pwrite(broker.store.log.current_fd, bytes(50), entry[0])
            for _ in range(2):
                assert await drain(client, 60) == bodies[:41] + bodies[42:]
            assert caplog.text.count("topic t queue 0: message 41 cannot be read") == 1
            assert (broker.damage.found, broker.damage.repaired) == (1, 0)
            client.channel.close()

    with caplog.at_level(logging.WARNING):
        run(test())


@pytest.mark.parametrize("mode", MODES)
def test_a_damaged_record_far_from_its_neighbours_costs_no_search(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry leads to a front of the right size: what is damaged is the record. Nothing else of the log needs to be read."""
    monkeypatch.setattr("kappamq.broker.upkeep.damage._SEARCH_BYTES_MAX", 1 << 40)
    monkeypatch.setattr(LogReader, "scan", lambda *_a, **_k: pytest.fail("the log was searched"))

    async def test() -> None:
        async with running(tmp_path, mode) as broker:
            client = await connected(broker)
            bodies = await fill(client, 60)
            entry = broker.store.entry("t", 0, 41)
            assert entry is not None
            os.pwrite(broker.store.log.current_fd, bytes(50), entry[0] + 8)
            assert await drain(client, 60) == bodies[:41] + bodies[42:]
            assert (broker.damage.found, broker.damage.repaired) == (1, 0)
            client.channel.close()

    run(test())


class Reads:
    """What searches read of the log, by the thread that did it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes: Counter[str] = Counter()
        original = PreadAround.pread

        def counted(around: PreadAround, fd: int, count: int, at: int) -> bytes:
            data = original(around, fd, count, at)
            self.bytes[threading.current_thread().name.rpartition("_")[0]] += len(data)
            return data

        monkeypatch.setattr(PreadAround, "pread", counted)


async def fill_far_apart(client: Speaker) -> list[bytes]:
    """Three messages with 6 MB of other messages between any two."""
    bodies: list[bytes] = []
    for _ in range(3):
        bodies += await fill(client, 1)
        for _ in range(120):
            await send_when_ready(client, bytes(50_000), "other")
    return bodies


def mislead(root: Path, number: int) -> None:
    """The entry of a message leads to where no record begins, and not by one bit."""
    for bit in (57, 59):
        flip(root / "consumequeue" / "t" / "0" / f"{0:020d}", number * 160 + bit)


@pytest.mark.parametrize("mode", MODES)
def test_a_long_search_for_a_record_goes_on_in_the_background(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Between the neighbours lies much of the log: the message is late, but never given up while the log has it."""
    limit = 64 << 10
    monkeypatch.setattr("kappamq.broker.upkeep.damage._SEARCH_BYTES_MAX", limit)

    async def test() -> None:
        async with running(tmp_path, mode) as broker:
            client = await connected(broker)
            bodies = await fill_far_apart(client)
            client.channel.close()
        mislead(tmp_path, 1)
        async with running(tmp_path, mode) as broker:
            client = await connected(broker)
            reads = Reads(monkeypatch)
            assert await drain(client, 3, is_patient=True) == bodies
            assert (broker.damage.found, broker.damage.repaired) == (1, 1)
            assert 0 < reads.bytes["kappamq-cold"] < limit + (2 << 20), "one read more than the limit at most"
            assert reads.bytes["kappamq-search"] > 4 << 20
            client.channel.close()

    with caplog.at_level(logging.WARNING):
        run(test())
    assert caplog.text.count("the search goes on, consumers of this queue wait") == 1
    assert "the queue entry of message 1 was damaged, it is rebuilt from the log record at" in caplog.text


@pytest.mark.parametrize("mode", MODES)
def test_a_record_is_lost_when_all_of_the_log_was_searched(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limit = 64 << 10
    monkeypatch.setattr("kappamq.broker.upkeep.damage._SEARCH_BYTES_MAX", limit)

    async def test() -> None:
        async with running(tmp_path, mode) as broker:
            client = await connected(broker)
            bodies = await fill(client, 2)
            for _ in range(120):
                assert (await client.send("other", bytes(50_000))).code == 0
            bodies += await fill(client, 1)
            assert (await client.send("other", b"x")).code == 0
            entry = broker.store.entry("t", 0, 2)
            assert entry is not None
            os.pwrite(broker.store.log.current_fd, bytes(50), entry[0] % broker.store.config.segment_bytes)
            reads = Reads(monkeypatch)
            assert await drain(client, 3, is_patient=True) == bodies[:2]
            assert 0 < reads.bytes["kappamq-cold"] < limit + (2 << 20), "one read more than the limit at most"
            assert reads.bytes["kappamq-search"] > 5 << 20
            assert broker.pulls.repairs.known_lost("t", 0, 2) == 3
            client.channel.close()

    with caplog.at_level(logging.WARNING):
        run(test())
    assert caplog.text.count("topic t queue 0: message 2 cannot be read") == 1


def test_while_the_log_is_searched_consumers_are_asked_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One search per queue: whoever meets another damaged entry there waits, too, and is not sent past it."""
    monkeypatch.setattr("kappamq.broker.upkeep.damage._SEARCH_BYTES_MAX", 64 << 10)
    monkeypatch.setattr("kappamq.broker.upkeep.damage._SEARCH_WAIT_S", 0.01)
    may_go_on, searches = threading.Event(), 0
    original = EntryRepair._find_all

    def find_all(self: EntryRepair, *arguments: Any) -> Any:
        nonlocal searches
        searches += 1
        assert may_go_on.wait(60)
        return original(self, *arguments)

    monkeypatch.setattr(EntryRepair, "_find_all", find_all)

    async def test() -> None:
        async with running(tmp_path) as broker:
            client = await connected(broker)
            bodies = await fill_far_apart(client)
            client.channel.close()
        for number in (1, 2):
            mislead(tmp_path, number)
        async with running(tmp_path) as broker:
            client = await connected(broker)
            for offset in (1, 2, 1):
                answer = await client.pull("t", offset, explicit=True)
                assert (answer.code, answer.ext["nextBeginOffset"]) == (
                    ResponseCode.PULL_RETRY_IMMEDIATELY,
                    str(offset),
                )
            assert searches == 1
            may_go_on.set()
            assert await drain(client, 3, is_patient=True) == bodies
            assert (broker.damage.found, broker.damage.repaired) == (2, 2)
            client.channel.close()

    try:
        run(test())
    finally:
        may_go_on.set()


def test_a_stop_ends_a_search_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kappamq.broker.upkeep.damage._SEARCH_BYTES_MAX", 0)
    monkeypatch.setattr("kappamq.broker.upkeep.damage._SEARCH_WAIT_S", 60.0)
    searching = threading.Event()

    def endless(self: LogReader, *_arguments: object, **_names: object) -> Iterator[object]:
        while True:
            searching.set()
            yield None

    async def test() -> None:
        async with running(tmp_path, "twin") as broker:
            client = await connected(broker)
            await fill(client, 60)
            entry = broker.store.entry("t", 0, 41)
            assert entry is not None
            os.pwrite(broker.store.log.current_fd, bytes(50), entry[0])
            monkeypatch.setattr(LogReader, "scan", endless)
            waiting = asyncio.create_task(broker.pulls.repairs.repair("t", 0, 41))
            await eventually(searching.is_set)
            await asyncio.wait_for(broker.stop(), 30)
            assert await waiting is None
            assert broker.pulls.repairs.known_lost("t", 0, 41) is None, "it may well be there"
            with pytest.raises(OSError, match="the broker stops"):
                broker.pulls.repairs._search_on("t", 0, 41, (0, 60))
            client.channel.close()

    run(test())


def test_a_stop_does_not_wait_for_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searching = threading.Event()

    def endless(self: LogReader, *_arguments: object, **_names: object) -> Iterator[object]:
        while True:
            searching.set()
            self.read(0, 100)
            yield None

    async def test() -> None:
        async with running(tmp_path, "twin") as broker:
            client = await connected(broker)
            await fill(client, 60)
            entry = broker.store.entry("t", 0, 41)
            assert entry is not None
            os.pwrite(broker.store.log.current_fd, bytes(50), entry[0])
            monkeypatch.setattr("kappamq.broker.upkeep.damage._SEARCH_BYTES_MAX", 1 << 40)
            monkeypatch.setattr(LogReader, "scan", endless)
            waiting = asyncio.create_task(broker.pulls.repairs.repair("t", 0, 41))
            await eventually(searching.is_set)
            await asyncio.wait_for(broker.stop(), 30)
            with pytest.raises(OSError, match="the broker stops"):
                await waiting
            assert broker.pulls.repairs.known_lost("t", 0, 41) is None, "it may well be there"
            client.channel.close()

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_a_repair_that_fails_is_answered(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker:
            client = await connected(broker)
            await fill(client, 60)
            entry = broker.store.entry("t", 0, 41)
            assert entry is not None
            os.pwrite(broker.store.log.current_fd, bytes(50), entry[0])

            async def repair(*_arguments: object) -> None:
                raise ValueError("no range of lost pages")

            monkeypatch.setattr(broker.pulls.repairs, "repair", repair)
            answer = await client.pull("t", 41, explicit=True, timeout=30)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "no range of lost pages" in answer.remark
            client.channel.close()

    run(test())


async def connected(broker: Broker) -> Speaker:
    return Speaker(await Channel.connect(f"127.0.0.1:{broker.port}"))


# --- reads that fail: in processes of their own, which die by SIGBUS where they are not survived --------------------------

pytest_native = pytest.mark.skipif("native" not in kernels(), reason="no compiled kernel")


@contextmanager
def up(data: Path, *arguments: str) -> Iterator[tuple[int, list[str]]]:
    """A broker process: its port, and what it has logged when it has ended."""
    command = [sys.executable, "-m", "kappamq", *UP, "--data", str(data), *arguments]
    logged: list[str] = []
    with tempfile.TemporaryFile(
        "w+"
    ) as errors:  # and no pipe: it may log more than a pipe holds before anybody reads it
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=ENVIRONMENT)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, errors.seek(0) or errors.read()
            yield int(json.loads(line)["broker"].rpartition(":")[2]), logged
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
            errors.seek(0)
            logged += errors.read().splitlines()
            print("\n".join(logged))
        assert process.returncode == 0, logged
        assert not any("Traceback" in line for line in logged)


async def runtime(client: Speaker) -> dict[str, str]:
    answer = await client.ask(GetBrokerRuntimeInfo())
    table: dict[str, str] = json.loads(answer.body)["table"]
    return table


def log_files(data: Path) -> list[Path]:
    return sorted((data / "commitlog").iterdir())


@pytest_native
def test_a_log_file_that_is_cut_under_the_broker(tmp_path: Path) -> None:
    """An old file: what it lost is passed over, everything else is served, and messages are taken."""

    async def use(port: int) -> None:
        client = await speaker(port)
        bodies = [b"%05d" % number * 2000 for number in range(400)]  # 10,000 bytes each, 1 MiB a file
        for body in bodies:
            assert (await client.send("t", body)).code == 0
        assert len(log_files(tmp_path)) >= 4
        os.truncate(log_files(tmp_path)[1], 300_000)
        found = await drain(client, 400)
        assert found == [body for body in bodies if body in set(found)], "in order, and none with other bytes"
        lost = 400 - len(found)
        assert 70 <= lost <= 80, "three quarters of one file"
        assert (await client.send("t", b"more")).code == 0
        assert await drain(client, 401) == [*found, b"more"]

        async def counted() -> bool:
            return int((await runtime(client))["kappamqUnreadableBytes"]) > 700_000

        await eventually(counted)
        client.channel.close()

    with up(tmp_path, "--set", "mappedFileSizeCommitLog=1048576") as (port, logged):
        run(use(port))
    told = [line for line in logged if "the file was cut to 300000 bytes" in line]
    assert len(told) == 1, logged
    assert str(log_files(tmp_path)[1]) in told[0]
    assert "restore the file from a copy" in told[0]
    assert sum("cannot be read" in line for line in logged) <= 4, "not a line for each message"
    again = subprocess.run(
        [sys.executable, "-m", "kappamq", *UP, "--data", str(tmp_path)],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False,
    )  # fmt: skip
    assert again.returncode == 7
    assert "is truncated: it has 300000 of 1048576 bytes" in again.stderr

    async def use_again(port: int) -> None:
        client = await speaker(port)
        assert len(await drain(client, 401)) > 320
        assert (await client.send("t", b"even more")).code == 0
        client.channel.close()

    with up(tmp_path, "--set", "store.skip_damage=true") as (port, logged):
        run(use_again(port))


@pytest_native
def test_the_log_file_that_is_written_to_is_cut(tmp_path: Path) -> None:
    """What was acknowledged is gone: nothing more is taken until somebody has seen to it; reading goes on."""

    async def use(port: int) -> None:
        client = await speaker(port)
        bodies = await fill(client, 60)
        os.truncate(log_files(tmp_path)[0], 8192)

        async def refused() -> bool:
            return (await client.send("t", b"x")).code == ResponseCode.SERVICE_NOT_AVAILABLE

        await eventually(refused)
        found = await drain(client, 60, across_a_cut=True)
        assert 10 < len(found) < 60
        assert found == bodies[: len(found)]
        assert "was cut under the broker" in (await runtime(client))["kappamqRefusing"]
        client.channel.close()

    with up(tmp_path) as (port, logged):
        run(use(port))
    assert any("was cut under the broker" in line and "Check the disk" in line for line in logged), logged


@pytest_native
@needs("loop")
def test_a_disk_that_cannot_be_read() -> None:
    """The file behind a loop device loses its end: reads fail with EIO, and through a mapping with SIGBUS."""

    async def use(port: int, root: Path) -> None:
        client = await speaker(port)
        bodies = [b"%05d" % number * 2000 for number in range(1200)]
        for body in bodies:
            await send_when_ready(client, body)
        os.sync()
        places = sorted(place_on_disk(path) for path in log_files(root / "data")[:-1])
        os.truncate(root.parent / "image", places[len(places) // 2])
        drop_cache(root / "data" / "commitlog")
        found = await drain(client, 1200)
        assert 0 < len(found) < 1200, "else the test did not cut anything"
        assert found == [body for body in bodies if body in set(found)]
        assert int((await runtime(client))["kappamqDamageFound"]) > 0
        client.channel.close()

    with small_disk(32 << 20) as root, up(root / "data", "--set", "mappedFileSizeCommitLog=1048576") as (port, logged):
        run(use(port, root))
    assert any("cannot be read" in line for line in logged), logged


def place_on_disk(path: Path) -> int:
    """Where the file begins on its disk, in bytes."""
    shown = subprocess.run(["filefrag", "-b1", "-v", str(path)], capture_output=True, text=True, timeout=60, check=True)
    first = next(line for line in shown.stdout.splitlines() if line.strip().startswith("0:"))
    return int(first.split(":")[2].split(".")[0])


def drop_cache(folder: Path) -> None:
    for path in folder.iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    Path("/proc/sys/vm/drop_caches").write_text("1")


def test_the_client_of_a_lost_stretch_is_not_told_message_by_message(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, "twin") as broker:
            client = await connected(broker)
            await fill(client, 60)
            broker.lost_pages._told[0] = [(4096, 8192)]
            first = broker.store.first_at_or_behind("t", 0, 4096)
            assert await broker.pulls.repairs.repair("t", 0, first) == broker.store.first_at_or_behind("t", 0, 8192)
            client.channel.close()

    asyncio.run(test())


def test_pages_that_fail_again_while_they_are_restored_are_told_as_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class FailsAgain(MappedFile):
        def lost(self) -> list[tuple[int, int]]:
            return [(4096, 8192)]

        def restore(self, start: int, stop: int, fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def test() -> None:
        async with running(tmp_path, "twin") as broker:
            fd = broker.store.log.current_fd
            with FailsAgain(fd, broker.store.config.segment_bytes) as view:
                broker.lost_pages.look_at(Segment(0, tmp_path / "log file", fd, view))
            assert (broker.damage.found, broker.damage.repaired, broker.damage.unreadable_bytes) == (1, 0, 4096)

    with caplog.at_level(logging.WARNING):
        asyncio.run(test())
    assert "log file: bytes 4096 to 8192 cannot be read" in caplog.text
