"""What costs a broker more than a plain message: transactions, delays, timers, filters, and sends beside a cold reader.

RocketMQ's own programs keep both brokers waiting here, or do not say what was delivered when; so the load is ours, and the same
frames go to both brokers. As with the plain loads, CPU time is the system's word about the broker's process.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import loader
from benchmarks.loader import BATCH, PULL, SEND
from benchmarks.peer.brokers import Peer
from benchmarks.peer.loads import QUEUES, create_topic, stored
from benchmarks.process import ProcessFailed
from benchmarks.scenarios import transactions
from benchmarks.scenarios.backlog import drop_page_cache
from kappamq.net.channel import Channel
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.headers.client import PullMessage, SendMessageV2
from kappamq.protocol.records import batch as batches

BODY = b"x" * 100
CONNECTIONS, AT_ONCE = 4, 64
ANSWER_S = 60.0
TRIES_MAX, PAUSE_S = 100, 0.2
DELIVERED_S_MAX = 180.0
AHEAD_MS = 5000
SENDS_A_SECOND = 2000
SUBSCRIPTION_IN_HEADER = 4
EXPRESSION = "a > 4"  # half of what is stored
_EMPTY = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is done."""

    messages: int = 50_000  # that wait
    filtered: int = 400_000
    backlog: int = 6_000_000  # 320 B each: more than a reader gets through in a run
    seconds: float = 6.0
    warmup: float = 2.0


@dataclass(frozen=True, slots=True)
class Feature:
    """One question to a broker, and what its answer counts: less is better."""

    name: str
    what: str
    unit: str
    at_most: float  # ours / theirs
    prepare: Callable[[Peer, Size, Path], None]
    measure: Callable[[Peer, Size, Path], float]


def features() -> list[Feature]:
    cost = "broker CPU", "us/message", 0.5
    return [
        Feature("transactions", "broker CPU", "us/transaction", 0.5, _topic("ledger"), _transactions),
        Feature("delay level of 1 s", *cost, _topic("delayed"), _delayed),
        Feature("timers", *cost, _topic("timed"), _timed),
        Feature("SQL-filtered consumption", *cost, _fill_filtered, _filtered),
        Feature("sends beside a cold reader", "p99", "ms", 1.0, _fill_backlog, _beside),
    ]


def _topic(name: str) -> Callable[[Peer, Size, Path], None]:
    return lambda peer, _size, _home: create_topic(peer, name)


# -- transactions --------------------------------------------------------------------------------------------------------


def _transactions(peer: Peer, size: Size, _home: Path) -> float:
    async def run() -> float:
        channels = [await Channel.connect(peer.address) for _ in range(transactions.CONNECTIONS)]
        try:
            return (await transactions.window(peer.broker.cpu, channels, size.warmup, size.seconds)).us
        finally:
            for channel in channels:
                channel.close()

    return asyncio.run(run())


# -- what waits ----------------------------------------------------------------------------------------------------------


def _delayed(peer: Peer, size: Size, _home: Path) -> float:
    return _until_delivered(peer, "delayed", size.messages, lambda: "DELAY\x011\x02")


def _timed(peer: Peer, size: Size, _home: Path) -> float:
    return _until_delivered(
        peer, "timed", size.messages, lambda: f"TIMER_DELIVER_MS\x01{int(time.time() * 1000) + AHEAD_MS}\x02"
    )


def _until_delivered(peer: Peer, topic: str, count: int, wish: Callable[[], str]) -> float:
    """CPU of the broker per message, from the first send until all are where consumers can read them."""
    before, cpu = stored(peer, topic), peer.broker.cpu()
    asyncio.run(_send(peer.address, topic, count, wish))
    deadline = time.monotonic() + DELIVERED_S_MAX
    while stored(peer, topic) < before + count:
        if time.monotonic() > deadline:
            raise ProcessFailed(f"{peer.kind} has delivered {stored(peer, topic) - before} of {count} messages")
        time.sleep(0.2)
    return (peer.broker.cpu() - cpu).run_ns / 1000 / count


async def _send(address: str, topic: str, count: int, wish: Callable[[], str]) -> None:
    numbers = iter(range(count))

    async def work(channel: Channel) -> None:
        for number in numbers:
            text = f"UNIQ_KEY\x01{topic}{time.time_ns():020d}{number:08d}\x02WAIT\x01true\x02{wish()}"
            await _sent(channel, _header(topic, number, text), BODY)

    await _with_channels(address, lambda channels: [work(channel) for channel in channels for _ in range(AT_ONCE)])


async def _sent(channel: Channel, header: SendMessageV2, body: bytes, code: int | None = None) -> None:
    """Apache refuses what has waited for 200 ms, as on a busy machine: then it is sent again."""
    for _ in range(TRIES_MAX):
        answer = await channel.request(header, body, ANSWER_S, code=code)
        if answer.code != ResponseCode.SYSTEM_BUSY:
            break
        await asyncio.sleep(PAUSE_S)
    assert answer.code == 0, answer.remark


