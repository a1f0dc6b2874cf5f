"""The broker's runtime information (28, `mqadmin brokerStatus` and `clusterList`): every key that RocketMQ's tools read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.sending.gate import Gate
from kappamq.broker.telemetry.latency import PutLatency
from kappamq.broker.telemetry.stats import Stats
from kappamq.broker.upkeep.slices import Worker
from kappamq.clock import Clock
from kappamq.config.shapes import CAUTION, Caution
from kappamq.native.interface import Kernel
from kappamq.net.requests.loop_watch import LoopWatch
from kappamq.protocol import names
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.codes import VERSION, RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import GetBrokerRuntimeInfo
from kappamq.protocol.records.view import FRONT_BYTES, Front
from kappamq.store.message_store import MessageStore
from kappamq.store.retention import Usage

VERSION_TEXT = "V5_3_3"
DELAY_LEVELS = 18
_CONFLICTS_NAMED = 10
# We have one loop and no queues between threads; tools still expect them, so report empty ones.
_POOLS = {
    "send": 10_000,
    "pull": 100_000,
    "litePull": 100_000,
    "query": 20_000,
    "ack": 100_000,
}


class Others(NamedTuple):
    """The runtime information of other parts of the broker, called each time."""

    connections: Callable[[], int]
    timers: Callable[[], dict[str, str]]
    delay_position: Callable[[int], int]
    parked_pulls: Callable[[], int]
    conflicts: Callable[[], Iterable[tuple[str, list[str]]]]
    wall_clock: Callable[[], dict[str, str]]
    damage: Callable[[], dict[str, str]]
    staged: Callable[[], dict[str, str]]
    copies: Callable[[], dict[str, str]]
    cautions: Callable[[], list[Caution]]


class Runtime:
    def __init__(
        self,
        store: MessageStore,
        kernel: Kernel,
        clock: Clock,
        stats: Stats,
        latency: PutLatency,
        gate: Gate,
        kernel_name: str,
        worker: Worker,
        watch: LoopWatch,
        others: Others,
    ) -> None:
        self._store = store
        self._kernel = kernel
        self._clock = clock
        self._stats = stats
        self._latency = latency
        self._gate = gate
        self._kernel_name = kernel_name
        self._worker = worker
        self._watch = watch
        self._began_ms = clock.message_ms()
        self._began = clock.liveness()
        self._others = others

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.GET_BROKER_RUNTIME_INFO: self.info}

    async def info(self, request: Request[GetBrokerRuntimeInfo]) -> Frame:
        usage = Usage(*await self._worker(self._store.files.usage, self._store.config.root))
        earliest = await self._worker(self._earliest_ms)
        table = {
            **self._about_store(usage),
            **self._about_messages(),
            **self._about_broker(earliest),
            **self._about_us(),
        }
        return request.reply(body=KVTable(dict(sorted(table.items()))).encode())

    def _earliest_ms(self) -> int:
        """Worker: store time of the oldest record; -1 if there is none."""
        log = self._store.log
        if log.min >= log.end:
            return -1
        return Front(log.slice(log.min, FRONT_BYTES)).stored_ms or -1

    def _about_store(self, usage: Usage) -> dict[str, str]:
        store = self._store
        unflushed = store.marks.written.offset - store.marks.flushed.offset
        return {
            "commitLogDiskRatio": f"{usage.ratio:.4f}",
            f"commitLogDiskRatio_{store.log.folder}": f"{usage.ratio:.4f}",
            "consumeQueueDiskRatio": f"{usage.ratio:.4f}",
            "commitLogMinOffset": str(store.log.min),
            "commitLogMaxOffset": str(store.log.end),
            "commitLogDirCapacity": f"Total : {_readable(usage.total_bytes)}, Free : {_readable(usage.free_bytes)}.",
            "dispatchBehindBytes": str(store.log.end - store.marks.dispatched.offset),
            "dispatchMaxBuffer": "0",
            "remainHowManyDataToFlush": _readable(unflushed),
            "remainHowManyDataToCommit": _readable(0),
            "remainTransientStoreBufferNumbs": str((1 << 31) - 1),  # there is no such pool, so it is never short
            "pageCacheLockTimeMills": "0",
        }

    def _about_messages(self) -> dict[str, str]:
        kernel, stats = self._kernel, self._stats
        transferred = stats.rates(lambda sample: sample.get_count)
        missed = stats.rates(lambda sample: sample.missed)
        put_count = kernel.put_count
        return {
            "putMessageTimesTotal": str(put_count),
            "putMessageSizeTotal": str(kernel.put_bytes),
            "putMessageAverageSize": f"{kernel.put_bytes / put_count if put_count else 0.0}",
            "putMessageFailedTimes": "0",
            "putMessageEntireTimeMax": str(self._latency.max_ms),
            "putMessageDistributeTime": self._latency.distribution(),
            "getMessageEntireTimeMax": "0",
            "putLatency99": f"{self._latency.percentile_ms(0.99):.3f}",
            "putLatency999": f"{self._latency.percentile_ms(0.999):.3f}",
            "putTps": _rates(stats.rates(lambda sample: sample.put_count)),
            "getFoundTps": _rates(transferred),
            "getMissTps": _rates(missed),
            "getTotalTps": _rates([found + none for found, none in zip(transferred, missed, strict=True)]),
            "getTransferredTps": _rates(transferred),
            "msgPutTotalYesterdayMorning": str(stats.put_today.yesterday_morning),
            "msgPutTotalTodayMorning": str(stats.put_today.today_morning),
            "msgPutTotalTodayNow": str(put_count),
            "msgGetTotalYesterdayMorning": str(stats.get_today.yesterday_morning),
            "msgGetTotalTodayMorning": str(stats.get_today.today_morning),
            "msgGetTotalTodayNow": str(kernel.get_count),
        }

    def _about_broker(self, earliest_ms: int) -> dict[str, str]:
        table = {
            "bootTimestamp": str(self._began_ms),
            "runtime": _duration(self._clock.liveness() - self._began),
            "brokerActive": "true",
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_TEXT,
            "earliestMessageTimeStamp": str(earliest_ms),
            "startAcceptSendRequestTimeStamp": "0",
            **self._others.timers(),
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": "100000",
        }
        for pool, capacity in _POOLS.items():
            table[f"{pool}ThreadPoolQueueSize"] = "0"
            table[f"{pool}ThreadPoolQueueCapacity"] = str(capacity)
            table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        for level in range(1, DELAY_LEVELS + 1):
            end = self._store.queue_state(names.SCHEDULE_TOPIC, level - 1).end
            table[f"scheduleMessageOffset_{level}"] = f"{self._others.delay_position(level)},{end}"
        return table

    def _about_us(self) -> dict[str, str]:
        kernel = self._kernel
        return {
            "kappamqKernel": self._kernel_name,
            "kappamqFastFrames": str(kernel.fast_frames),
            "kappamqSlowFrames": str(kernel.left_frames),
            "kappamqConnections": str(self._others.connections()),
            "kappamqParkedPulls": str(self._others.parked_pulls()),
            "kappamqConflictingGroups": _conflicts(self._others.conflicts()),
            **self._others.wall_clock(),
            "kappamqLongTurns": str(self._watch.long_turns),
            "kappamqLongestTurnMs": f"{self._watch.longest_turn_s * 1000:.0f}",
            "kappamqRefusing": "; ".join(self._gate.reasons) or "nothing",
            **self._others.damage(),
            **self._others.staged(),
            **self._others.copies(),
            **{f"{CAUTION}{caution.name}": str(caution) for caution in self._others.cautions()},
        }


def _conflicts(groups: Iterable[tuple[str, list[str]]]) -> str:
    named = [f"{name}: {texts[0]}" for name, texts in islice(groups, _CONFLICTS_NAMED)]
    return "; ".join(named) or "none"


def _rates(values: tuple[float, ...] | list[float]) -> str:
    """Three numbers, blank-joined; tools take the first."""
    return " ".join(repr(round(value, 4)) for value in values)


def _readable(count: int) -> str:
    size, unit = float(count), ""
    for unit in ("", "Ki", "Mi", "Gi", "Ti"):
        if size < 1024 or unit == "Ti":
            break
        size /= 1024
    return f"{count} B" if not unit else f"{size:.1f} {unit}B"


def _duration(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"[ {days} days, {hour} hours, {minute} minutes, {second} seconds ]"
