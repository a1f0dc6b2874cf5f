"""A real broker on loopback for tests: real sockets, small files, any kernel, and a thin client that speaks frames."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kappamq.broker.broker import Broker
from kappamq.clock import Clock, SystemClock
from kappamq.config.broker import BrokerConfig
from kappamq.config.copies import CopiesConfig
from kappamq.config.net import NetConfig
from kappamq.config.store import StoreConfig
from kappamq.native.interface import Flusher
from kappamq.net.channel import Channel
from kappamq.protocol.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame, request
from kappamq.protocol.headers.client import HeartBeat, PullMessage, SendMessageV2
from kappamq.protocol.headers.header import Header
from kappamq.protocol.names import METADATA_TOPIC
from kappamq.protocol.records.record import Record, iter_records
from kappamq.store.files import Files
from tests.store.faulty import FilesWithFlusher
from tests.store.stores import kernels
from tests.waiting import eventually_async

MODES = [*kernels(), "slow"]
"""Every behaviour of send and pull is the same with each of these."""


def appended(broker: Broker) -> list[Record]:
    """Everything in the log but consumer offsets, which the broker records by itself about once a second."""
    broker.writer.end_turn()
    return [
        record
        for record in iter_records(bytes(broker.store.log.whole_view(0)[: broker.store.log.end]))
        if not _is_offsets(record)
    ]


def _is_offsets(record: Record) -> bool:
    return record.topic == METADATA_TOPIC and b'"kind":"offsets"' in record.body


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


@asynccontextmanager
async def running(
    root: Path,
    mode: str = "twin",
    *,
    clock: Clock | None = None,
    files: Files | None = None,
    flusher: Callable[[], Flusher] | None = None,
    store: dict[str, Any] | None = None,
    net: dict[str, Any] | None = None,
    copies: CopiesConfig | None = None,
    **broker: Any,
) -> AsyncIterator[Broker]:
    assert files is None or flusher is None, "a disk brings its own flusher"
    small: dict[str, Any] = {
        "segment_bytes": 1 << 20,
        "queue_file_entries": 1000,
        "index_slots": 997,
        "index_entries": 10_000,
        "message_bytes_max": 256 << 10,
    }
    made = await Broker.open(
        BrokerConfig(**({"port": 0, "listen_host": "127.0.0.1", "name": "b"} | broker)),
        StoreConfig(root=root, **(small | (store or {}))),
        NetConfig(**(net or {})),
        clock or SystemClock(),
        kernel="twin" if mode == "slow" else mode,
        files=files if flusher is None else FilesWithFlusher(flusher),
        copies=copies,
    )
    await made.start()
    made.kernel.force_slow = mode == "slow"
    try:
        yield made
    finally:
        await made.stop()


async def on_disk(broker: Broker) -> None:
    """Everything written so far is durable: only then may log files expire."""
    written = broker.store.log.end
    broker.store.request_flush()
    await eventually_async(lambda: broker.store.marks.flushed.offset >= written, text="the log is on disk")


async def crash_copy(broker: Broker, target: Path) -> Path:
    """Copy the files of a running broker as kill -9 would leave them.

    The thread that writes derived files makes the copy, so that none of them comes or goes meanwhile."""
    return Path(await broker.workers.write(shutil.copytree, broker.store.config.root, target))


class Speaker:
    """Speaks frames to a broker."""

    def __init__(self, channel: Channel, binary: bool = False) -> None:
        self.channel = channel
        self.binary = binary
        self.sent = 0

    async def ask(self, header: Header, body: bytes = b"", code: int | None = None, timeout: float = 30.0) -> Frame:
        frame = request(header, body, code=code)
        frame.binary = self.binary
        return await self.channel.request(frame, timeout=timeout)

    async def send(
        self, topic: str, body: bytes, queue_id: int = 0, properties: str | None = None, **changes: Any
    ) -> Frame:
        self.sent += 1
        text = f"UNIQ_KEY\x01U{self.sent:05d}" if properties is None else properties
        return await self.ask(self.send_header(topic, queue_id, text, **changes), body)

    @staticmethod
    def send_header(topic: str, queue_id: int, properties: str | None, **changes: Any) -> SendMessageV2:
        values: dict[str, Any] = {
            "producer_group": "pg", "topic": topic, "default_topic": "TBW102", "default_topic_queues": 4, "queue_id": queue_id,
            "sys_flag": 0, "born_ms": 1_700_000_000_000, "flag": 0, "properties": properties, "reconsume_times": 0,
            "unit_mode": False, "batch": False,
        }  # fmt: skip
        return SendMessageV2(**(values | changes))

    async def send_batch(self, topic: str, body: bytes, queue_id: int = 0, **changes: Any) -> Frame:
        text = changes.pop("properties", "UNIQ_KEY\x01B")
        header = self.send_header(topic, queue_id, text, **({"batch": True} | changes))
        return await self.ask(header, body, code=RequestCode.SEND_BATCH_MESSAGE)

    async def subscribe(
        self, group: str, topic: str, expression: str = "*", codes: set[int] | None = None, version: int = 1
    ) -> Frame:
        subscription = SubscriptionData(topic=topic, expression=expression, codes=codes or set(), version=version)
        beat = HeartbeatData(client_id="c1", consumers=[ConsumerData(group=group, subscriptions=[subscription])])
        return await self.ask(HeartBeat(), beat.encode())

    async def pull(
        self, topic: str, offset: int, queue_id: int = 0, group: str = "g", timeout: float = 30.0, **changes: Any
    ) -> Frame:
        """A pull of a group that sent a heartbeat; explicit=True brings the subscription "*" along instead."""
        values: dict[str, Any] = {
            "consumer_group": group, "topic": topic, "queue_id": queue_id, "queue_offset": offset, "count_max": 32, "sys_flag": 0,
            "commit_offset": 0, "hold_ms": 0, "subscription_version": 1,
        }  # fmt: skip
        if changes.pop("explicit", False):
            values |= {"sys_flag": 4, "subscription": "*"}
        return await self.ask(PullMessage(**(values | changes)), timeout=timeout)

    async def read(self, topic: str, queue_id: int = 0, offset: int = 0) -> list[Record]:
        """Everything in a queue from `offset` on."""
        records: list[Record] = []
        while True:
            answer = await self.pull(topic, offset, queue_id, explicit=True)
            if answer.code != 0:
                assert answer.code == 19, (answer.code, answer.remark)
                return records
            records += iter_records(answer.body)
            offset = int(answer.ext["nextBeginOffset"])


@asynccontextmanager
async def speaking(broker: Broker, binary: bool = False) -> AsyncIterator[Speaker]:
    channel = await Channel.connect(f"127.0.0.1:{broker.port}")
    try:
        yield Speaker(channel, binary)
    finally:
        channel.close()
