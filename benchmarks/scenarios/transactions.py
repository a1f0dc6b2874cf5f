"""Transactional sends: half message, then commit, and what one costs the broker; how fast open ones are asked about."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.bench import Bench, Figure, noise_note
from benchmarks.loader import Load
from benchmarks.process import Cpu
from benchmarks.scenarios.sending import create_topic
from benchmarks.servers import Broker, settle
from kappamq.net.channel import Channel
from kappamq.protocol.bodies.clients import HeartbeatData, ProducerData
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import TRANSACTION_COMMIT, EndTransaction, HeartBeat, SendMessageV2
from kappamq.protocol.headers.header import Header

TOPIC, GROUP, QUEUES = "ledger", "bench", 8
CONNECTIONS, INFLIGHT = 4, 16
BODY = b"x" * 100
ANSWER_S = 60.0
TRIES_MAX, PAUSE_S = 100, 0.2
MS_PER_HALF = 0.5  # no question is due before all of them are there: whom nobody answers for has to wait
_numbers = itertools.count()


@dataclass(slots=True)
class Window:
    count: int
    seconds: float
    cpu: Cpu  # of the broker

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    @property
    def us(self) -> float:
        return self.cpu.run_ns / 1000 / self.count


async def _answered(channel: Channel, header: Header, body: bytes = b"") -> Frame:
    """On a busy machine Apache's broker refuses what has waited for 200 ms: then it is asked again."""
    for _ in range(TRIES_MAX):
        answer = await channel.request(header, body, ANSWER_S)
        if answer.code != ResponseCode.SYSTEM_BUSY:
            break
        await asyncio.sleep(PAUSE_S)
    assert answer.code == 0, answer.remark
    return answer


async def _begin(channel: Channel, number: int) -> EndTransaction:
    """Store a half message; returns what commits it."""
    unique = f"{number:032d}"
    header = SendMessageV2(
        producer_group=GROUP, topic=TOPIC, default_topic="TBW102", default_topic_queues=QUEUES, queue_id=number % QUEUES,
        sys_flag=4, born_ms=time.time_ns() // 1_000_000, flag=0,
        properties=f"UNIQ_KEY\x01{unique}\x02TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02WAIT\x01true\x02",
    )  # fmt: skip
    answer = await _answered(channel, header, BODY)
    return EndTransaction(
        producer_group=GROUP, transaction_offset=int(answer.ext["queueOffset"]), log_offset=int(answer.ext["msgId"][-16:], 16),
        decision=TRANSACTION_COMMIT, message_id=unique, transaction_id=unique,
    )  # fmt: skip


async def _commit_one(channel: Channel) -> None:
    end = await _begin(channel, next(_numbers))
    await _answered(channel, end)


async def window(cpu: Callable[[], Cpu], channels: list[Channel], warmup: float, seconds: float) -> Window:
    """Everybody commits one transaction after the other; on a starved machine the window stays open until one is done."""
    done = 0
    closed = False
    progress = asyncio.Event()

    async def work(channel: Channel) -> None:
        nonlocal done
        while not closed:
            await _commit_one(channel)
            done += 1
            progress.set()

    workers = [asyncio.create_task(work(channel)) for channel in channels for _ in range(INFLIGHT)]
    await asyncio.sleep(warmup)
    first, before, start = done, cpu(), time.monotonic()
    progress.clear()
    await asyncio.sleep(seconds)
    await asyncio.wait_for(progress.wait(), ANSWER_S)
    closed = True
    measured = Window(done - first, time.monotonic() - start, cpu() - before)
    await asyncio.gather(*workers)
    return measured


async def _questions(server: Broker, count: int) -> Window:
    """Leave transactions open; their producer is asked about each of them, as fast as the broker may."""
    asked: set[str] = set()
    everybody = asyncio.Event()
    first: list[tuple[Cpu, float]] = []

    def heard(channel: Channel, frame: Frame) -> None:
        if frame.code == RequestCode.CHECK_TRANSACTION_STATE:
            if not first:
                first.append((server.process.cpu(), time.monotonic()))
            asked.add(frame.ext["msgId"])
            if len(asked) == count:
                everybody.set()

    channel = await Channel.connect(server.address, on_request=heard)
    try:
        await asyncio.gather(*(_begin(channel, next(_numbers)) for _ in range(count)))
        beat = HeartbeatData(client_id="bench", producers=[ProducerData(group=GROUP)])
        assert (await channel.request(HeartBeat(), beat.encode(), ANSWER_S)).code == 0
        await asyncio.wait_for(everybody.wait(), ANSWER_S)
        before, start = first[0]
        return Window(count, time.monotonic() - start, server.process.cpu() - before)
    finally:
        channel.close()


def run(bench: Bench) -> list[Figure]:
    figures: list[Figure] = []
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        with (
            bench.nameserver() as names,
            bench.broker(names, on_disk=flush == "SYNC_FLUSH", properties={"flushDiskType": flush}) as server,
        ):
            create_topic(server, Load(topic=TOPIC, queues=QUEUES))
            settle(server.process)
            figures += asyncio.run(_sends(bench, server, flush))
    count = bench.size.groups * 20
    asks = {
        "transactionTimeOut": 1000 + int(count * MS_PER_HALF),
        "transactionCheckInterval": 600_000,
        "broker.transaction_checks_per_s": 1_000_000,
    }
    with bench.nameserver() as names, bench.broker(names, properties=asks) as server:
        create_topic(server, Load(topic=TOPIC, queues=QUEUES))
        asked = asyncio.run(_questions(server, count))
    note = "no limit set; by default 1,000/s"
    figures.append(Figure("transactions", "questions to producers", asked.rate, "questions/s", note=note))
    figures.append(Figure("transactions", "one question, broker CPU", asked.us, "us"))
    return figures


async def _sends(bench: Bench, server: Broker, flush: str) -> list[Figure]:
    name = flush.replace("_", " ").lower()
    channels = [await Channel.connect(server.address) for _ in range(CONNECTIONS)]
    try:
        bench.say(f"transactions: {name}")
        windows = [
            await window(server.process.cpu, channels, bench.size.warmup, bench.size.seconds)
            for _ in range(bench.size.runs)
        ]
    finally:
        for channel in channels:
            channel.close()
    noise = noise_note([each.cpu.noise for each in windows])
    return [
        Figure.median(
            "transactions",
            f"{CONNECTIONS}x{INFLIGHT}, 100 B, {name}",
            [each.rate for each in windows],
            "transactions/s",
            note="half and commit; the producers, in Python on the other core, take about as long",
        ),
        Figure.median(
            "transactions", f"one transaction, broker CPU, {name}", [each.us for each in windows], "us", note=noise
        ),
    ]
