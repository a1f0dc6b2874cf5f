"""Order through everything: members come, go, die in the middle of a message, and are cut off for minutes.

Each seed is a history of its own. What must hold in all of them:
- of each queue, one message is being worked on at a time, among all members that live;
- a message is handed out only after all before it are done;
- what is stored as the group's offset is done, and never goes back;
- when the trouble is over, everything gets done.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.client.consumer.inbox import Inbox
from kappamq.client.group.assignment import Assignment
from kappamq.client.group.queue_locks import QueueLocks
from kappamq.client.pulling.process_queue import ProcessQueue
from kappamq.message import RETRY, MessageQueue, ReceivedMessage, Redeliver
from tests.client.simulation import Process, World, simulate

# 1071: a lock was kept up for a queue that had become another's. 1456: an old offset was stored with a new lock.
SEEDS = [*range(5), 1071, 1456]
TROUBLE_S = 400.0
QUEUES = 3
HEAL_S = 300.0


class OutOfOrder(AssertionError):
    pass


class Books:
    """What was handed out and done, and whether that was right."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent = [0] * QUEUES
        self.done = [0] * QUEUES  # all below are done
        self.running: dict[int, tuple[Process, int]] = {}
        self.stored: dict[tuple[str, str, int], int] = {}
        self.deliveries = 0

    def send(self) -> None:
        queue = self.world.dice.randrange(QUEUES)
        self.world.cluster.broker.put("tea", queue, b"%d" % self.sent[queue])
        self.sent[queue] += 1

    def begin(self, process: Process, message: ReceivedMessage) -> None:
        queue, offset = message.queue.queue_id, message.queue_offset
        at = f"{self.world.now:.1f} s: {process.name} gets {queue}/{offset}"
        other = self.running.get(queue)
        if other is not None and other[0].alive:
            raise OutOfOrder(f"{at} while {other[0].name} works on {other[1]}")
        if offset > self.done[queue]:
            raise OutOfOrder(f"{at}, but {self.done[queue]} is not done")
        self.running[queue] = (process, offset)
        self.deliveries += 1

    def end(self, message: ReceivedMessage, ok: bool) -> None:
        queue = message.queue.queue_id
        del self.running[queue]
        if ok:
            self.done[queue] = max(self.done[queue], message.queue_offset + 1)

    def check_stored(self) -> None:
        for key, offset in self.world.cluster.broker.offsets.items():
            if key[1] != "tea":
                continue
            if offset < self.stored.get(key, 0):
                raise OutOfOrder(f"the offset of {key} went back from {self.stored[key]} to {offset}")
            if offset > self.done[key[2]]:
                raise OutOfOrder(f"offset {offset} of {key} is stored, but only {self.done[key[2]]} is done")
            self.stored[key] = offset

    @property
    def all_done(self) -> bool:
        return self.done == self.sent


class Members:
    """Consumers in processes; the dice decide what becomes of them."""

    def __init__(self, world: World, books: Books, seconds_max: float) -> None:
        self.world, self.books, self._seconds_max = world, books, seconds_max
        self._numbers = itertools.count(1)
        self.alive: dict[Process, AsyncConsumer] = {}
        self.errors: list[BaseException] = []
        self._ending: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        process = Process(f"p{next(self._numbers)}")
        consumer = AsyncConsumer(
            self.world.cluster.address,
            group="g",
            topics="tea",
            ordered=True,
            consume_from="first",
            listener=self._listener(process),
            instance=process.name,
        )
        await process.run(consumer.start)
        self.alive[process] = consumer

    def _listener(self, process: Process) -> Callable[[ReceivedMessage], object]:
        dice = self.world.dice

        async def listen(message: ReceivedMessage) -> Redeliver | None:
            try:
                self.books.begin(process, message)
            except OutOfOrder as error:
                self.errors.append(error)
                raise
            ok = False
            try:
                await asyncio.sleep(dice.choice([0.01, 0.1, 1.0, dice.uniform(0, self._seconds_max)]))  # virtual
                ok = dice.random() > 0.1
            finally:
                if process.alive:
                    self.books.end(message, ok)
            if ok:
                return None
            if dice.random() < 0.5:
                raise RuntimeError("spilled")
            return RETRY

        return listen

    def any(self) -> Process | None:
        return self.world.dice.choice([*self.alive]) if self.alive else None

    def kill(self) -> None:
        process = self.any()
        if process is not None:
            process.kill(silently=self.world.dice.random() < 0.3)
            del self.alive[process]

    def cut_off(self) -> None:
        process = self.any()
        if process is not None and not process.cut_off:
            process.cut_off = True
            seconds = self.world.dice.choice([5, 20, 40, 70, 150])
            asyncio.get_running_loop().call_later(seconds, setattr, process, "cut_off", False)

    def close(self) -> None:
        process = self.any()
        if process is not None and not process.cut_off:
            consumer = self.alive.pop(process)
            task = asyncio.create_task(process.run(lambda: consumer.close(60.0)))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


