"""The tables of a broker on a store of their own: the real store, log writer and tables, and turns that end when a test says so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from kappamq.broker.delivery.delay_levels import DelayPositions
from kappamq.broker.sending.gate import Gate
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.broker.timers.progress import TimerProgress
from kappamq.broker.transactions.reopened import Reopened
from kappamq.broker.upkeep.clock_watch import ClockTable
from kappamq.broker.upkeep.queue_ends import QueueEnds
from kappamq.clock import VirtualClock
from kappamq.config.broker import BrokerConfig
from kappamq.config.net import NetConfig
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.clients import SubscriptionData, SubscriptionGroupConfig
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.state.filters import ConsumerFilters
from kappamq.state.groups import Groups
from kappamq.state.locks import QueueLocks
from kappamq.state.member_places import MemberPlaces
from kappamq.state.metadata import Metadata, Table
from kappamq.state.offsets import Offsets
from kappamq.state.resets import PendingResets
from kappamq.state.scopes import Scopes
from kappamq.state.staged import StagedChunks
from kappamq.state.topics import Topics
from kappamq.store.message_store import MessageStore
from kappamq.store.snapshots import Snapshots
from tests.store.faulty import FaultyFiles
from tests.store.stores import BOOT, BORN, Writer, config, flush, make

MESSAGES = "messages"
"""The topic that has messages. Only of this one it counts where a queue ends; of all others any offset can be committed."""


class Tables:
    """Every table that is a fold over the log."""

    def __init__(self, store: MessageStore, metadata: Metadata) -> None:
        settings, now_ms, commit = BrokerConfig(name="b"), metadata.now_ms, metadata.commit

        def end(topic: str, queue_id: int) -> int:
            return store.kernel.queue_state(topic, queue_id).end if topic == MESSAGES else 1 << 62

        self.topics = Topics(settings, store.kernel, now_ms, commit)
        self.groups = Groups(settings, now_ms, commit)
        self.offsets = Offsets(now_ms, commit, end=end)
        self.resets = PendingResets(commit)
        self.locks = QueueLocks("b", 60.0, commit)
        self.filters = ConsumerFilters(settings, now_ms, commit)
        self.ends = QueueEnds(store, commit)
        self.places = MemberPlaces(commit)
        self.clocks = ClockTable(store)
        self.delays = DelayPositions(now_ms)
        self.timers = TimerProgress()
        self.reopened = Reopened()
        self.scopes = Scopes(now_ms)
        self.staged = StagedChunks(now_ms)
        self.all: list[Table] = list(vars(self).values())


async def log_writer(store: MessageStore, gate: Gate, clock: VirtualClock) -> LogWriter:
    return LogWriter(store, gate, clock, NetConfig().inflight_bytes_max)


class Node:
    """`kind`: which kernel. Its loop never runs, so that a turn ends only by `turn`."""

    def __init__(self, root: Path, kind: str = "twin", boot: str = BOOT) -> None:
        self.clock = VirtualClock()
        self.files = FaultyFiles()  # of the snapshots only
        self.store = make(config(root, message_bytes_max=4 << 10, flush="async"), kind)
        self.snapshots = Snapshots(root / "config", self.files)
        self.gate = Gate(self.store.kernel)
        self.loop = asyncio.new_event_loop()
        self.log_writer = self.loop.run_until_complete(log_writer(self.store, self.gate, self.clock))
        self.metadata = Metadata(self.store, self.snapshots, self.clock, BORN, self.log_writer)
        self.tables = Tables(self.store, self.metadata)
        self.topics, self.groups, self.offsets = self.tables.topics, self.tables.groups, self.tables.offsets
        for table in self.tables.all:
            self.metadata.add(table)
        self.store.open(boot)
        self.writer = Writer(self.store, self.clock.message_ms())
        try:
            self.load()
        except BaseException:
            self.close()
            raise

    def load(self) -> None:
        """As at the start of a broker, also again after `metadata.reset`."""
        self.notes = self.metadata.load(self.offsets.clamp)
        self.topics.hide_deleted()
        self.clock.not_before(self.store.last_ms)
        self.writer.now_ms = self.clock.message_ms()

    def turn(self) -> None:
        self.log_writer.end_turn()

    def settle(self) -> None:
        """Everything that was done is in the log."""
        self.offsets.record_commits()
        self.turn()

    def flush(self) -> None:
        self.turn()
        flush(self.store)

    def save(self, renew_below: int = 0) -> list[str]:
        """As upkeep does it: as of now, written when the log is safe up to there. Returns the files."""
        work = self.metadata.collect(renew_below)
        self.flush()
        self.metadata.save(work)
        return [item[0] for item in work]

    def close(self, clean: bool = False) -> None:
        self.store.close(clean)
        self.loop.close()

    def state(self) -> dict[str, Any]:
        """Each table as its snapshot tells it."""
        found = {table.file: table.to_snapshot() for table in self.tables.all}
        for table in ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"):
            if not found[table]["dataVersion"]["counter"]:
                del found[table]["dataVersion"]  # of a table that nothing has changed: when it was made
        return found


def change_every_table(node: Node, number: int) -> None:
    """Two numbers make two different changes of each table."""
    name, tables, now_ms = f"n{number}", node.tables, node.clock.message_ms()
    node.topics.update(TopicConfig(name, 2, 2, 6))
    node.topics.update(TopicConfig("gone", number, number, 6))
    node.topics.delete("gone")
    node.groups.update(SubscriptionGroupConfig(name=name, retry_times_max=number))
    node.groups.forbid(name, "t", readable=False)
    node.offsets.commit(name, "t", 0, number)
    node.offsets.record_commits()
    tables.resets.add(name, "t", {0: number, 1: number})
    tables.locks.lock(name, "c", {MessageQueue("t", "b", number)}, 0)
    filtered = SubscriptionData(topic="t", expression="a = 'x'", expression_type="SQL92", version=number)
    tables.filters.subscribed(name, filtered)
    node.metadata.commit("queue-ends", {name: {0: number}})
    node.metadata.commit("delay", [number, number])
    node.metadata.commit("timer", tables.timers.after(number * 1000, number, {f"w{number}": number * 1000}))
    step = [node.store.kernel.append_offset, number * 1000, now_ms]
    node.metadata.commit("clock", {"step": step, "boot": "b", "offset": number, "ahead": 0})
    node.metadata.commit(*tables.reopened.change(number, 0))
    tables.places.set("n0", f"host:{number}")
    node.metadata.commit("scope", [name, f"owner {number}", "b"])
    node.metadata.commit("batch-begun", [name, f"t{number}", number])
    chunk = [number, node.store.kernel.append_offset, 7, 2, 100, "t", 0]
    node.metadata.commit("chunk-staged", [f"t{number}", name, number, chunk])
