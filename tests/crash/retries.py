"""Messages that a consumer sends back, while their broker is killed: each comes again once, none is forgotten."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.wire import Refused, Wire
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.client import SendBack
from kappamq.protocol.names import retry_topic
from tests.crash.books import Outcome
from tests.crash.checker import Violation
from tests.crash.traffic import MAYBE_STORED, TOPIC, message_id

GROUP = "retry-group"
RETRY_TOPIC = retry_topic(GROUP)
ONE_SECOND = 1  # the first delay level
PAUSE_S = 0.02
LATE_S_MAX = 30.0


def judge(copies: Iterable[tuple[str, int]], outcomes: Mapping[str, Outcome]) -> list[Violation]:
    """`copies`: all that was found in the retry topic, (id, how often it was sent back)."""
    wrong: list[Violation] = []
    seen: set[str] = set()
    for name, times in copies:
        outcome = outcomes.get(name)
        if outcome is None:
            wrong.append(Violation("invented", f"nobody has sent {name!r} back"))
        elif outcome is Outcome.REFUSED:
            wrong.append(Violation("ghost", f"{name} was not to come again, and it did"))
        if name in seen:
            wrong.append(Violation("retried twice", f"{name} was sent back once"))
        if times != 1:
            wrong.append(Violation("miscounted", f"{name} was sent back once, and says {times}"))
        seen.add(name)
    return wrong


@dataclass(slots=True)
class Retries:
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    copies: list[tuple[str, int]] = field(default_factory=list)
    read_to: int = 0
    position: int = 0  # of the consumer, in queue 0

    @property
    def count(self) -> int:
        return sum(outcome is Outcome.ACKED for outcome in self.outcomes.values())

    def actors(self, address: str, dice: random.Random) -> Sequence[Retrier]:
        return [Retrier(self, address)]

    def check(self, wire: Wire, *, last: bool = False) -> list[Violation]:
        """`last`: wait until everything has come that will."""
        until = time.monotonic() + (LATE_S_MAX if last else 0)
        while True:
            self._read(wire)
            missing = self._missing()
            if not missing or time.monotonic() > until:
                break
            time.sleep(0.1)
        wrong = judge(self.copies, self.outcomes)
        if last:
            wrong += [Violation("retry lost", f"{name} was to come again and did not") for name in missing]
        return wrong

    def read_anew(self) -> None:
        """What was read before is read again: it must not have changed."""
        self.copies, self.read_to = [], 0

    def _missing(self) -> list[str]:
        there = {name for name, _times in self.copies}
        return [name for name, outcome in self.outcomes.items() if outcome is Outcome.ACKED and name not in there]

    def _read(self, wire: Wire) -> None:
        end = wire.max_offset(RETRY_TOPIC, 0)
        while self.read_to < end:
            pulled = wire.pull(RETRY_TOPIC, 0, self.read_to, 64, group="retry-checker")
            if not pulled.records:
                raise Refused(
                    f"{RETRY_TOPIC} at {self.read_to} of {end}",
                    wire.ask(SendBack(log_offset=-1, group=GROUP, delay_level=0)),
                )
            self.copies += [(message_id(record), record.reconsume_times) for record in pulled.records]
            self.read_to = pulled.next_offset


class Retrier:
    """Sends back some of what it reads; each message once, so that its copies can be counted."""

    def __init__(self, retries: Retries, address: str) -> None:
        self._retries, self._address = retries, address

    def run(self, stop: threading.Event) -> None:
        retries = self._retries
        with Wire(self._address) as wire:
            while not stop.wait(PAUSE_S):
                try:
                    pulled = wire.pull(TOPIC, 0, retries.position, 4, group=GROUP)
                except Refused as error:
                    if error.code != ResponseCode.TOPIC_NOT_EXIST:
                        raise
                    continue
                retries.position = pulled.next_offset
                for record in pulled.records[:2]:
                    name = message_id(record)
                    retries.outcomes[name] = Outcome.UNKNOWN
                    back = SendBack(
                        log_offset=record.log_offset, group=GROUP, delay_level=ONE_SECOND, origin_message_id=record.offset_id,
                        origin_topic=TOPIC, unit_mode=False, max_reconsume_times=16,
                    )  # fmt: skip
                    answer = wire.ask(back)
                    if answer.code == ResponseCode.SUCCESS:
                        retries.outcomes[name] = Outcome.ACKED
                    elif answer.code not in MAYBE_STORED:
                        retries.outcomes[name] = Outcome.REFUSED
