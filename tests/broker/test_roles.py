"""Roles: a node takes and gives up the right to write while it runs, under load, and nothing is lost, done twice or left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from kappamq.broker.batches.batches import BatchTransactions
from kappamq.broker.batches.coordinator import Coordinator
from kappamq.broker.batches.participant import Participant
from kappamq.broker.batches.peers import Peers
from kappamq.broker.batches.publishing import Publishing
from kappamq.broker.broker import Broker
from kappamq.broker.clients.lock_requests import Locking
from kappamq.broker.delivery.agenda import Agenda
from kappamq.broker.delivery.delay_levels import Delays
from kappamq.broker.delivery.delivery import Delivery
from kappamq.broker.delivery.retry import Retries
from kappamq.broker.roles import SERVED
from kappamq.broker.sending.appending import Draft
from kappamq.broker.sending.gate import FAILED, NOT_MASTER
from kappamq.broker.sending.replies import Replies
from kappamq.broker.sending.send import Sends
from kappamq.broker.sending.send_requests import SendRequests
from kappamq.broker.timers.book import TimerBook
from kappamq.broker.timers.recalls import Recalls
from kappamq.broker.timers.timers import Timers
from kappamq.broker.transactions.checks import TransactionChecks
from kappamq.broker.transactions.half_log import HalfLog
from kappamq.broker.transactions.transactions import Transactions
from kappamq.errors import GroupNotFound, NotAvailable, NotMaster
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.clients import ConsumerData, HeartbeatData, LockBatch, SubscriptionData
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import GetAllDelayOffsets, GetBrokerRuntimeInfo, GetTimerMetrics, UpdateTopic
from kappamq.protocol.headers.client import (
    HeartBeat,
    LockQueues,
    OffsetResponse,
    QueryConsumerOffset,
    RecallMessage,
    SendBack,
    UnlockQueues,
    UpdateConsumerOffset,
)
from kappamq.protocol.records.record import iter_records
from tests.broker.running import MODES, Speaker, on_disk, run, running, speaking
from tests.broker.timing import START_MS, timed
from tests.broker.transacting import COMMIT, ROLLBACK, UNKNOWN, Begun, Transactor, producing
from tests.store.faulty import SlowFlusher
from tests.waiting import eventually_async

REFUSED = ResponseCode.SERVICE_NOT_AVAILABLE
ROLE_LONG = (
    Agenda, BatchTransactions, Coordinator, Delays, Delivery, HalfLog, Locking, Participant, Peers, Publishing, Recalls, Replies,
    Retries, SendRequests, Sends, TimerBook, Timers, TransactionChecks, Transactions,
)  # fmt: skip

NEW_TOPIC = UpdateTopic(
    topic="made", default_topic="TBW102", read_queues=1, write_queues=1, permission=6, filter_type="SINGLE_TAG"
)
POOLS_OF_THE_PROCESS = ("kappamq-cold", "kappamq-files", "kappamq-next", "kappamq-scrub")


# -- without the role ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_node_without_the_role_names_who_has_it(tmp_path: Path, mode: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            assert (await client.send("t", b"before")).code == 0
            broker.role.leader_is("10.0.0.7:10911")
            assert (await client.send("t", b"x")).code == 0, "it has the role itself"
            await broker.end_role()
            for leader, told in ((None, "[leader unknown]"), ("10.0.0.7:10911", "[leader 10.0.0.7:10911]")):
                broker.role.leader_is(leader)
                for answer in (
                    await client.send("t", b"x"),
                    await client.ask(NEW_TOPIC),
                    await client.ask(LockQueues(), LockBatch("g", "c", {MessageQueue("t", "b", 0)}).encode()),
                ):
                    assert answer.code == REFUSED
                    assert (answer.remark or "").endswith(told)
            await broker.begin_role()
            assert (await client.send("t", b"after")).code == 0

    run(scenario())


@pytest.mark.parametrize("mode", MODES)
def test_without_the_role_a_node_reads_and_stores_nothing(tmp_path: Path, mode: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client, producing(broker) as producer:
            assert (await client.send("t", b"before")).code == 0
            begun = await producer.begin("t", b"half")
            assert (await client.subscribe("g", "t")).code == 0
            await broker.end_role()
            assert not broker.role.is_held
            stored = broker.kernel.append_offset

            queues = LockBatch(consumer_group="g", client_id="c1", queues={MessageQueue("t", "b", 0)}).encode()
            for answer in (
                await client.send("t", b"plain"),
                await client.send("new", b"a topic that is not there"),
                await client.send("t", b"later", properties="UNIQ_KEY\x01L\x02DELAY\x011"),
                await producer.half("t", b"another half"),
                await producer.end(begun, COMMIT),
                await client.ask(LockQueues(), queues),
                await client.ask(UnlockQueues(), queues),
                await client.ask(SendBack(log_offset=0, group="g", delay_level=0)),
                await client.ask(RecallMessage(topic="t", recall_handle="x")),
                await client.ask(NEW_TOPIC),
            ):  # fmt: skip
                assert answer.code == REFUSED, (answer.code, answer.remark)
                assert "not the master" in (answer.remark or "")
                assert "route" in (answer.remark or "")

            assert [record.body for record in await client.read("t")] == [b"before"]
            assert (await client.subscribe("unheard", "t")).code == 0, "heartbeats are welcome"
            assert "unheard" not in broker.groups.table
            assert broker.topics.get("%RETRY%unheard") is None
            for asked in (GetBrokerRuntimeInfo(), GetTimerMetrics(), GetAllDelayOffsets()):
                assert (await client.ask(asked)).code == 0
            commit = UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=0, commit_offset=1)
            assert (await client.ask(commit)).code == 0
            assert await committed(client) == 1
            assert broker.kernel.append_offset == stored, "nothing came into the log"
            with pytest.raises(NotMaster):
                broker.delivery.agenda.wake()

            await broker.begin_role()
            assert (await client.send("t", b"after")).code == 0
            assert (await producer.end(begun, COMMIT)).code == 0
            assert (await client.ask(LockQueues(), queues)).code == 0
            assert (await client.subscribe("unheard", "t")).code == 0
            assert "unheard" in broker.groups.table
            assert [record.body for record in await client.read("t")] == [b"before", b"after", b"half"]
            assert broker.upkeep.record_commits()
            assert broker.offsets.to_snapshot()["offsetTable"]["t@g"] == {0: 1}

    run(scenario())


async def committed(client: Speaker) -> int:
    answer = await client.ask(QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0))
    assert answer.code == 0, answer.remark
    return OffsetResponse.decode(answer.ext).offset


def test_without_the_role_tables_are_what_the_log_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            assert (await client.send("t", b"first")).code == 0
            assert (await client.subscribe("g", "t")).code == 0
            broker.pending_resets.add("g", "t", {0: 1})
            await broker.end_role()
            tables = {table.file: table.to_snapshot() for table in broker.metadata._tables if table.kinds}
            assert broker.groups.get("new") is None
            with pytest.raises(GroupNotFound, match="not the master"):
                broker.groups.existing("new")
            with pytest.raises(NotMaster):
                broker.topics.ensure("new", 1)
            broker.gate.close(
                FAILED, NotAvailable("a disk that fails is no reason to go on without the log"), for_all=True
            )
            with pytest.raises(NotMaster):
                broker.metadata.commit("group", {"groupName": "new"}, anyway=True)
            broker.gate.open(FAILED)
            # What a node does to itself, or is told by its clients, is no error.
            broker.topics.permission_changed()
            broker.topics.template_changed()
            assert not broker.pending_resets.must_move("c1", ("g", "t", 0), 1, 1, 0.0)
            assert (await client.subscribe("g", "t", "a", version=2)).code == 0
            assert {table.file: table.to_snapshot() for table in broker.metadata._tables if table.kinds} == tables
            await broker.begin_role()
            assert not broker.pending_resets.must_move("c1", ("g", "t", 0), 1, 1, 0.0)
            assert broker.pending_resets.get("g", "t", 0) is None, "it has heard"

    run(scenario())


def test_without_the_role_nothing_is_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        small = {
            "segment_bytes": 64 << 10, "message_bytes_max": 16 << 10, "retention_hours": 0, "delete_hours": (), "disk_clean_ratio": 1.0,
        }  # fmt: skip
        async with running(tmp_path, store=small) as broker, speaking(broker) as client:
            while len(list(broker.store.log.segments())) < 3:
                assert (await client.send("t", bytes(8000))).code == 0
            await on_disk(broker)
            await broker.upkeep.write_derived()
            await broker.end_role()
            with pytest.raises(NotMaster):
                await broker.upkeep.delete_expired(asked=True)
            assert await broker.upkeep.delete_expired() == 0
            assert broker.store.log.min == 0
            await broker.begin_role()
            assert await broker.upkeep.delete_expired(asked=True) > 0
            assert broker.store.log.min > 0

    run(scenario())


def test_begin_and_end_twice_is_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            delivery = broker.delivery
            assert set(delivery.handlers()) == set(SERVED), "each is refused while nobody serves it"
            await broker.begin_role()
            assert broker.delivery is delivery
            await asyncio.gather(broker.end_role(), broker.end_role())
            await asyncio.gather(broker.begin_role(), broker.begin_role())
            assert broker.delivery is not delivery
            assert not broker.gate.has(NOT_MASTER)

    run(scenario())


def test_what_is_left_of_a_role_cannot_write(tmp_path: Path) -> None:
    """A request that was under way when the role ended goes on with what it knew then, which is no longer true."""

    async def scenario() -> None:
        async with running(tmp_path) as broker, producing(broker) as producer:
            begun = await producer.begin("t", b"half")
            old = broker.delivery
            half = old.halves.halves.get(begun.log_offset)
            assert half is not None
            await broker.end_role()
            await broker.begin_role()
            assert (await producer.end(begun, COMMIT)).code == 0
            stored = broker.kernel.append_offset
            with pytest.raises(NotMaster):
                old.halves.commit(half, old.halves.load(half))
            with pytest.raises(NotMaster):
                old.copies.append(Draft("t", 0, b"late"))
            assert broker.kernel.append_offset == stored
            assert [record.body for record in await producer.read("t")] == [b"half"]

    run(scenario())


@pytest.mark.parametrize("mode", MODES)
def test_answers_that_the_disk_does_not_allow_say_so(tmp_path: Path, mode: str) -> None:
    async def scenario() -> None:
        store = {"flush": "sync", "sync_flush_timeout_ms": 500}
        async with running(tmp_path, mode, flusher=SlowFlusher, store=store) as broker, speaking(broker) as client:
            made = asyncio.create_task(client.send("t", b"first"))
            await eventually_async(lambda: broker.topics.get("t"), text="the topic is there")
            SlowFlusher.made.sync()
            assert (await made).code == 0
            waiting = asyncio.create_task(client.send("t", b"unknown"))
            await eventually_async(
                lambda: broker.store.log.end > broker.store.marks.flushed.offset, text="it is written"
            )
            await broker.role.end(drain_s=0.01)
            answer = await waiting
            assert answer.code == REFUSED
            assert answer.remark == "not known to be stored: this broker is no longer the master"
            with pytest.raises(
                NotAvailable
            ):  # what is stored is not in the queues: nobody knows yet what there is to do
                await broker.begin_role()
            assert not broker.role.is_held
            assert (await client.send("t", b"refused")).code == REFUSED
            SlowFlusher.made.keep_up()
            await broker.begin_role()
            assert (await client.send("t", b"last")).code == 0
            assert [record.body for record in await client.read("t")] == [b"first", b"unknown", b"last"]

    run(scenario())


def test_a_clock_that_is_set_meanwhile_is_noted_with_the_next_role(tmp_path: Path) -> None:
    async def scenario() -> None:
        day_ms = 86_400_000
        async with timed(tmp_path, transaction_timeout_ms=6000, delay_levels="10s") as it:
            await it.send(b"half", TRAN_MSG="true", PGROUP="pg")
            await it.send(b"level", DELAY=1)
            await it.send(b"timer", TIMER_DELAY_MS=10_000)
            await it.pass_ms(1000)
            await it.broker.end_role()
            stored = it.broker.kernel.append_offset
            it.clock.jump(day_ms / 1000)
            await eventually_async(lambda: it.broker.clock_watch.jumps, text="the jump is noticed")
            assert it.broker.kernel.append_offset == stored
            await it.broker.begin_role()
            (step,) = it.broker.store.clock_steps.steps
            assert step.step_ms == day_ms
            assert it.broker.delivery.checks.due_ms() == START_MS + day_ms + 6000
            await it.pass_ms(8000)
            assert await it.bodies() == [], "who asked for ten seconds waits for ten seconds"
            await it.pass_ms(1000)
            assert sorted(await it.bodies()) == [b"level", b"timer"]

    run(scenario())


def test_conditions_of_consumers_that_came_meanwhile_are_noted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            assert (await client.send("t", b"first")).code == 0
            assert (await client.subscribe("g", "t")).code == 0
            await broker.end_role()
            condition = SubscriptionData(topic="t", expression="a > 5", expression_type="SQL92", version=2)
            beat = HeartbeatData(client_id="c1", consumers=[ConsumerData(group="g", subscriptions=[condition])])
            assert (await client.ask(HeartBeat(), beat.encode())).code == 0
            assert broker.delivery_tables.filters.get("g", "t") is None
            await broker.begin_role()
            noted = broker.delivery_tables.filters.get("g", "t")
            assert noted is not None
            assert noted.expression == "a > 5"

    run(scenario())


# -- again and again, under load -------------------------------------------------------------------------------------------


class Load:
    """What clients have sent and been told, while the role came and went."""

    def __init__(self) -> None:
        self.stored: dict[str, set[bytes]] = {"plain": set(), "delayed": set(), "timed": set(), "committed": set()}
        self.rolled_back: set[bytes] = set()
        self.left_open: set[bytes] = set()
        self.refused = 0
        self.pulled: list[bytes] = []
        self.ending = False
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def count(self) -> int:
        """How much was stored, or decided, up to now. Raises what has gone wrong with a client."""
        for task in self.tasks:
            if task.done():
                task.result()
        return sum(len(bodies) for bodies in self.stored.values()) + len(self.rolled_back)

    def took(self, code: int, remark: str | None) -> bool:
        assert code in (0, REFUSED), (code, remark)
        self.refused += code != 0
        return code == 0

    async def send(self, client: Speaker, kind: str, properties: Callable[[int], str]) -> None:
        number = 0
        while not self.ending:
            number += 1
            body = b"%s %d" % (kind.encode(), number)
            text = f"UNIQ_KEY\x01{kind}{number:06d}{properties(number)}"
            answer = await client.send(kind, body, number % 2, text)
            if self.took(answer.code, answer.remark):
                self.stored[kind].add(body)

    async def transact(self, producer: Transactor) -> None:
        """Commit, roll back, or leave open what was begun. A decision that is refused is sent again."""
        number = 0
        while not self.ending:
            number += 1
            body = b"transaction %d" % number
            answer = await producer.half("committed", body, number % 2)
            if not self.took(answer.code, answer.remark):
                continue
            begun = Begun(
                int(answer.ext["msgId"][-16:], 16), int(answer.ext["queueOffset"]), answer.ext["transactionId"]
            )
            if number % 3 == 2:
                self.left_open.add(body)
                await producer.end(begun, UNKNOWN)
                continue
            decision = COMMIT if number % 3 else ROLLBACK
            while not self.took((ended := await producer.end(begun, decision)).code, ended.remark):
                pass
            (self.stored["committed"] if decision == COMMIT else self.rolled_back).add(body)

    async def answer_questions(self, producer: Transactor) -> None:
        """A producer that was asked commits what was left open. What is being decided on a slow machine is asked about, too."""
        while True:
            question = await producer.questions.get()
            if question.message.body in self.left_open:
                answer = await producer.end(question.begun, COMMIT, from_check=True)
                self.took(answer.code, answer.remark)

    async def consume(self, client: Speaker) -> None:
        offset = 0
        while True:
            answer = await client.pull("plain", offset, hold_ms=100, sys_flag=1 | 2, commit_offset=offset)
            if answer.code == 0:
                self.pulled += [record.body for record in iter_records(answer.body)]
                offset = int(answer.ext["nextBeginOffset"])
            else:
                assert answer.code in (19, 20), (answer.code, answer.remark)


@asynccontextmanager
async def loaded(broker: Broker) -> AsyncIterator[Load]:
    load = Load()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(speaking(broker)) for _ in range(4)]
        producer = await stack.enter_async_context(producing(broker))
        for topic in load.stored:
            assert (await clients[0].send(topic, b"first")).code == 0
        assert (await clients[3].subscribe("g", "plain")).code == 0
        senders = [
            asyncio.create_task(job)
            for job in (
                load.send(clients[0], "plain", lambda number: ""),
                load.send(clients[1], "delayed", lambda number: "\x02DELAY\x011"),
                load.send(clients[2], "timed", lambda number: f"\x02TIMER_DELAY_MS\x01{100 + number % 900}"),
                load.transact(producer),
            )
        ]
        others = [asyncio.create_task(load.answer_questions(producer)), asyncio.create_task(load.consume(clients[3]))]
        load.tasks = [*senders, *others]
        try:
            yield load
            load.ending = True
            await asyncio.gather(*senders)
            await eventually_async(lambda: all_arrived(clients[0], load), text="everything has arrived")
        finally:
            for task in load.tasks:
                task.cancel()
            done = await asyncio.gather(*load.tasks, return_exceptions=True)
        assert not [error for error in done if isinstance(error, Exception)]


async def all_arrived(client: Speaker, load: Load) -> bool:
    """Everything that was acknowledged is where consumers find it. Whatever is there is there once."""
    missing = 0
    for topic, bodies in load.stored.items():
        found = Counter([record.body for queue_id in (0, 1) for record in await client.read(topic, queue_id)])
        found.pop(b"first")
        assert not [body for body, times in found.items() if times > 1], f"{topic}: delivered twice"
        expected = bodies | load.left_open if topic == "committed" else bodies
        assert not found.keys() - expected, f"{topic}: nobody was told that this is stored"
        missing += len(expected - found.keys())
    return not missing and {body for body in load.stored["plain"] if int(body.split()[1]) % 2 == 0} <= set(load.pulled)


def open_files() -> list[str]:
    names = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the list itself
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    return names


def role_long_objects() -> dict[str, int]:
    """How many there are in this process, which may have brokers of other tests."""
    gc.collect()
    found = Counter(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, ROLE_LONG))
    return {kind.__name__: found[kind.__name__] for kind in ROLE_LONG}


def left_behind(broker: Broker) -> dict[str, object]:
    """What a role could leave behind. Pools of the process grow as they are needed, and so do open files of the store, to a bound."""
    root = str(broker.store.config.root)
    of_the_store = tuple(f"{root}/{folder}/" for folder in ("commitlog", "consumequeue", "index"))
    return {
        "objects": role_long_objects(),
        "tasks": len(asyncio.all_tasks()),
        "threads": sorted(
            thread.name for thread in threading.enumerate() if not thread.name.startswith(POOLS_OF_THE_PROCESS)
        ),
        "descriptors": sum(not name.startswith(of_the_store) for name in open_files()),
        "listeners": broker.events.listeners(),
        "handlers": sorted(broker.bursts.handlers),
    }


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_hundred_times_under_load(tmp_path: Path, flush: str) -> None:
    async def scenario() -> None:
        settings = {"transaction_timeout_ms": 300, "transaction_check_interval_ms": 300}
        of_others = role_long_objects()
        async with running(tmp_path, MODES[-2], store={"flush": flush}, **settings) as broker:
            await broker.end_role()
            await asyncio.sleep(0)  # those who accept connections have begun, each with a descriptor in reserve
            before = left_behind(broker)
            assert before["objects"] == of_others
            await broker.begin_role()
            async with loaded(broker) as load:
                for _ in range(100):
                    count, refused = load.count, load.refused
                    await eventually_async(lambda count=count: load.count >= count + 8, pause=0.001, text="progress")  # type: ignore[misc]
                    await broker.end_role()
                    await eventually_async(lambda refused=refused: load.refused > refused, pause=0.001, text="refusal")  # type: ignore[misc]
                    await broker.begin_role()
            assert all(len(bodies) > 50 for bodies in load.stored.values()), {k: len(v) for k, v in load.stored.items()}
            assert load.left_open
            assert load.rolled_back
            await eventually_async(lambda: not broker.server.connections, text="clients have hung up")
            await broker.end_role()
            assert left_behind(broker) == before

    run(scenario())


def test_an_end_of_the_role_that_nobody_waits_for_any_more_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            drains, stopped = asyncio.Event(), asyncio.Event()
            delivery = broker.role.delivery
            stop = delivery.stop

            async def drain(_drain_s: float) -> None:
                drains.set()
                await asyncio.Event().wait()

            async def stop_delivery() -> None:
                await stop()
                stopped.set()

            monkeypatch.setattr(broker.role, "_drain", drain)
            monkeypatch.setattr(delivery, "stop", stop_delivery)
            ending = asyncio.create_task(broker.role.end(1))
            await drains.wait()
            ending.cancel()
            with suppress(asyncio.CancelledError):
                await ending
            assert stopped.is_set()
            assert broker.upkeep._role_keepers is None, "nothing is deleted without the role's word"

    run(test())
