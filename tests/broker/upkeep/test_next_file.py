"""The next log file is there before it is needed, and a disk without room for it is told early."""

from __future__ import annotations

import asyncio
import errno
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kappamq.broker.events import LogFilePrepared
from kappamq.broker.sending.gate import NO_ROOM, Gate
from kappamq.broker.upkeep.next_file import NextLogFile
from kappamq.clock import VirtualClock
from kappamq.errors import NotAvailable
from kappamq.events import Events
from kappamq.store.message_store import MessageStore
from tests.store.stores import Writer, config, opened
from tests.waiting import eventually_async as eventually


class Around:
    def __init__(self, store: MessageStore) -> None:
        self.store, self.clock, self.gate = store, VirtualClock(), Gate(store.kernel)
        self.heard: list[LogFilePrepared] = []
        events = Events()
        events.on(LogFilePrepared, self.heard.append)
        self.next_file = NextLogFile(store.log, self.gate, self.clock, events, ThreadPoolExecutor(1))
        self.writer = Writer(store)

    def fill_half(self) -> None:
        while self.store.log.end <= self.store.log.segment_bytes // 2:
            self.writer.send(bytes(4000))
            self.writer.write()


def test_it_is_made_when_the_current_one_is_half_full(tmp_path: Path) -> None:
    async def test() -> None:
        with opened(config(tmp_path)) as store:
            around = Around(store)
            around.next_file.prepare_in_time()
            around.next_file.finish()
            assert not store.log.next_is_ready, "not yet"
            around.fill_half()
            around.next_file.prepare_in_time()
            around.next_file.prepare_in_time()
            await eventually(lambda: store.log.next_is_ready)
            assert len(around.heard) == 1
            around.next_file.stop()

    asyncio.run(asyncio.wait_for(test(), 30))


def test_whoever_needs_it_waits_for_it_and_takes_it(tmp_path: Path) -> None:
    async def test() -> None:
        with opened(config(tmp_path)) as store:
            around = Around(store)
            around.fill_half()
            around.next_file.prepare_in_time()
            around.next_file.finish()
            assert store.log.next_is_ready
            await asyncio.sleep(0)  # what the worker reports is no news
            assert len(around.heard) == 1
            around.next_file.stop()

    asyncio.run(asyncio.wait_for(test(), 30))


def test_no_room_closes_the_gate_until_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_room() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def test() -> None:
        with opened(config(tmp_path)) as store:
            around = Around(store)
            around.fill_half()
            with monkeypatch.context() as patch:
                patch.setattr(store.log, "prepare", no_room)
                around.next_file.prepare_in_time()
                await eventually(lambda: around.gate.has(NO_ROOM))
            with pytest.raises(NotAvailable, match="No space left"):
                around.gate.check()
            around.next_file.prepare_in_time()
            around.next_file.finish()
            assert not store.log.next_is_ready, "it is not tried again at once"
            around.clock.advance(2)
            around.next_file.prepare_in_time()
            await eventually(lambda: store.log.next_is_ready)
            assert not around.gate.has(NO_ROOM)
            assert len(around.heard) == 2
            around.next_file.stop()

    with caplog.at_level(logging.ERROR):
        asyncio.run(asyncio.wait_for(test(), 30))
    assert "refusing messages: there is no room for the next log file" in caplog.text
