"""Resets of consumer offsets: moves a group to other offsets and makes sure that every running consumer follows.

A reset changes the table of offsets at once. But a running consumer has its own offset: it would continue there and commit that.
So commits for a reset queue count only if they come from a client that was notified of the reset. There are two ways: a pull is
answered with the new offset (code 21), and the client's next pull shows that the answer arrived; or the client queries the
offset, as every new owner of a queue does, and pulls from there.

A queue is *open* until one client is notified and no other is awaited. Awaited are, for a minute, the members at the time of the
reset, and later each client whose commit shows that it was not notified. While a queue is open, the kernel answers no pull of this
group and topic by itself. After that the reset is still remembered: a member that was disconnected for an hour must not undo it
with an old commit.

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
NOTIFIED_MAX = 64
"""Notified clients that are remembered for each queue, or as many as its group has members. A forgotten client is notified again, and
continues at the group's present offset."""
UNSETTLED_MAX = 1000
"""Clients of each open queue in each state before `notified`, or as many as its group has members."""
REMEMBERED_MAX = 10_000
"""Queues that are no longer open but remembered; the oldest are forgotten first."""

_EVERYTHING = 1 << 62

Queue = tuple[str, str, int]  # group, topic, queue id


@dataclass(slots=True)
class Reset:
    """The reset of one queue. Only `offset` and `notified` are part of the fold: after a restart the waiting begins again."""

    offset: int
    safe: int = 0  # log offset that must be confirmed before clients are notified
    notified: dict[str, None] = field(default_factory=dict)  # clients, in the order of their notification
    answered: dict[str, None] = field(default_factory=dict)  # clients that got the new offset and have not pulled since
    queried: dict[str, int] = field(default_factory=dict)  # client -> the offset that its query returned
    awaited: dict[str, float] = field(default_factory=dict)  # client -> liveness time up to which we wait for it


