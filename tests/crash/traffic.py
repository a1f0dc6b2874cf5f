"""Clients that keep books: producers that wait for each answer, and a consumer that commits offsets. They end when the broker does."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from benchmarks.wire import Refused, Wire
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import SendMessageResponse
from kappamq.protocol.records import batch, ids, properties
from kappamq.protocol.records.record import Record
from tests.crash.books import Attempt, Books, Commit, Outcome, Queue

TOPIC = "crash"
GROUP = "crash-group"
KEY = "UNIQ_KEY"
BATCH_PART = 0.15
BATCH_MAX = 12
BODY_BYTES_MAX = 2_000
# The message may be stored all the same: it is in the page cache, and only the disk (or a slave) has not said so in time.
MAYBE_STORED = {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE,
                ResponseCode.SERVICE_NOT_AVAILABLE}  # fmt: skip
CONSUMER_PAUSE_S = 0.01


class Actor(Protocol):
    """Somebody else who uses the broker until it is gone."""

    def run(self, stop: threading.Event) -> None: ...


class Traffic:
    """Threads against one broker; `join` waits until all of them have noticed its end."""

    def __init__(
        self, address: str, books: Books, name: str, queues: int, producers: int, dice: random.Random, more: Sequence[Actor] = ()
    ) -> None:  # fmt: skip
        self._stop = threading.Event()
        self.problems: list[str] = []
        seeds = [dice.getrandbits(64) for _ in range(producers + 1)]
        self._threads = [
            threading.Thread(target=self._guard, args=(Producer(address, books, f"{name}.{n}", queues, seeds[n]).run,))
            for n in range(producers)
        ]
        consumer = Consumer(address, books, queues, seeds[-1])
        self._threads.append(threading.Thread(target=self._guard, args=(consumer.run,)))
        self._threads += [threading.Thread(target=self._guard, args=(actor.run,)) for actor in more]
        for thread in self._threads:
            thread.start()

    def _guard(self, run: Callable[[threading.Event], None]) -> None:
        try:
            run(self._stop)
        except OSError:
            pass  # the broker is gone: that is what we are here for
        except Exception as error:
            self.problems.append(f"{type(error).__name__}: {error}")

    def join(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a client did not notice that the broker has gone"


class Producer:
    def __init__(self, address: str, books: Books, name: str, queues: int, seed: int) -> None:
        self._address, self._books, self._name, self._queues = address, books, name, queues
        self._dice = random.Random(seed)

    def run(self, stop: threading.Event) -> None:
        with Wire(self._address) as wire:
            while not stop.is_set():
                size = self._dice.randint(2, BATCH_MAX) if self._dice.random() < BATCH_PART else 0
                self._send(wire, size)

    def _send(self, wire: Wire, batch_size: int) -> None:
        queue: Queue = (TOPIC, self._dice.randrange(self._queues))
        names = [self._books.new_id(self._name) for _ in range(max(1, batch_size))]
        group = names[0] if batch_size else ""
        attempts = [Attempt(name, queue, time.monotonic(), batch=group) for name in names]
        self._books.open(attempts)
        if batch_size:
            members = [
                batch.Member(self._body(name), properties=properties.encode({KEY: name, "KEYS": name}))
                for name in names
            ]
            answer = wire.send(*queue, batch.encode(members), {"WAIT": "true"}, queues=self._queues, batch=True)
        else:
            answer = wire.send(*queue, self._body(names[0]), {KEY: names[0], "KEYS": names[0]}, queues=self._queues)
        enter(attempts, answer, time.monotonic())

    def _body(self, name: str) -> bytes:
        return name.encode() + b"#" + self._dice.randbytes(self._dice.randrange(BODY_BYTES_MAX))


def enter(attempts: Sequence[Attempt], answer: Frame, now: float) -> None:
    """Write an answer into the books."""
    for number, attempt in enumerate(attempts):
        attempt.ended = now
        if answer.code == ResponseCode.SUCCESS:
            header = SendMessageResponse.decode(answer.ext)
            attempt.offset = header.queue_offset + number
            attempt.log_offset = ids.parse_offset_id(header.message_id.split(",")[number]).log_offset
            attempt.outcome = Outcome.ACKED
        elif answer.code not in MAYBE_STORED:
            attempt.outcome = Outcome.REFUSED


def message_id(record: Record) -> str:
    """The id a producer gave it; the body must carry the same one, else two messages were mixed up."""
    name = record.property_map().get(KEY, "")
    inside = record.body.partition(b"#")[0].decode(errors="replace")
    return name if name == inside else f"property {name!r} with body {inside!r}"


class Consumer:
    """Reads every queue from where its group has come to, and commits what it has read."""

    def __init__(self, address: str, books: Books, queues: int, seed: int) -> None:
        self._address, self._books, self._queues = address, books, queues
        self._dice = random.Random(seed)

    def run(self, stop: threading.Event) -> None:
        with Wire(self._address) as wire:
            at = {queue_id: wire.committed(GROUP, TOPIC, queue_id) or 0 for queue_id in range(self._queues)}
            while not stop.wait(CONSUMER_PAUSE_S):
                queue_id = self._dice.randrange(self._queues)
                try:
                    pulled = wire.pull(TOPIC, queue_id, at[queue_id], group=GROUP)
                except Refused:
                    continue  # the topic is not there yet
                if pulled.records:
                    at[queue_id] = pulled.records[-1].queue_offset + 1
                    commit = Commit(time.monotonic(), at[queue_id], acked=False)
                    self._books.commit((TOPIC, queue_id), commit)
                    wire.commit(GROUP, TOPIC, queue_id, at[queue_id])
                    commit.at, commit.acked = time.monotonic(), True
