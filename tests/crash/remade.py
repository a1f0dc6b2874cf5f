"""A topic that is deleted and made again while its broker is killed: no life of it sees messages or offsets of another."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.wire import Refused, Wire
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import DeleteTopic, GetTopicConfig, UpdateTopic
from tests.crash.books import Attempt, Outcome
from tests.crash.checker import Violation
from tests.crash.traffic import KEY, enter, message_id

TOPIC = "remade"
GROUP = "remade-group"
QUEUES = 2
MESSAGES_MAX = 40
PAUSE_S = 0.005


@dataclass(slots=True)
class Life:
    """From one making of the topic to its deletion."""

    number: int
    made: bool = False  # and we were told so
    deleting: bool = False  # somebody has asked for it
    deleted: bool = False  # and was told that it is done
    attempts: dict[str, Attempt] = field(default_factory=dict)


@dataclass(slots=True)
class Shown:
    """What a broker shows of one queue after a restart."""

    low: int
    end: int
    found: dict[int, str]  # offset -> id
    fresh: int | None  # what a group is told that nobody has heard of
    committed: int | None


def judge(
    exists: bool, life: Life, old_ids: Mapping[str, int], shown: Mapping[int, Shown], floors: Mapping[int, int]
) -> list[Violation]:
    """`old_ids`: messages of deleted lives and their life; `floors`: where the numbers of those lives end, by queue."""
    wrong: list[Violation] = []
    if exists and life.deleted:
        wrong.append(Violation("undeleted", f"life {life.number} of {TOPIC} was deleted, and it is there"))
    if not exists and life.made and not life.deleting:
        wrong.append(Violation("topic lost", f"life {life.number} of {TOPIC} was made, and it is not there"))
    for queue_id, queue in shown.items():
        for offset, name in queue.found.items():
            if name in old_ids:
                text = f"{name} at {queue_id} {offset} is of life {old_ids[name]}, not {life.number}"
                wrong.append(Violation("risen from the dead", text))
            elif name not in life.attempts:
                wrong.append(Violation("invented", f"{name!r} at {queue_id} {offset} of {TOPIC} was never sent"))
        if queue.low < floors.get(queue_id, 0):
            text = (
                f"queue {queue_id} of life {life.number} begins at {queue.low}, one before ended at {floors[queue_id]}"
            )
            wrong.append(Violation("numbered twice", text))
        if queue.fresh != queue.low:
            text = f"queue {queue_id} begins at {queue.low}, but a new group is told {queue.fresh}"
            wrong.append(Violation("first is not first", text))
        if queue.committed is not None and not queue.low <= queue.committed <= queue.end:
            text = f"queue {queue_id} is [{queue.low}, {queue.end}), but its group is at {queue.committed}"
            wrong.append(Violation("offset of another life", text))
    if exists and not life.deleted:  # somebody may have asked for its deletion: then nobody has heard that
        for attempt in life.attempts.values():
            found = shown[attempt.queue[1]].found
            if attempt.outcome is Outcome.ACKED and found.get(attempt.offset) != attempt.id:
                wrong.append(Violation("lost", f"{attempt.id} was acknowledged at {attempt.queue} {attempt.offset}"))
    return wrong


@dataclass(slots=True)
class Remade:
    life: Life = field(default_factory=lambda: Life(0, deleting=True, deleted=True))
    old_ids: dict[str, int] = field(default_factory=dict)
    floors: dict[int, int] = field(default_factory=dict)
    count: int = 0  # lives that have ended
    _groups: Iterator[int] = field(default_factory=itertools.count)

    def actors(self, address: str, dice: random.Random) -> Sequence[Remaker]:
        return [Remaker(self, address, dice.getrandbits(64))]

    def check(self, wire: Wire) -> list[Violation]:
        answer = wire.ask(GetTopicConfig(topic=TOPIC))
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST):
            raise Refused(f"settings of {TOPIC}", answer)
        exists = answer.code == ResponseCode.SUCCESS
        shown = {queue_id: self._show(wire, queue_id) for queue_id in range(QUEUES)} if exists else {}
        wrong = judge(exists, self.life, self.old_ids, shown, self.floors)
        if exists:
            self.life.made, self.life.deleting = True, False  # if somebody has asked for its deletion, it was not heard
        else:
            self.end_life()
        return wrong

    def _show(self, wire: Wire, queue_id: int) -> Shown:
        low, end = wire.min_offset(TOPIC, queue_id), wire.max_offset(TOPIC, queue_id)
        found: dict[int, str] = {}
        at = 0  # as a consumer "from first" asks: it must be led to where this life begins, at once
        while at < end:
            pulled = wire.pull(TOPIC, queue_id, at, 64, group="remade-checker")
            found.update((record.queue_offset, message_id(record)) for record in pulled.records)
            if not pulled.records:
                break
            at = pulled.next_offset
        fresh = wire.committed(f"new-{next(self._groups)}", TOPIC, queue_id)
        return Shown(low, end, found, fresh, wire.committed(GROUP, TOPIC, queue_id))

    def begin_life(self) -> Life:
        self.life = Life(self.life.number + 1)
        return self.life

    def end_life(self) -> None:
        life = self.life
        if not life.deleted:
            self.count += 1
        life.deleting = life.deleted = True
        for attempt in life.attempts.values():
            self.old_ids[attempt.id] = life.number
            if attempt.outcome is Outcome.ACKED:
                queue_id = attempt.queue[1]
                self.floors[queue_id] = max(self.floors.get(queue_id, 0), attempt.offset + 1)


class Remaker:
    def __init__(self, remade: Remade, address: str, seed: int) -> None:
        self._remade, self._address = remade, address
        self._dice = random.Random(seed)

    def run(self, stop: threading.Event) -> None:
        with Wire(self._address) as wire:
            while not stop.is_set():
                life = self._remade.life
                if life.deleted:
                    life = self._remade.begin_life()
                if not life.made:
                    self._make(wire, life)
                for _ in range(self._dice.randrange(MESSAGES_MAX)):
                    self._send(wire, life)
                    if stop.wait(PAUSE_S):
                        return
                self._consume(wire)
                life.deleting = True
                self._ask(wire, DeleteTopic(topic=TOPIC))
                self._remade.end_life()

    def _make(self, wire: Wire, life: Life) -> None:
        self._ask(
            wire,
            UpdateTopic(
                topic=TOPIC, default_topic="TBW102", read_queues=QUEUES, write_queues=QUEUES, permission=6, filter_type="SINGLE_TAG"
            ),
        )  # fmt: skip
        life.made = True

    def _ask(self, wire: Wire, header: UpdateTopic | DeleteTopic) -> None:
        answer = wire.ask(header)
        if answer.code:
            raise Refused(type(header).__name__, answer)

    def _send(self, wire: Wire, life: Life) -> None:
        name = f"{TOPIC}.{life.number}:{len(life.attempts)}:{self._dice.getrandbits(32)}"
        attempt = Attempt(name, (TOPIC, self._dice.randrange(QUEUES)), time.monotonic())
        life.attempts[name] = attempt
        answer = wire.send(*attempt.queue, name.encode() + b"#", {KEY: name}, queues=QUEUES)
        enter([attempt], answer, time.monotonic())

    def _consume(self, wire: Wire) -> None:
        """From where the group is said to be; sometimes with an offset of a life before."""
        for queue_id in range(QUEUES):
            at = wire.committed(GROUP, TOPIC, queue_id) or 0
            pulled = wire.pull(TOPIC, queue_id, self._dice.choice([0, at]), group=GROUP)
            if pulled.records:
                wire.commit(GROUP, TOPIC, queue_id, self._dice.choice([1, pulled.next_offset]))
