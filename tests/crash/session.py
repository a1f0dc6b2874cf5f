"""A store through many crashes: its books, what was read from it so far, and the questions asked after each restart."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.servers import Broker
from benchmarks.wire import Refused, Wire
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.client import QueryMessage
from kappamq.protocol.records.record import iter_records
from tests.crash import checker
from tests.crash.books import Attempt, Books, Queue
from tests.crash.checker import Found, Seen, Violation
from tests.crash.traffic import GROUP, TOPIC, message_id

PULL_COUNT = 64
OVERLAP = 50
"""Read again at each restart: messages before the last restart's end must not have changed."""
KEYS_ASKED = 5
INDEX_S_MAX = 20.0
OFFSETS_KEPT_S = 3.0
"""Committed offsets go to the log once a second; on a busy machine we only insist on those of three seconds ago."""


@dataclass(slots=True)
class Session:
    queues: int
    books: Books = field(default_factory=Books)
    seen: Seen = field(default_factory=Seen)
    ends: dict[Queue, int] = field(default_factory=dict)
    floors: dict[Queue, int] = field(default_factory=dict)
    lost: int = 0  # in power cuts that may lose something
    lost_age_s: float = 0.0  # the oldest of them, before the cut

    def check(
        self,
        address: str,
        died: float,
        *,
        whole: bool = False,
        may_lose: bool = False,
        keys: random.Random | None = None,
    ) -> list[Violation]:
        """Everything that is wrong after a restart. `died`: when the broker was killed or its power cut."""
        with Wire(address, timeout=30) as wire:
            wrong: list[Violation] = []
            for queue_id in range(self.queues):
                wrong += self._read(wire, (TOPIC, queue_id), whole, may_lose)
            wrong += self._missing(died, may_lose)
            wrong += checker.order(self.seen, self.books.attempts)
            wrong += checker.torn(self.seen, self.books.attempts.values())
            for queue_id in range(self.queues):
                wrong += self._offset(wire, (TOPIC, queue_id), died, may_lose)
            if keys is not None:
                wrong += self._ask_for_keys(wire, keys)
        return wrong

    def _read(self, wire: Wire, queue: Queue, whole: bool, may_lose: bool) -> list[Violation]:
        end = self._end(wire, queue)
        before = self.ends.get(queue, 0)
        wrong: list[Violation] = []
        if end < before and not may_lose:
            wrong.append(Violation("shrunk", f"{queue} ended at {before} and ends at {end}"))
        if end < before and may_lose:
            self.seen.forget(queue, end)
        start = 0 if whole else max(0, min(before, end) - OVERLAP)
        found: list[Found] = []
        at = start
        while at < end:
            pulled = wire.pull(*queue, at, PULL_COUNT, group="checker")
            if not pulled.records:
                wrong.append(Violation("unreadable", f"{queue} {at}: code {pulled.code}, but the queue ends at {end}"))
                break
            if pulled.records[0].queue_offset != at:
                wrong.append(Violation("gap", f"{queue}: asked for {at}, got {pulled.records[0].queue_offset}"))
            found += [Found(message_id(record), record.queue_offset, record.log_offset) for record in pulled.records]
            at = pulled.next_offset
        wrong += checker.note(self.seen, self.books.attempts, queue, found)
        self.ends[queue] = end
        return wrong

    def _end(self, wire: Wire, queue: Queue) -> int:
        try:
            return wire.max_offset(*queue)
        except Refused as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return 0  # the first round may have died before its first message

    def _missing(self, died: float, may_lose: bool) -> list[Violation]:
        gone = checker.missing(self.seen, self.books.attempts.values())
        if not may_lose:
            return checker.lost(gone, died)
        wrong = checker.not_a_suffix(self.seen, gone)
        for attempt in gone:
            attempt.given_up = True
            self.lost_age_s = max(self.lost_age_s, died - attempt.ended)
        self.lost += len(gone)
        return wrong

    def _offset(self, wire: Wire, queue: Queue, died: float, may_lose: bool) -> list[Violation]:
        now = wire.committed(GROUP, *queue)
        known = self.floors.get(queue, 0)
        wrong = checker.regressed(
            queue,
            now,
            self.books.commits.get(queue, []),
            floor=0 if may_lose else known,
            kept_before=float("-inf") if may_lose else died - OFFSETS_KEPT_S,
            known=known,
            end=self.ends[queue],
        )
        self.floors[queue] = now or 0
        self.books.commits[queue] = []
        return wrong

    def _ask_for_keys(self, wire: Wire, dice: random.Random) -> list[Violation]:
        """The index may come later than readiness, but it comes."""
        known = [attempt for attempt in self.books.acked() if not attempt.given_up]
        wrong: list[Violation] = []
        for attempt in dice.sample(known, min(KEYS_ASKED, len(known))):
            deadline = time.monotonic() + INDEX_S_MAX
            while not self._found_by_key(wire, attempt):
                if time.monotonic() > deadline:
                    wrong.append(Violation("index", f"{attempt.id} is in its queue, but its key finds nothing"))
                    break
                time.sleep(0.05)
        return wrong

    def _found_by_key(self, wire: Wire, attempt: Attempt) -> bool:
        answer = wire.ask(QueryMessage(topic=TOPIC, key=attempt.id, count_max=32, begin_ms=0, end_ms=1 << 60))
        return answer.code == 0 and attempt.id in [message_id(record) for record in iter_records(answer.body)]


def rebuild(server: Broker) -> None:
    """Delete everything that is derived from the log, and start."""
    for name in ("consumequeue", "index"):
        shutil.rmtree(server.data / name)
    server.start()


def keep(folder: Path, where: Path) -> Path:
    """Save a broken store for whoever looks into it: as much as can be read, holes as holes."""
    shutil.rmtree(where, ignore_errors=True)
    subprocess.run(["cp", "-a", "--sparse=always", str(folder), str(where)], capture_output=True, check=False)
    return where