def _header(topic: str, number: int, text: str, *, batch: bool = False) -> SendMessageV2:
    return SendMessageV2(
        producer_group="bench", topic=topic, default_topic="TBW102", default_topic_queues=4, queue_id=number % QUEUES, sys_flag=0,
        born_ms=time.time_ns() // 1_000_000, flag=0, properties=text, reconsume_times=0, unit_mode=False, batch=batch,
    )  # fmt: skip


async def _with_channels(address: str, work: Callable[[list[Channel]], list[object]]) -> None:
    channels = [await Channel.connect(address) for _ in range(CONNECTIONS)]
    try:
        await asyncio.gather(*work(channels))  # type: ignore[call-overload]
    finally:
        for channel in channels:
            channel.close()


# -- filters -------------------------------------------------------------------------------------------------------------


def _fill_filtered(peer: Peer, size: Size, _home: Path) -> None:
    create_topic(peer, "filtered")
    asyncio.run(_send_batches(peer.address, "filtered", size.filtered // 32))
    _wait_for(peer, "filtered", size.filtered // 32 * 32)


def _wait_for(peer: Peer, topic: str, count: int) -> None:
    deadline = time.monotonic() + DELIVERED_S_MAX
    while stored(peer, topic) < count:
        if time.monotonic() > deadline:
            raise ProcessFailed(f"{peer.kind} holds {stored(peer, topic)} of {count} messages of {topic}")
        time.sleep(0.1)


async def _send_batches(address: str, topic: str, count: int) -> None:
    numbers = iter(range(count))

    async def work(channel: Channel) -> None:
        for number in numbers:
            members = [
                batches.Member(BODY, f"a\x01{place % 10}\x02UNIQ_KEY\x01{number:08d}{place:04d}\x02")
                for place in range(32)
            ]
            header = _header(topic, number, "WAIT\x01true\x02", batch=True)
            await _sent(channel, header, batches.encode(members), code=RequestCode.SEND_BATCH_MESSAGE)

    await _with_channels(address, lambda channels: [work(channel) for channel in channels for _ in range(8)])


def _filtered(peer: Peer, _size: Size, _home: Path) -> float:
    """One consumer reads all queues from their start; what is counted is what the broker had to look at."""
    before = peer.broker.cpu()
    looked_at = asyncio.run(_read_filtered(peer.address))
    return (peer.broker.cpu() - before).run_ns / 1000 / looked_at


async def _read_filtered(address: str) -> int:
    channel = await Channel.connect(address)

    async def read(queue_id: int) -> int:
        offset = 0
        while True:
            header = PullMessage(
                consumer_group="bench", topic="filtered", queue_id=queue_id, queue_offset=offset, count_max=32,
                sys_flag=SUBSCRIPTION_IN_HEADER, commit_offset=0, hold_ms=0, subscription=EXPRESSION, subscription_version=1,
                expression_type="SQL92",
            )  # fmt: skip
            answer = await channel.request(header, timeout=ANSWER_S)
            if answer.code in _EMPTY and int(answer.ext["nextBeginOffset"]) <= offset:
                return offset
            assert answer.code in (0, *_EMPTY, ResponseCode.PULL_RETRY_IMMEDIATELY), (answer.code, answer.remark)
            offset = int(answer.ext["nextBeginOffset"])

    try:
        return sum(await asyncio.gather(*(read(queue_id) for queue_id in range(QUEUES))))
    finally:
        channel.close()


# -- beside a cold reader ------------------------------------------------------------------------------------------------

_READER = loader.Load(mode=PULL, connections=1, inflight=QUEUES, queues=QUEUES, topic="cold", warmup=0, loop=True)
_SENDER = loader.Load(mode=SEND, connections=8, queues=QUEUES, topic="tail", rate=SENDS_A_SECOND)


def _fill_backlog(peer: Peer, size: Size, home: Path) -> None:
    create_topic(peer, "cold")
    create_topic(peer, "tail")
    requests = size.backlog // 32
    load = loader.Load(
        mode=BATCH, connections=8, inflight=4, queues=QUEUES, requests=requests, seconds=0, warmup=0, topic="cold"
    )
    loader.run(peer.address, load, home / "fill", may_fail=True)
    _wait_for(peer, "cold", size.backlog // 2)


def _beside(peer: Peer, size: Size, home: Path) -> float:
    """p99 of sends in milliseconds while one consumer reads a backlog that is in no page cache."""
    peer.restart(drop_page_cache)
    sends = replace(_SENDER, seconds=size.seconds, warmup=size.warmup)
    loader.run(peer.address, replace(sends, seconds=2), home / "first")  # a start has left something for later
    until = stored(peer, "cold") // QUEUES
    reader = loader.Running(
        peer.address,
        replace(_READER, until=until, seconds=size.seconds + size.warmup + 1, group="cold"),
        home / "reader",
        policy=os.SCHED_IDLE,
    )
    try:
        loaded = loader.run(peer.address, sends, home / "sends", policy=os.SCHED_FIFO)
    finally:
        reader.kill()
    return loaded.p99_us / 1000