class PendingResets:
    """Resets by group and queue, with the clients that know of them. A fold over the log: a restart does not lose a reset."""

    file = "kappamq.resets.json"
    kinds = ("reset", "reset-heard", "reset-done", "reset-forgotten")

    def __init__(
        self,
        commit: Commit,
        confirmed: Callable[[], int] = lambda: _EVERYTHING,
        events: Events | None = None,
        member_count: Callable[[str], int] = lambda group: 0,
    ) -> None:
        """`confirmed`: returns the confirmed offset. Clients are not notified of a reset that could still be lost."""
        self._commit = commit
        self._confirmed = confirmed
        self._events = events if events is not None else Events()
        self._member_count = member_count  # returns the present number of members of a group
        self._resets: dict[Queue, Reset] = {}
        self._open: dict[tuple[str, str], set[int]] = {}  # (group, topic) -> queue ids
        self._remembered: dict[Queue, None] = {}  # the queues that are not open, oldest first
        self.dirty = False

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The new offset of this queue while no client is known to use it."""
        reset = self._resets.get((group, topic, queue_id))
        return reset.offset if reset is not None and not reset.notified else None

    def is_pending(self, group: str, topic: str) -> bool:
        return (group, topic) in self._open

    # -- what clients do ---------------------------------------------------------------------------------------------------

    def must_move(
        self, client: str, queue: Queue, offset: int, stored: int, now: float, *, parked: bool = False
    ) -> bool:
        """Whether to answer a pull from `offset` with `stored`, the offset of its group. Each client gets that answer once.

        `parked`: the pull has been waiting since before the reset, so it proves nothing."""
        reset = self._resets.get(queue)
        if reset is not None and reset.safe > self._confirmed():
            return False  # a later pull gets the answer
        if reset is None or client in reset.notified:
            if reset is not None:
                self._close(queue, reset, now)
                self._forget_oldest()
            return False
        if not parked and (offset in (stored, reset.queried.get(client)) or client in reset.answered):
            # It uses the new offset, or it got the answer and chose another offset.
            change = [*queue, client]
            if len(reset.notified) >= NOTIFIED_MAX and len(reset.notified) >= self._member_count(queue[0]):
                change.append(next(iter(reset.notified)))  # replaced by this client
            try:
                self._commit("reset-heard", change, anyway=True)  # with a full disk: notified twice after a crash
            except NotMaster:
                return False  # recorded by a later pull, once this node is the master
            self._close(queue, reset, now)
            self._forget_oldest()
            return False
        reset.answered[client] = None
        self._limit(reset.answered, queue, UNSETTLED_MAX)
        self._await(queue, reset, client, now)
        return True

    def offset_queried(self, client: str, queue: Queue, offset: int, now: float, *, member: bool) -> None:
        """A client queried the offset of a queue. If it consumes, it will pull from there."""
        reset = self._resets.get(queue)
        if reset is not None and client not in reset.notified and (member or self._is_open(queue)):
            reset.queried[client] = offset
            self._limit(reset.queried, queue, UNSETTLED_MAX)
            if member:
                self._await(queue, reset, client, now)

    def may_commit(self, client: str, queue: Queue, now: float, *, member: bool, tool: bool) -> bool:
        """Whether a commit counts. A client whose commit does not count is notified by its next pull.

        `tool`: the request waits for an answer and is not marked as possibly late. From a client that is not a member, that is
        an operator's decision: it counts once the reset is settled, as in RocketMQ."""
        reset = self._resets.get(queue)
        if reset is None or client in reset.notified:
            return True
        if member:
            self._await(queue, reset, client, now)
        return tool and not member and not self._is_open(queue)

    # -- changing ----------------------------------------------------------------------------------------------------------

    def add(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        self._commit("reset", [group, topic, {str(queue): offset for queue, offset in offsets.items()}])
        self.changed(group, topic)

    def changed(self, group: str, topic: str) -> None:
        """A reset was applied: publish it."""
        self._events.publish(ResetChanged(group, topic))

    def expect(
        self, group: str, topic: str, queue_ids: Iterable[int], clients: Iterable[str], now: float, safe: int = 0
    ) -> None:
        """Wait for these clients, which may own the queues that were just reset. The reset is confirmed at log offset `safe`."""
        awaited = dict.fromkeys(clients, now + AWAITED_S)
        for queue_id in queue_ids:
            reset = self._resets[group, topic, queue_id]
            reset.awaited, reset.safe = dict(awaited), safe

    def forget(self, group: str | None = None, topic: str | None = None) -> None:
        """The group or the topic was deleted."""
        if self._of(group, topic):
            self._commit("reset-forgotten", [group, topic], anyway=True)

    def topic_deleted(self, event: TopicDeleted) -> None:
        self.forget(topic=event.name)

    def _is_open(self, queue: Queue) -> bool:
        return queue not in self._remembered

    def _await(self, queue: Queue, reset: Reset, client: str, now: float) -> None:
        """Wait for a client that was not notified: the kernel must not answer its next pull."""
        reset.awaited[client] = now + AWAITED_S
        self._limit(reset.awaited, queue, UNSETTLED_MAX)
        if not self._is_open(queue):
            del self._remembered[queue]
            self._open.setdefault(queue[:2], set()).add(queue[2])
            self._events.publish(ResetChanged(*queue[:2]))

    def _limit(self, clients: dict[str, Any], queue: Queue, limit: int) -> None:
        """Forget the oldest client if there are too many, but never fewer than the group's members: they would displace each
        other and be notified again and again."""
        if len(clients) > limit and len(clients) > self._member_count(queue[0]):
            del clients[next(iter(clients))]

    def _notify(self, reset: Reset, client: str) -> None:
        reset.notified[client] = None
        reset.answered.pop(client, None)
        reset.queried.pop(client, None)
        reset.awaited.pop(client, None)

    def _close(self, queue: Queue, reset: Reset, now: float) -> None:
        """If a client is notified and none is awaited, the kernel may answer pulls again."""
        if not self._is_open(queue) or not reset.notified:
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
        reset.answered.clear()
        reset.queried.clear()
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
            if reset.notified:
                row["heard"][str(queue_id)] = list(reset.notified)
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
            if kind == "reset-done":  # more than REMEMBERED_MAX
                self._drop(queue)
            elif reset is not None:
                self._notify(reset, str(change[3]))
                if len(change) > 4:
                    reset.notified.pop(str(change[4]), None)
                if self._is_open(queue) and not reset.awaited:
                    self._remember(queue, reset)

    def reset(self) -> None:
        self._resets.clear()
        self._open.clear()
        self._remembered.clear()
