"""Detects that the wall clock was set, follows it, and marks it in the log; notifies parts that use message time.

While the broker runs the machine's uptime is the second witness, and over a restart on the same start of the machine as well: the
difference between the two clocks is kept beside the steps. After the machine itself has started again, only the store's last record
is left: it may show that the clock was set back, and that is all it is believed about.
"""

from __future__ import annotations

import datetime
import logging
import os
from typing import Any

from kappamq.broker.events import ClockStepped, Tick
from kappamq.broker.sending.appending import Appender
from kappamq.broker.sending.gate import NOT_MASTER, Gate
from kappamq.broker.timers.progress import TimerProgress
from kappamq.clock import SETTLE_MS, TOLERANCE_MS, Jump, WatchedClock
from kappamq.errors import KappaError
from kappamq.events import Events
from kappamq.store.log.clock_steps import CLOCK_FILE, ClockStep, ClockSteps
from kappamq.store.message_store import MessageStore

log = logging.getLogger(__name__)

KIND = "clock"
_REMEMBER_MS = TOLERANCE_MS // 2
_PERIOD_S = 10.0
# jumps that are logged one by one in such a period: a clock that is set all the time does not fill the log
_REPORTED_MAX = 4
REMEDY = "check the time synchronisation of this machine (chronyc tracking, timedatectl)"


class ClockTable:
    """Where the clock was set: a fold over the log. Beside it, in the same file, how this machine's clock stood to its uptime:
    that is no change, but what was seen here last, and no other node's business."""

    file = CLOCK_FILE
    kinds = (KIND,)

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.jumps = 0  # since the store is there
        self.boot = ""  # the start of the machine that `offset_ms` is true for
        self.offset_ms = 0  # wall clock minus uptime
        self.ahead_ms = 0  # how far it was set forward so recently that nothing is deleted by it yet
        self.dirty = False

    def to_snapshot(self) -> dict[str, Any]:
        # To read times by this table, no step is needed that lies before the whole log.
        steps = self._store.clock_steps.from_on(self._store.log.min).rows()
        return {
            "steps": steps,
            "jumps": self.jumps,
            "boot": self.boot,
            "offset": self.offset_ms,
            "ahead": self.ahead_ms,
        }

    def from_snapshot(self, table: dict[str, Any]) -> None:
        # A mark that a power cut took is of no use: what is stored in its place lies behind the step and not before it.
        self._store.clock_steps = ClockSteps.of(table.get("steps") or ()).up_to(self._store.log.end)
        self.jumps = int(table.get("jumps") or 0)
        self.boot, self.offset_ms = str(table.get("boot") or ""), int(table.get("offset") or 0)
        self.ahead_ms = int(table.get("ahead") or 0)

    def apply(self, kind: str, change: Any) -> None:
        if "step" in change:
            before = self._store.clock_steps
            self._store.clock_steps = before.plus(ClockStep(*(int(number) for number in change["step"])))
            self.jumps += self._store.clock_steps is not before
        if "boot" in change:
            self.boot, self.offset_ms = str(change["boot"]), int(change["offset"])
            self.ahead_ms = int(change.get("ahead") or 0)

    def remember(self, boot: str, offset_ms: int, ahead_ms: int) -> None:
        """What was seen of this machine's clock; the file will do, the log need not grow for it."""
        self.boot, self.offset_ms, self.ahead_ms = boot, offset_ms, ahead_ms
        self.dirty = True

    def reset(self) -> None:
        self._store.clock_steps = ClockSteps()
        self.jumps = self.offset_ms = self.ahead_ms = 0
        self.boot = ""