def history(seconds_max: float) -> Callable[[World], object]:
    async def run(world: World) -> None:
        dice = world.dice
        world.cluster.create("tea", QUEUES)
        books = Books(world)
        members = Members(world, books, seconds_max)
        await members.start()
        trouble_ends = world.now + TROUBLE_S
        while world.now < trouble_ends:
            await asyncio.sleep(dice.uniform(0.1, 5.0))  # virtual
            books.send()
            books.check_stored()
            if members.errors:
                raise members.errors[0]
            happens = dice.random()
            if happens < 0.10 and len(members.alive) < 4:
                await members.start()
            elif happens < 0.14:
                members.kill()
            elif happens < 0.18:
                members.cut_off()
            elif happens < 0.22:
                members.close()
        while len(members.alive) < 2:
            await members.start()
        healed = world.now + HEAL_S + 150
        while not books.all_done:
            await asyncio.sleep(1.0)  # virtual
            books.check_stored()
            if members.errors:
                raise members.errors[0]
            assert world.now < healed, f"not all is done: {books.done} of {books.sent}; {books.running}"
        assert books.deliveries >= sum(books.sent) > 50

    return run


def play(seed: int, seconds_max: float = 20.0) -> None:
    simulate(World(seed), history(seconds_max))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", SEEDS)
def test_order_holds(seed: int) -> None:
    play(seed)


def first_to_notice(seeds: range) -> int | None:
    for seed in seeds:
        try:
            play(seed)
        except OutOfOrder:
            return seed
    return None


def forget_leases(patch: pytest.MonkeyPatch) -> None:
    def is_open(self: Inbox, queue: ProcessQueue) -> bool:
        return not queue.paused and not queue.suspended and queue.queue not in self._out

    patch.setattr(Inbox, "_is_open", is_open)


def unlock_at_once(patch: pytest.MonkeyPatch) -> None:
    async def wait_free(self: Inbox, queue: MessageQueue) -> None:
        pass

    patch.setattr(Inbox, "wait_free", wait_free)


def lock_nothing(patch: pytest.MonkeyPatch) -> None:
    async def acquire(self: QueueLocks, queue: MessageQueue) -> bool:
        self._until[queue] = 1e12
        return True

    patch.setattr(QueueLocks, "acquire", acquire)


def store_without_a_lock(patch: pytest.MonkeyPatch) -> None:
    def offsets(self: Assignment) -> dict[MessageQueue, int]:
        return {queue: held.queue.committable for queue, held in self._held.items()}

    patch.setattr(Assignment, "offsets", offsets)


def go_on_where_we_were(patch: pytest.MonkeyPatch) -> None:
    changed = Assignment._lock_changed

    def unbroken(self: Assignment, queue: MessageQueue, until: float, lapsed: bool) -> None:
        changed(self, queue, until, False)

    patch.setattr(Assignment, "_lock_changed", unbroken)


# From a seed on that has noticed it; a change of the client makes other histories, and then a few more are played.
@pytest.mark.parametrize(
    ("mistake", "seed"),
    [
        (forget_leases, 2),
        (unlock_at_once, 0),
        (lock_nothing, 0),
        (store_without_a_lock, 12),
        (go_on_where_we_were, 2),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_simulation_notices(
    mistake: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    assert first_to_notice(range(seed, seed + 40)) is not None, "forty histories, and nobody saw the mistake"
