"""What a broker stands on: it is there before anything is served, and nothing is left of it if it cannot be built."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from kappamq.broker.broker import Broker
from kappamq.clock import VirtualClock
from kappamq.config.broker import BrokerConfig
from kappamq.config.net import NetConfig
from kappamq.config.store import StoreConfig
from kappamq.errors import StoreError
from tests.broker.running import run, running, speaking


async def opened(root: Path) -> Broker:
    config = BrokerConfig(port=0, listen_host="127.0.0.1", name="b")
    store = StoreConfig(
        root=root,
        segment_bytes=1 << 20,
        queue_file_entries=1000,
        index_slots=997,
        index_entries=10_000,
        message_bytes_max=1000,
    )
    return await Broker.open(config, store, NetConfig(), VirtualClock(), kernel="twin")


def test_an_open_broker_has_its_tables_and_serves_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            await client.send("tea", b"first")
        broker = await opened(tmp_path)
        try:
            assert "tea" in broker.topics.table
            assert broker.store.log.end > 0
            assert not broker.server.connections
            assert not broker.role.is_held
        finally:
            await broker.stop()

    run(scenario())


def test_an_open_broker_can_be_stopped_and_opened_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        for _ in range(2):
            broker = await opened(tmp_path)
            await broker.stop()
            await broker.stop()  # nothing more to do
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()]

    run(scenario())


def test_a_directory_that_cannot_be_opened_is_left_free(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        first = await opened(tmp_path)
        with pytest.raises(StoreError):
            await opened(tmp_path)
        await first.stop()
        with caplog.at_level(logging.INFO):
            again = await opened(tmp_path)
        assert again.recovered.clean
        await again.stop()

    run(scenario())
