"""Moving a group to another place in its queues, and making sure that every consumer hears of it.

A reset is in the table of offsets at once. But a consumer that runs knows better where it is: it would pull on from there,
and commit that. So commits of a queue that was reset count only if they come from a client that has heard of the reset. A
client hears of it in one of two ways: its pull is told to go elsewhere (code 21, with the new offset), and its next pull
shows that the answer has arrived; or it asks for the offset, as every new owner of a queue does, and pulls from there.

A queue is *open* until somebody has heard and nobody else is awaited: those who were members when it was reset, for a
minute, and whoever shows later, by a commit, that it has not heard. While a queue is open the kernel answers no pull of this
group and topic by itself. After that the reset is remembered all the same: a member that was cut off for an hour and comes
back with a commit from before must not undo it.

Members of a broadcasting group keep their own offsets: a reset does not move them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kappamq.errors import NotMaster
from kappamq.events import Events
from kappamq.state.events import ResetChanged, TopicDeleted
from kappamq.state.metadata import Commit

AWAITED_S = 60.0
"""A consumer that has a queue pulls or commits it several times in this time."""
HEARD_MAX = 64
"""Clients that are remembered for each queue, or as many as its group has members. A client that is forgotten is told again, and
begins where the group is then."""
UNSETTLED_MAX = 1000
"""Clients of each open queue that were told, have asked or are awaited, or as many as its group has members."""
REMEMBERED_MAX = 10_000
"""Queues that are not open and remembered all the same; the oldest are forgotten first."""

_EVERYTHING = 1 << 62

Queue = tuple[str, str, int]  # group, topic, queue id


@dataclass(slots=True)
class Reset:
    """What is known of one queue since it was reset. Whom we wait for and who was told are no part of the fold: a restart begins
    to wait again."""

    offset: int
    safe: int = 0  # log offset that has to be confirmed before anybody is told
    heard: dict[str, None] = field(default_factory=dict)  # clients, in the order in which they heard of it
    told: dict[str, None] = field(default_factory=dict)  # they were answered with it, and have not come again yet
    asked: dict[str, int] = field(default_factory=dict)  # client -> the offset that it was given when it asked
    awaited: dict[str, float] = field(default_factory=dict)  # client -> liveness time up to which we wait for it


class PendingResets:
    """Which queue of which group is to go where, and who knows. A fold over the log: a restart does not lose a reset."""

    file = "kappamq.resets.json"
    kinds = ("reset", "reset-heard", "reset-done", "reset-forgotten")

    def __init__(
        self,
        commit: Commit,
        confirmed: Callable[[], int] = lambda: _EVERYTHING,
        events: Events | None = None,
        member_count: Callable[[str], int] = lambda group: 0,
    ) -> None:
        """`confirmed`: up to where nobody can take back the log. Nobody is told of a reset that may still be taken back."""
        self._commit = commit
        self._confirmed = confirmed
        self._events = events if events is not None else Events()
        self._member_count = member_count  # of a group, now
        self._resets: dict[Queue, Reset] = {}
        self._open: dict[tuple[str, str], set[int]] = {}  # (group, topic) -> queue ids
        self._remembered: dict[Queue, None] = {}  # those that are not open, oldest first
        self.dirty = False

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where this queue is to go, if nobody is known to have gone there."""
        reset = self._resets.get((group, topic, queue_id))
        return reset.offset if reset is not None and not reset.heard else None

    def is_pending(self, group: str, topic: str) -> bool:
        return (group, topic) in self._open

    # -- what clients do ---------------------------------------------------------------------------------------------------

    def must_move(
        self, client: str, queue: Queue, offset: int, stored: int, now: float, *, parked: bool = False
    ) -> bool:
        """Whether a pull from `offset` is to be told that its group is at `stored`. Each client is told once.

        `parked`: the pull has been waiting since before the reset, so it shows nothing."""
        reset = self._resets.get(queue)
        if reset is not None and reset.safe > self._confirmed():
            return False  # its next pull
        if reset is None or client in reset.heard:
            if reset is not None:
                self._close(queue, reset, now)
                self._forget_oldest()
            return False
        if not parked and (offset in (stored, reset.asked.get(client)) or client in reset.told):
            # It is there, or it has been told and has its own mind.
            change = [*queue, client]
            if len(reset.heard) >= HEARD_MAX and len(reset.heard) >= self._member_count(queue[0]):
                change.append(next(iter(reset.heard)))  # forgotten for it
            try:
                self._commit("reset-heard", change, anyway=True)  # with the disk full: told twice after a crash
            except NotMaster:
                return False  # noted when a pull finds the master here
            self._close(queue, reset, now)
            self._forget_oldest()
            return False
        reset.told[client] = None
        self._limit(reset.told, queue, UNSETTLED_MAX)
        self._await(queue, reset, client, now)
        return True

    def asked(self, client: str, queue: Queue, offset: int, now: float, *, member: bool) -> None:
        """A client was given the offset of a queue. If it is going to consume, it will pull from there."""
        reset = self._resets.get(queue)
        if reset is not None and client not in reset.heard and (member or self._is_open(queue)):
            reset.asked[client] = offset
            self._limit(reset.asked, queue, UNSETTLED_MAX)
            if member:
                self._await(queue, reset, client, now)

    def may_commit(self, client: str, queue: Queue, now: float, *, member: bool, tool: bool) -> bool:
        """Whether a commit counts. One that does not shows who has not heard yet: its next pull will be told.

        `tool`: it waits for an answer and does not say that it may be late. Without a heartbeat that is an operator's
        decision, which may follow a reset; but not while the reset itself is not settled, as RocketMQ has it."""
        reset = self._resets.get(queue)
        if reset is None or client in reset.heard:
            return True
        if member:
            self._await(queue, reset, client, now)
        return tool and not member and not self._is_open(queue)

    # -- changing ----------------------------------------------------------------------------------------------------------

    def add(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        self._commit("reset", [group, topic, {str(queue): offset for queue, offset in offsets.items()}])
        self.changed(group, topic)

    def changed(self, group: str, topic: str) -> None:
        """A reset was applied."""
        self._events.publish(ResetChanged(group, topic))

    def expect(
        self, group: str, topic: str, queue_ids: Iterable[int], clients: Iterable[str], now: float, safe: int = 0
    ) -> None:
        """These clients may have the queues, which were just reset; that is safe when the log is so up to `safe`."""
        awaited = dict.fromkeys(clients, now + AWAITED_S)
        for queue_id in queue_ids:
            reset = self._resets[group, topic, queue_id]
            reset.awaited, reset.safe = dict(awaited), safe

    def forget(self, group: str | None = None, topic: str | None = None) -> None:
        """The group or the topic is gone."""
        if self._of(group, topic):
            self._commit("reset-forgotten", [group, topic], anyway=True)

    def topic_deleted(self, event: TopicDeleted) -> None:
        self.forget(topic=event.name)

    def _is_open(self, queue: Queue) -> bool:
        return queue not in self._remembered

    def _await(self, queue: Queue, reset: Reset, client: str, now: float) -> None:
        """This one has not heard of it: its next pull must come to us, and not be answered by the kernel."""
        reset.awaited[client] = now + AWAITED_S
        self._limit(reset.awaited, queue, UNSETTLED_MAX)
        if not self._is_open(queue):
            del self._remembered[queue]
            self._open.setdefault(queue[:2], set()).add(queue[2])
            self._events.publish(ResetChanged(*queue[:2]))

    def _limit(self, clients: dict[str, Any], queue: Queue, limit: int) -> None:
        """One client was added: forget the oldest if there are too many. Members are never too many: if each of them pushed
        another one out, they would be told again and again."""
        if len(clients) > limit and len(clients) > self._member_count(queue[0]):
            del clients[next(iter(clients))]

    def _hear(self, reset: Reset, client: str) -> None:
        reset.heard[client] = None
        reset.told.pop(client, None)
        reset.asked.pop(client, None)
        reset.awaited.pop(client, None)

    def _close(self, queue: Queue, reset: Reset, now: float) -> None:
        """If somebody has heard and nobody is awaited any more, the kernel may take over again."""
        if not self._is_open(queue) or not reset.heard:
            return
        for client in [client for client, until in reset.awaited.items() if until < now]:
            del reset.awaited[client]
        if not reset.awaited:
            self._remember(queue, reset)

    def _forget_oldest(self) -> None:
        with suppress(NotMaster):
            while len(self._remembered) > REMEMBERED_MAX:
                self._commit("reset-done", list(next(iter(self._remembered))), anyway=True)

    def _remember(self, queue: Queue, reset: Reset) -> None:
        reset.told.clear()
        reset.asked.clear()
        self._no_longer_open(queue)
        self._remembered[queue] = None

    def _no_longer_open(self, queue: Queue) -> None:
        queue_ids = self._open.get(queue[:2])
        if queue_ids is not None:
            queue_ids.discard(queue[2])
            if not queue_ids:
                del self._open[queue[:2]]

    def _add(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        for queue_id, offset in offsets.items():
            queue = (group, topic, queue_id)
            self._remembered.pop(queue, None)
            self._resets[queue] = Reset(offset)
            self._open.setdefault((group, topic), set()).add(queue_id)

    def _drop(self, queue: Queue) -> None:
        self._resets.pop(queue, None)
        self._remembered.pop(queue, None)
        self._no_longer_open(queue)

    def _of(self, group: str | None, topic: str | None) -> list[Queue]:
        return [queue for queue in self._resets if group in (None, queue[0]) and topic in (None, queue[1])]

    # -- fold --------------------------------------------------------------------------------------------------------------

    def to_snapshot(self) -> dict[str, Any]:
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for (group, topic, queue_id), reset in self._resets.items():
            row = rows.setdefault((group, topic), {"group": group, "topic": topic, "offsets": {}, "heard": {}})
            row["offsets"][str(queue_id)] = reset.offset
            if reset.heard:
                row["heard"][str(queue_id)] = list(reset.heard)
        return {"pending": list(rows.values())}

    def from_snapshot(self, table: dict[str, Any]) -> None:
        for row in table.get("pending") or []:
            self.apply("reset", [row["group"], row["topic"], row["offsets"]])
            for queue_id, clients in (row.get("heard") or {}).items():
                for client in clients:
                    self.apply("reset-heard", [row["group"], row["topic"], queue_id, client])

    def apply(self, kind: str, change: Any) -> None:
        if kind == "reset":
            group, topic, offsets = change
            self._add(str(group), str(topic), {int(queue): int(offset) for queue, offset in offsets.items()})
        elif kind == "reset-forgotten":
            for queue in self._of(change[0], change[1]):
                self._drop(queue)
        else:
            queue = (str(change[0]), str(change[1]), int(change[2]))
            reset = self._resets.get(queue)
            if kind == "reset-done":  # too many are remembered
                self._drop(queue)
            elif reset is not None:
                self._hear(reset, str(change[3]))
                if len(change) > 4:
                    reset.heard.pop(str(change[4]), None)
                if self._is_open(queue) and not reset.awaited:
                    self._remember(queue, reset)

    def reset(self) -> None:
        self._resets.clear()
        self._open.clear()
        self._remembered.clear()