class ClockWatch:
    def __init__(
        self,
        clock: WatchedClock,
        store: MessageStore,
        table: ClockTable,
        progress: TimerProgress,
        appender: Appender,
        boot_id: str,
        events: Events,
        gate: Gate,
    ) -> None:
        self._events = events
        self._gate = gate
        self._unmarked_ms = 0  # how far the clock was set while this node was not to write into the log
        self._clock = clock
        self._store = store
        self._table = table
        self._progress = progress
        self._appender = appender
        self._boot = boot_of(boot_id)
        self._stalled = False
        self._period_began = -_PERIOD_S
        self._reported = 0  # of this period
        self._unreported = 0
        self.jumps = 0  # since the start
        self.last: Jump | None = None

    # -- at the start ------------------------------------------------------------------------------------------------------

    def begin(self, ours: bool) -> None:
        """Compare the clock with what the store knows. `ours`: the last one to write there was one of us."""
        now_ms, last_ms = self._clock.message_ms(), self._store.last_ms
        witnessed = ours and self._table.boot == self._boot
        step_ms = self._clock.offset_ms - self._table.offset_ms if witnessed else 0
        if witnessed:  # a start in between does not make a new time any older
            self._clock.unwitnessed(self._table.ahead_ms + min(0, step_ms))
        if abs(step_ms) > TOLERANCE_MS:
            self._say("while no broker ran", Jump(now_ms - step_ms, now_ms))
            self._clock.unwitnessed(step_ms)
            self._step(step_ms, now_ms)
        elif last_ms - now_ms > TOLERANCE_MS:
            log.warning(
                "the newest record was stored at %s, but the clock shows %s: the clock was ahead then, or it is behind now. "
                "Message time follows it: delays continue from now, timers wait for their time by this clock. If it is behind, %s",
                *(when(last_ms), when(now_ms), REMEDY),
            )
            # Only of a log that we have written is it known that one clock stamped it since the last step.
            self._step(now_ms - last_ms if ours and not witnessed else 0, now_ms)
        elif last_ms and not witnessed:
            self._clock.unwitnessed(now_ms - last_ms)
            if now_ms - last_ms > SETTLE_MS:
                log.info(
                    "the newest record was stored at %s: log files that have expired since are deleted when the clock, which shows %s, "
                    "has been kept for %d s",
                    *(when(last_ms), when(now_ms), SETTLE_MS // 1000),
                )
        self._remember()

    def _remember(self) -> None:
        """How the wall clock stands to the uptime: the next start of a broker on this start of the machine can compare."""
        table, ahead_ms = self._table, self._ahead_ms
        drifted = abs(table.offset_ms - self._clock.offset_ms) > _REMEMBER_MS
        if table.boot != self._boot or drifted or table.ahead_ms != ahead_ms:
            table.remember(self._boot, self._clock.offset_ms, ahead_ms)

    @property
    def _ahead_ms(self) -> int:
        return self._clock.message_ms() - self._clock.settled_ms()

    # -- while it runs -----------------------------------------------------------------------------------------------------

    def ticked(self, event: Tick) -> None:
        self.look()

    def look(self) -> None:
        """Called several times a second: follow the wall clock if it was set."""
        jump = self._clock.adopt()
        if self._clock.is_stalled != self._stalled:
            self._stalled = self._clock.is_stalled
            if self._stalled:
                log.warning("the wall clock stands still: message time goes on by the machine's uptime; %s", REMEDY)
            else:
                log.warning("the wall clock moves again")
        if jump is not None:
            self.jumps += 1
            self.last = jump
            self._say("while the broker ran", jump)
            self._step(jump.step_ms, jump.to_ms)
        self._say_what_is_unreported()
        self._remember()

    def runtime(self) -> dict[str, str]:
        """For the broker's runtime information."""
        now_ms = self._clock.message_ms()
        state = "stands still" if self._stalled else "ok"
        if self._clock.settled_ms() < now_ms:
            state = "was set forward or not watched of late: log files are deleted by it when it was kept for a while"
        return {
            "kappamqClock": state,
            "kappamqClockJumps": f"{self.jumps} since the start, {self._table.jumps} in this store",
            "kappamqClockLastJump": "none" if self.last is None else f"{self.last.from_ms} -> {self.last.to_ms}",
        }

    def _say(self, when_noticed: str, jump: Jump) -> None:
        now = self._clock.liveness()
        if now - self._period_began >= _PERIOD_S:
            self._say_what_is_unreported()
            self._period_began, self._reported = now, 0
        if self._reported >= _REPORTED_MAX:
            self._unreported += 1
            return
        self._reported += 1
        log.warning(
            "the wall clock was set %s by %s, from %s to %s, %s: message time follows it. %s; %s",
            *("forward" if jump.step_ms > 0 else "back", duration(jump.step_ms), when(jump.from_ms), when(jump.to_ms)),
            *(when_noticed, _forward(jump) if jump.step_ms > 0 else _BACK, REMEDY),
        )

    def _say_what_is_unreported(self) -> None:
        """When a period is over: the last line of the operator's log about the clock must not be a wrong one."""
        now = self._clock.liveness()
        if not self._unreported or now - self._period_began < _PERIOD_S:
            return
        log.warning(
            "the wall clock was set %d more times in the last %d s, and message time followed it: it shows %s now; %s",
            *(self._unreported, now - self._period_began, when(self._clock.message_ms()), REMEDY),
        )
        self._period_began, self._reported, self._unreported = now, _REPORTED_MAX, 0

    def catch_up(self) -> None:
        """This node may write again: what was stored before counts by the clock of then, be it ours or that of another node."""
        step_ms, self._unmarked_ms = self._unmarked_ms, 0
        last_ms, now_ms = self._store.last_ms, self._clock.message_ms()
        if last_ms - now_ms > TOLERANCE_MS:
            log.warning(
                "the newest record was stored at %s, by a broker whose clock is ahead of this one's, which shows %s: this one is followed "
                "from here on; %s",
                *(when(last_ms), when(now_ms), REMEDY),
            )
            step_ms = now_ms - last_ms
        if step_ms:
            self._step(step_ms, now_ms)

    def _step(self, step_ms: int, to_ms: int) -> None:
        if self._gate.has(NOT_MASTER):
            self._unmarked_ms += step_ms
            return
        step = ClockStep(self._store.append_offset, step_ms, to_ms)
        change = self._progress.stepped(step)
        # One group: what was delivered by the clock before, and from where on another one counts.
        self._mark(
            {"step": list(step), "boot": self._boot, "offset": self._clock.offset_ms, "ahead": self._ahead_ms}, change
        )
        self._events.publish(ClockStepped(step))

    def _mark(self, change: dict[str, Any], also: tuple[str, Any] | None = None) -> None:
        changes = [(KIND, change), *([also] if also is not None else [])]
        try:
            self._appender.append_group([], changes, own=True)
        except KappaError as error:
            for kind, content in changes:
                self._appender.change(kind, content)
            log.warning("could not record the clock change in the log (%s): it is only in %s", error, CLOCK_FILE)


_BACK = "Delays and timers go on by the corrected clock"


def _forward(jump: Jump) -> str:
    return (
        f"Timers set for a time up to {when(jump.to_ms)} are due; delays wait as long as they were to; old log files are not deleted by "
        f"the new time before it was kept for {SETTLE_MS // 1000} s"
    )


def boot_of(boot_id: str) -> str:
    """Which uptime it is: that of another start of the machine, or of another time namespace, tells nothing."""
    try:
        return f"{boot_id} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return boot_id


def when(ms: int) -> str:
    try:
        return datetime.datetime.fromtimestamp(ms / 1000).isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def duration(ms: int) -> str:
    """As people say it, whatever the sign."""
    seconds = abs(ms) / 1000
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size or (seconds >= size and not seconds % size):
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds:.4g} s"
