"""More of everything than there is room for: whoever is in stays in, the rest hears why or is cut, memory stays bounded."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.machine import within_descriptors
from kappamq.clock import VirtualClock
from kappamq.config.net import NetConfig
from kappamq.config.store import StoreConfig
from kappamq.event_loop import run as run_fast
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame, FrameDecoder
from kappamq.protocol.headers.client import QueryMessage
from tests.broker.running import MODES, run, running, speaking
from tests.store.faulty import SlowFlusher
from tests.store.stores import kernels
from tests.waiting import eventually_async as eventually

LOOPS = [pytest.param(run, id="asyncio"), pytest.param(run_fast, id="uvloop")]


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Only so many more files can be opened in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    try:
        # Numbers below the highest may be free: they are taken, so that the limit is exact.
        while (fd := os.open(os.devnull, os.O_RDONLY)) <= highest:
            held.append(fd)
        os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (fd + count, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)


@pytest.mark.parametrize("loop", LOOPS)
def test_without_descriptors_clients_that_are_here_notice_nothing(
    tmp_path: Path, loop: Callable[[Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with running(tmp_path, store={"queue_flush_interval_ms": 20}) as broker, speaking(broker) as client:
            assert (await client.send("t", b"before")).code == 0
            callers = [socket.socket() for _ in range(10)]
            told: list[bytes | None] = []
            with descriptors_left(0):
                for caller in callers:
                    caller.settimeout(0)
                    caller.connect_ex(("127.0.0.1", broker.port))
                    assert (await client.send("t", b"meanwhile")).code == 0
                    assert (await client.pull("t", 0, explicit=True)).code == 0

                def all_turned_away() -> bool:
                    for caller in callers[len(told) :]:
                        try:
                            told.append(caller.recv(1))
                        except BlockingIOError:
                            return False
                        except ConnectionError:
                            told.append(b"")
                    return True

                await eventually(all_turned_away)
                assert told == [b""] * 10, "closed at once, not left waiting"
                await eventually(lambda: broker.upkeep._unwritable_since, text="files feel it, too, but can wait")
                assert (await client.send("t", b"meanwhile")).code == 0
            for caller in callers:
                caller.close()
            async with speaking(broker) as later:
                assert (await later.send("t", b"after")).code == 0
            assert len(await client.read("t")) == 13

    loop(test())
    assert sum("refusing new connections" in record.message for record in caplog.records) == 1


def test_sockets_leave_descriptors_for_files(caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        store, net = within_descriptors(StoreConfig(root=Path("/unused")), NetConfig())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert store.open_files_max + net.connections_max + 512 <= 1024
    assert "ulimit -n" in caplog.text


async def cpu_of_a_second() -> float:
    began = time.process_time()
    await asyncio.sleep(1)  # the time that is measured
    return time.process_time() - began


@pytest.mark.parametrize("mode", kernels())
def test_two_thousand_idle_consumers(tmp_path: Path, mode: str) -> None:
    """Each with a heartbeat and a parked pull: cheap while idle, and gone at once when they leave."""

    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            assert (await client.send("t", b"x")).code == 0
            await client.subscribe("g", "t")
            pull = {"consumerGroup": "g", "topic": "t", "queueId": "0", "queueOffset": "1", "maxMsgNums": "32", "sysFlag": "2",
                    "commitOffset": "0", "suspendTimeoutMillis": "60000", "subVersion": "1"}  # fmt: skip
            data = Frame(code=11, ext=pull).encode()
            sockets = []
            try:
                for number in range(2000):
                    made = socket.create_connection(("127.0.0.1", broker.port))
                    made.sendall(data)
                    sockets.append(made)
                    if number % 200 == 199:
                        await eventually(lambda: broker.pulls.waiting.count == len(sockets))
                idle = [await cpu_of_a_second()]
                while idle[-1] >= 0.25 and len(idle) < 5:  # the process may have had something else to do
                    idle.append(await cpu_of_a_second())
                assert idle[-1] < 0.25, f"{idle} s of CPU in idle seconds"
                began = time.process_time()
                for made in sockets:
                    made.close()
                await eventually(lambda: broker.pulls.waiting.count == 0 and len(broker.server.connections) == 1)
                assert time.process_time() - began < 10.0
                assert (await client.send("t", b"y")).code == 0
            finally:
                for made in sockets:
                    made.close()

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_a_header_over_the_limit_that_says_nothing_costs_its_connection(tmp_path: Path, mode: str) -> None:
    """One that says where an answer belongs gets one: see test_request_sizes.py."""

    async def test() -> None:
        async with running(tmp_path, mode, net={"header_bytes_max": 4096}) as broker, speaking(broker) as client:
            assert (await client.send("t", b"x")).code == 0
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(struct.pack(">ii", 10_000, 5000) + bytes(9996))
            try:
                assert await asyncio.wait_for(reader.read(), 30) == b""
            except ConnectionError:
                pass
            writer.close()
            assert (await client.send("t", b"y")).code == 0

    run(test())


def test_unfinished_requests_of_all_together_are_bounded(tmp_path: Path) -> None:
    async def test() -> None:
        net = {"inflight_bytes_max": 4 << 20}
        async with running(tmp_path, net=net) as broker, speaking(broker) as client:
            assert (await client.send("t", b"x")).code == 0
            claim = struct.pack(">ii", 8 << 20, 100)
            writers = []
            for _ in range(20):
                _reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
                writer.write(claim + bytes(1 << 20))
                writers.append(writer)
            await eventually(lambda: len(broker.server.connections) < 10, text="the ones with much of it go")
            held = sum(len(connection._buffer) for connection in broker.server.connections)
            assert held <= 5 << 20
            assert (await client.send("t", bytes(200_000))).code == 0, "others are served"
            for writer in writers:
                writer.close()
            await eventually(lambda: len(broker.server.connections) == 1)
            assert broker.server._buffered_bytes == 0

    run(test())


def test_requests_that_take_their_time_are_bounded(tmp_path: Path) -> None:
    """Queries go to workers: only so many bytes of them may be under way, half of that from one address; then the answer is `busy`."""

    async def test() -> None:
        async with running(tmp_path, net={"inflight_bytes_max": 128 << 10}) as broker, speaking(broker) as client:
            await client.send("t", b"x")
            gate = asyncio.Event()

            async def slow() -> None:
                await gate.wait()

            broker.administration.queries._flush_derived = slow
            query = QueryMessage(topic="t", key="k", count_max=1, begin_ms=0, end_ms=1)
            waiting = [asyncio.ensure_future(client.ask(query, body=bytes(30_000))) for _ in range(10)]
            await eventually(lambda: sum(answer.done() for answer in waiting) == 8)
            busy = [answer.result() for answer in waiting if answer.done()]
            assert {answer.code for answer in busy} == {ResponseCode.SYSTEM_BUSY}
            assert "try again later" in (busy[0].remark or "")
            gate.set()
            answers = await asyncio.gather(*waiting)
            assert sum(answer.code == ResponseCode.QUERY_NOT_FOUND for answer in answers) == 2
            assert (await client.ask(query)).code == ResponseCode.QUERY_NOT_FOUND

    run(test())


def test_answers_that_are_much_larger_than_their_requests_are_made_a_few_at_a_time(tmp_path: Path) -> None:
    async def test() -> None:
        net = {"connection_inflight_bytes_max": 8 << 20}
        async with running(tmp_path, net=net) as broker, speaking(broker) as client:
            assert (await client.send("t", bytes(1000))).code == 0
            go_on = asyncio.Event()
            begun = 0

            async def worker(work: Callable[..., Any], *arguments: Any) -> Any:
                nonlocal begun
                begun += 1
                await go_on.wait()
                return work(*arguments)

            broker.administration.queries._worker = worker
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            view = {"offset": str(broker.store.log.min)}
            writer.write(b"".join(Frame(code=33, opaque=number, ext=view).encode() for number in range(20)))
            await eventually(lambda: begun)
            assert (await client.send("t", b"others are served")).code == 0
            assert begun == 2, "each may bring 4 MiB, of which one connection may owe us 8"
            go_on.set()
            decoder, answers = FrameDecoder(1 << 20), list[Frame]()
            while len(answers) < 20:
                answers += decoder.feed(await asyncio.wait_for(reader.read(1 << 16), 30))
            assert sorted(answer.opaque for answer in answers) == list(range(20))
            writer.close()

    run(test())


@pytest.mark.parametrize("mode", kernels())
def test_more_in_flight_than_allowed_over_all_connections(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        # One read of a socket brings 256 KiB at most: what waits in both does not reach half of the limit, beyond which one is cut.
        net = {"inflight_bytes_max": 1536 << 10}
        store = {"flush": "sync", "sync_flush_timeout_ms": 60_000}
        async with running(tmp_path, mode, flusher=SlowFlusher, store=store, net=net) as broker:
            flusher = SlowFlusher.made
            async with speaking(broker) as first, speaking(broker) as second:
                answers = [
                    asyncio.ensure_future(client.send("BenchmarkTest", bytes(40_000), number % 8))
                    for number in range(100)
                    for client in (first, second)
                ]
                await eventually(lambda: broker.gate.has("congested"), text="sockets wait for a second, then code 2")
                await eventually(lambda: any(answer.done() for answer in answers))
                busy = {answer.result().code for answer in answers if answer.done()}
                assert busy == {ResponseCode.SYSTEM_BUSY}
                while not all(answer.done() for answer in answers):
                    flusher.sync()
                    await asyncio.sleep(0)
                stored = sum(answer.result().code == 0 for answer in answers)
                assert 20 < stored < 200
                await eventually(lambda: not broker.gate.reasons)
                flusher.keep_up()
                assert (await first.send("BenchmarkTest", b"x")).code == 0

    run(test())


def test_one_connection_parks_only_so_many_pulls(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, net={"connection_inflight_max": 5}) as broker, speaking(broker) as client:
            await client.send("t", b"x")
            await client.subscribe("g", "t")
            pulls = [
                asyncio.ensure_future(client.pull("t", 1, sys_flag=2, hold_ms=10_000, timeout=15)) for _ in range(9)
            ]
            await eventually(lambda: sum(pull.done() for pull in pulls) == 4, text="the others are answered at once")
            assert {pull.result().code for pull in pulls if pull.done()} == {ResponseCode.PULL_NOT_FOUND}
            async with speaking(broker) as other:
                more = asyncio.ensure_future(other.pull("t", 1, sys_flag=2, hold_ms=10_000))
                await eventually(lambda: broker.pulls.waiting.count == 6, text="it is nobody else's limit")
                await client.send("t", b"y")
                assert (await more).code == 0
            assert {(await pull).code for pull in pulls} == {0, ResponseCode.PULL_NOT_FOUND}

    run(test())


@pytest.mark.parametrize("mode", kernels())
def test_a_slow_reader_gets_everything_as_long_as_it_takes_some(tmp_path: Path, mode: str) -> None:
    """It asks for more than fits on the way: the rest of its requests waits with us, for as long as it goes on reading."""

    async def test() -> None:
        clock = VirtualClock()
        limits = {"write_pause_bytes": 64 << 10, "write_stall_s": 30, "frame_s": 30, "idle_s": 40}
        async with running(tmp_path, mode, clock=clock, net=limits) as broker, speaking(broker) as client:
            for _ in range(4):
                assert (await client.send("t", bytes(200_000))).code == 0
            pull = {"consumerGroup": "TOOLS_CONSUMER", "topic": "t", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
                    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*"}  # fmt: skip
            with socket.socket() as slow:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
                slow.connect(("127.0.0.1", broker.port))
                slow.sendall(b"".join(Frame(code=11, opaque=number, ext=pull).encode() for number in range(60)))
                slow.setblocking(False)
                decoder, answers = FrameDecoder(16 << 20), 0
                await eventually(lambda: any(connection.is_stalled for connection in broker.server.connections))
                for _ in range(8):
                    taken = 0
                    while taken < 1 << 20:
                        try:
                            data = slow.recv(1 << 17)
                        except BlockingIOError:
                            await asyncio.sleep(0)
                            continue
                        assert data, "it was cut off"
                        taken += len(data)
                        answers += len(decoder.feed(data))
                    await client.send("t", b"x")  # the client here is not idle
                    clock.advance(8)
                    for _part in range(10):  # everybody is looked at
                        assert broker.server._rounds is not None
                        broker.server._rounds.cancel()
                        broker.server._round()
                while answers < 60:
                    try:
                        answers += len(decoder.feed(slow.recv(1 << 18)))
                    except BlockingIOError:
                        await asyncio.sleep(0)
                await eventually(lambda: not any(connection.is_stalled for connection in broker.server.connections))

    run(test())


@pytest.mark.parametrize("length", [b"\0\0\0\0", b"\xff\xff\xff\xff"])
def test_a_length_that_cannot_be_ends_its_connection_and_nothing_else(
    tmp_path: Path, length: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(length)  # and nothing more
            assert await reader.read() == b""
            writer.close()

    run(test())
    assert "Traceback" not in caplog.text
