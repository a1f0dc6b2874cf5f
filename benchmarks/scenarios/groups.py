"""Many consumer groups on one topic: what they cost in memory and heartbeats, how fast all of them read everything, and how
long a message takes to reach every one that waits."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from benchmarks.bench import Bench, Figure, noise_note
from benchmarks.loader import Load
from benchmarks.loader import run as run_load
from benchmarks.process import Cpu
from benchmarks.scenarios.sending import create_topic
from benchmarks.servers import Broker, settle
from kappamq.net.channel import Channel
from kappamq.protocol.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import HeartBeat, PullMessage, SendMessageV2

TOPIC, QUEUES = "crowded", 8
FULL_GROUPS = 1000
WAKE_ROUNDS = 5
ANSWER_S, HOLD_MS = 60.0, 50_000
MAY_WAIT = 2
FOUND, NOTHING_NEW = 0, 19


@dataclass(slots=True)
class Group:
    """One consumer, alone in its group."""

    name: str
    channel: Channel

    async def beat(self) -> None:
        interest = SubscriptionData(topic=TOPIC, expression="*", version=1)
        data = HeartbeatData(
            client_id=f"client-{self.name}", consumers=[ConsumerData(group=self.name, subscriptions=[interest])]
        )
        answer = await self.channel.request(HeartBeat(), data.encode(), ANSWER_S)
        assert answer.code == 0, answer.remark

    async def pull(self, queue_id: int, offset: int, *, wait: bool = False) -> Frame:
        header = PullMessage(
            consumer_group=self.name, topic=TOPIC, queue_id=queue_id, queue_offset=offset, count_max=32,
            sys_flag=MAY_WAIT if wait else 0, commit_offset=0, hold_ms=HOLD_MS if wait else 0, subscription_version=1,
        )  # fmt: skip
        answer = await self.channel.request(header, timeout=ANSWER_S)
        assert answer.code in (FOUND, NOTHING_NEW), answer.remark
        return answer

    async def read_all(self) -> int:
        """Every message of the topic; how many."""
        count = 0
        for queue_id in range(QUEUES):
            offset = 0
            while (answer := await self.pull(queue_id, offset)).code == FOUND:
                following = int(answer.ext["nextBeginOffset"])
                count, offset = count + following - offset, following
        return count


@dataclass(slots=True)
class Measured:
    seconds: float
    cpu: Cpu  # of the broker
    results: list[int]


class Crowd:
    def __init__(self, server: Broker, groups: list[Group]) -> None:
        self.server, self.groups = server, groups
        self.noise: list[float] = []

    async def all(self, work: Callable[[Group], Awaitable[int | None]]) -> Measured:
        """All groups at once."""
        before, start = self.server.process.cpu(), time.monotonic()
        results = await asyncio.gather(*(work(group) for group in self.groups))
        cpu = self.server.process.cpu() - before
        self.noise.append(cpu.noise)
        return Measured(time.monotonic() - start, cpu, [result or 0 for result in results])

    async def wake(self, end: int) -> Measured:
        """All wait for the next message of a queue; one comes."""
        waiting = [asyncio.ensure_future(group.pull(0, end, wait=True)) for group in self.groups]
        # Behind them on the same connection: when this is answered, the broker has them parked.
        await asyncio.gather(*(group.beat() for group in self.groups))
        before, start = self.server.process.cpu(), time.monotonic()
        await _send(self.groups[0].channel)
        answers = await asyncio.gather(*waiting)
        assert all(answer.code == FOUND for answer in answers)
        return Measured(time.monotonic() - start, self.server.process.cpu() - before, [])


async def _send(channel: Channel) -> None:
    header = SendMessageV2(
        producer_group="bench", topic=TOPIC, default_topic="TBW102", default_topic_queues=QUEUES, queue_id=0, sys_flag=0,
        born_ms=time.time_ns() // 1_000_000, flag=0, properties="UNIQ_KEY\x01wake\x02",
    )  # fmt: skip
    answer = await channel.request(header, b"x" * 100, ANSWER_S)
    assert answer.code == 0, answer.remark


def run(bench: Bench) -> list[Figure]:
    size = bench.size
    with bench.nameserver() as names, bench.broker(names) as server:
        create_topic(server, Load(topic=TOPIC, queues=QUEUES))
        run_load(
            server.address,
            Load(topic=TOPIC, queues=QUEUES, requests=size.group_messages, inflight=8, seconds=0, warmup=0),
            server.home,
        )
        settle(server.process)
        return asyncio.run(_measure(bench, server))


async def _measure(bench: Bench, server: Broker) -> list[Figure]:
    count = bench.size.groups
    at_rest = server.process.rss_anon()
    bench.say(f"groups: {count} groups join")
    groups = [Group(f"crowd-{n}", await Channel.connect(server.address)) for n in range(count)]
    try:
        crowd = Crowd(server, groups)
        joined = await crowd.all(Group.beat)
        memory = server.process.rss_anon() - at_rest
        await asyncio.to_thread(settle, server.process)
        beats = [await crowd.all(Group.beat) for _ in range(bench.size.runs)]
        bench.say("groups: each reads everything")
        reads = [await crowd.all(Group.read_all) for _ in range(bench.size.runs)]
        assert len(set(reads[0].results)) == 1, "every group gets every message"
        end = await _end(groups[0])
        wakes = [await crowd.wake(end + number) for number in range(WAKE_ROUNDS)]
        grown = server.process.rss_anon()
    finally:
        for group in groups:
            group.channel.close()
    per_read = [measured.cpu.run_ns / 1000 / sum(measured.results) for measured in reads]
    text = f"{count:,} groups"
    noise = noise_note(crowd.noise)
    return [
        Figure("groups", f"{text}, memory of one", memory / count / 1000, "kB", note="RssAnon, with its connection"),
        Figure("groups", f"{text}, RssAnon of the broker", grown / 1e6, "MB"),
        Figure("groups", "joining, broker CPU", joined.cpu.run_ns / 1000 / count, "us", note="first heartbeat"),
        Figure.median(
            "groups", "heartbeat, broker CPU", [_us(measured, count) for measured in beats], "us", note=noise
        ),
        Figure.median(
            "groups",
            f"{text} read all, pulls of 32",
            [sum(measured.results) / measured.seconds for measured in reads],
            "messages/s",
            note="the readers, in Python on the other core, are the limit",
        ),
        Figure.median("groups", f"{text} read all, broker CPU", per_read, "us/message", note=noise),
        Figure(
            "groups",
            f"one message to {text} that wait, the last has it",
            statistics.median(measured.seconds for measured in wakes) * 1000,
            "ms",
            note="with the readers' own time",
        ),
        Figure.median("groups", "waking one, broker CPU", [_us(measured, count) for measured in wakes], "us"),
    ]


def _us(measured: Measured, count: int) -> float:
    return measured.cpu.run_ns / 1000 / count


async def _end(group: Group) -> int:
    return int((await group.pull(0, 0)).ext["maxOffset"])
