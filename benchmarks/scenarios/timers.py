"""Messages for later: what many of them cost while they wait, and how punctual they are when many are due.

A million wait for hours; meanwhile others become due, spread over a minute and then many in the same second. How late each was
is what its copy says: the time it was stored against the time it was meant for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from benchmarks.bench import Bench, Figure, noise_note
from benchmarks.servers import Broker, settle
from benchmarks.wire import Wire, stored_messages
from kappamq.net.channel import Channel
from kappamq.protocol.headers.client import SendMessageV2

FAR, SPREAD, BURST, QUEUES = "far", "spread", "burst", 8
CONNECTIONS, AT_ONCE = 4, 64
BODY = b"x" * 100
FAR_S = 36_000
AHEAD_S = 3.0  # the last of those due soon are sent before the first is due
WAIT_S = 300.0
SAMPLED_MAX = 20_000


def run(bench: Bench) -> list[Figure]:
    count = bench.size.timers
    due = min(100_000, max(500, count // 10))
    window_s = 60.0 * due / 100_000
    with bench.nameserver() as names, bench.broker(names, on_disk=True) as server:
        with Wire(server.address) as wire:  # the first message makes a topic, and is not there for hours
            for topic in (FAR, SPREAD, BURST):
                wire.send(topic, 0, BODY, {"UNIQ_KEY": topic, "TIMER_DELAY_SEC": str(FAR_S)}, queues=QUEUES)
        settle(server.process)
        empty = server.process.rss_anon() / 1e6
        before, start = server.process.cpu(), time.monotonic()
        asyncio.run(send(server, FAR, count, lambda n, now: now + 3_600_000 + n * 7919 % (FAR_S * 1000)))
        seconds = time.monotonic() - start
        settle(server.process)
        cpu = server.process.cpu() - before
        memory = server.process.rss_anon() / 1e6
        ahead_s = AHEAD_S + 2 * seconds * due / count  # twice as long as sending should take
        spread = punctuality(server, SPREAD, due, window_s, ahead_s)
        burst = punctuality(server, BURST, due, 1.0, ahead_s)
    note = noise_note([cpu.noise])
    return [
        Figure("timers", f"{count:,} pending, RssAnon", memory, "MB", note=f"{empty:.0f} MB before"),
        Figure("timers", "enqueue rate", count / seconds, "msg/s", note=note),
        Figure("timers", "one timer until it waits, broker CPU", cpu.run_ns / count / 1000, "us"),
        Figure(
            "timers",
            f"{due:,} due in {window_s:g} s, late p99",
            spread[1],
            "ms",
            at_most=1000,
            note=f"p50 {spread[0]:g} ms",
        ),
        Figure("timers", f"{due:,} due in the same second, late p99", burst[1], "ms"),
        Figure("timers", "due rate", due / burst[2], "msg/s", note="all due in the same second"),
    ]


async def send(server: Broker, topic: str, count: int, due: Callable[[int, int], int]) -> None:
    """`count` messages, each with its time, over a few connections with many on their way at once."""
    numbers = iter(range(count))

    async def work(channel: Channel) -> None:
        for number in numbers:
            text = f"UNIQ_KEY\x01{topic}{number:024d}\x02TIMER_DELIVER_MS\x01{due(number, int(time.time() * 1000))}\x02WAIT\x01true\x02"
            header = SendMessageV2(
                producer_group="bench", topic=topic, default_topic="TBW102", default_topic_queues=4, queue_id=number % QUEUES,
                sys_flag=0, born_ms=1, flag=0, properties=text, reconsume_times=0, unit_mode=False, batch=False,
            )  # fmt: skip
            answer = await channel.request(header, BODY, 60.0)
            assert answer.code == 0, answer.remark

    channels = [await Channel.connect(server.address) for _ in range(CONNECTIONS)]
    try:
        await asyncio.gather(*(work(channel) for channel in channels for _ in range(AT_ONCE)))
    finally:
        for channel in channels:
            channel.close()


def punctuality(server: Broker, topic: str, count: int, window_s: float, ahead_s: float) -> tuple[float, float, float]:
    """(p50, p99) of how late they were, in ms, and the seconds from the first due time to the last copy."""
    began = int((time.time() + ahead_s) * 1000)
    asyncio.run(send(server, topic, count, lambda n, now: began + int(n * 7919 % (window_s * 1000))))
    assert time.time() * 1000 < began, "sending took so long that the first were due meanwhile"
    deadline = time.monotonic() + ahead_s + window_s + WAIT_S
    while stored_messages(server.address, topic, QUEUES) < count:
        assert time.monotonic() < deadline, "they do not come"
        time.sleep(0.1)
    late: list[int] = []
    last = began
    with Wire(server.address, timeout=60) as wire:
        for queue_id in range(QUEUES):
            at, end = 0, wire.max_offset(topic, queue_id)
            step = max(32, end * QUEUES * 32 // SAMPLED_MAX)
            while at < end:
                for record in wire.pull(topic, queue_id, at, 32).records:
                    late.append(record.stored_ms - int(record.property_map()["TIMER_DELIVER_MS"]))
                    last = max(last, record.stored_ms)
                at = end - 32 if at < end - 32 < at + step else at + step
    assert min(late) >= 0, "never early"
    late.sort()
    return late[len(late) // 2], max(1, late[len(late) * 99 // 100]), max(0.001, (last - began) / 1000)
