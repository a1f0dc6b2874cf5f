"""A broker as a whole: it starts or leaves nothing behind, ties its parts together, and stops."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from kappamq.broker.broker import Broker
from kappamq.clock import SystemClock, VirtualClock
from kappamq.config.broker import BrokerConfig
from kappamq.config.net import NetConfig
from kappamq.config.store import StoreConfig
from kappamq.errors import ConfigError
from kappamq.net.serving.server import bind
from kappamq.ports import BROKER_PORT_OFFSETS, choose_port
from kappamq.protocol.headers.client import GetMaxOffset, QueryConsumerOffset
from tests.broker.operating import beat, fill, make_topic, ok
from tests.broker.running import run, running, speaking
from tests.net.running import connected
from tests.waiting import eventually_async as eventually


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- starting --------------------------------------------------------------------------------------------------------------


def test_it_listens_on_two_ports_and_serves_on_both(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            for port in (broker.port, broker.port - 2):
                async with connected(port) as peer:
                    await peer.say(b"\xff\xff\xff\xff")
                    assert await peer.closed()
            assert broker.address == f"127.0.0.1:{broker.port}"

    run(test())


@pytest.mark.parametrize("which", [0, -2])
def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path, which: int) -> None:
    async def test() -> None:
        port = choose_port(
            "broker", "127.0.0.1", 0, 1, BROKER_PORT_OFFSETS
        )  # none of them is given to somebody meanwhile
        taken = bind("127.0.0.1", port + which, 1)
        before = open_descriptors()
        config = BrokerConfig(port=port, listen_host="127.0.0.1", name="b")
        store = StoreConfig(root=tmp_path, segment_bytes=1 << 20, message_bytes_max=1000, index_enabled=False)
        broker = await Broker.open(config, store, NetConfig(), SystemClock(), kernel="twin")
        with pytest.raises(ConfigError, match=f"port {port + which} is in use"):
            await broker.start()
        await eventually(lambda: open_descriptors() <= before)
        await broker.stop()  # nothing to do
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()]
        taken.close()
        again = await Broker.open(
            config, store, NetConfig(), SystemClock(), kernel="twin"
        )  # the directory is free, too
        await again.start()
        await again.stop()

    run(test())


def test_message_time_goes_back_with_the_clock_but_not_unnoticed(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, clock=VirtualClock(message_ms=2_000_000)) as broker, speaking(broker) as client:
            await client.send("t", b"first")
        async with running(tmp_path, clock=VirtualClock(message_ms=1_000_000)) as broker, speaking(broker) as client:
            await client.send("t", b"second")
            first, second = await client.read("t")
            assert (first.stored_ms, second.stored_ms) == (2_000_000, 1_000_000)
            (step,) = broker.store.clock_steps.steps
            assert first.log_offset < step.log_offset < second.log_offset
            assert step.to_ms == 1_000_000

    run(test())


def test_offsets_beyond_the_end_of_a_queue_are_brought_back(tmp_path: Path) -> None:
    """As after a crash that took messages which were consumed already: new ones must not be skipped."""

    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            await fill(client, "t", [3, 3])
            for queue_id, offset in ((0, 99), (1, 2)):
                broker.offsets.set("g", "t", queue_id, offset)
        async with running(tmp_path) as broker, speaking(broker) as client:
            for queue_id, offset in ((0, "3"), (1, "2")):
                asked = await ok(client, QueryConsumerOffset(consumer_group="g", topic="t", queue_id=queue_id))
                assert asked.ext["offset"] == offset

    run(test())


# -- running ---------------------------------------------------------------------------------------------------------------


def test_clients_without_a_heartbeat_are_let_go(tmp_path: Path) -> None:
    async def test() -> None:
        clock = VirtualClock()
        async with (
            running(tmp_path, clock=clock, net={"idle_s": 0, "first_frame_s": 1000}, client_expiry_ms=10_000) as broker,
            speaking(broker) as silent,
            speaking(broker) as alive,
        ):
            await make_topic(alive, "t")
            await beat(silent, "silent", consumers={"g": ["t"]})
            await beat(alive, "alive", consumers={"g": ["t"]})
            clock.advance(6)
            await beat(alive, "alive", consumers={"g": ["t"]})
            clock.advance(5)
            await eventually(lambda: not silent.channel.is_open)
            assert broker.clients.consumers["g"].client_ids == ["alive"]
            assert (await alive.ask(GetMaxOffset(topic="t", queue_id=0))).code == 0

    run(test())


def test_background_jobs_that_fail_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:

            async def bug() -> None:
                raise ZeroDivisionError("a bug")

            broker.run(bug())
            await eventually(lambda: not broker._base.jobs)

    with caplog.at_level(logging.ERROR):
        run(test())
    assert "a background job failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


# -- stopping --------------------------------------------------------------------------------------------------------------


def test_a_stop_waits_for_jobs_but_not_for_ever(tmp_path: Path) -> None:
    async def test() -> None:
        done: list[str] = []

        async def job(name: str, turns: int) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            done.append(name)

        async def endless() -> None:
            await asyncio.Event().wait()

        async with running(tmp_path, stop_timeout_ms=50) as broker:
            broker.run(job("short", 10))
            await broker.stop()
            assert done == ["short"]
            await broker.stop()  # a second stop is none
        async with running(tmp_path, stop_timeout_ms=50) as broker:
            broker.run(endless())
            await asyncio.wait_for(broker.stop(), 10)
            assert (tmp_path / "abort").exists() is False, "stopped cleanly all the same"
            for task in broker._base.jobs._running:
                task.cancel()

    run(test())


def test_what_was_answered_last_is_there_and_the_port_is_free(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            answers = await asyncio.gather(*(client.send("t", b"%d" % number) for number in range(50)))
            assert {answer.code for answer in answers} == {0}
            port = broker.port
            await broker.stop()
            await eventually(lambda: not client.channel.is_open)
            bind("127.0.0.1", port, 1).close()
        async with running(tmp_path) as broker, speaking(broker) as client:
            assert [int(record.body) for record in await client.read("t")] == list(range(50))

    run(test())
