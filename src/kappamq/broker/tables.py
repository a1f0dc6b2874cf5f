"""The tables that a broker always has: each is a fold over the log, and hears what it needs of the others as events."""

from __future__ import annotations

from typing import Any

from kappamq.broker.admin.settings import Settings
from kappamq.broker.clients.registry import Clients
from kappamq.broker.events import LogShortened
from kappamq.broker.upkeep.clock_watch import ClockTable
from kappamq.broker.upkeep.queue_ends import QueueEnds
from kappamq.config.apache import BrokerSettings
from kappamq.events import Events
from kappamq.native.interface import Kernel
from kappamq.state.events import GroupChanged, ResetChanged, SettingsChanged, TopicDeleted, TopicForgotten
from kappamq.state.groups import Groups
from kappamq.state.locks import QueueLocks
from kappamq.state.member_places import MemberPlaces
from kappamq.state.metadata import Metadata, Table
from kappamq.state.offsets import Offsets
from kappamq.state.resets import PendingResets
from kappamq.state.topics import Topics
from kappamq.store.message_store import MessageStore


class Tables:
    def __init__(
        self,
        config: BrokerSettings,
        store: MessageStore,
        kernel: Kernel,
        metadata: Metadata,
        clients: Clients,
        events: Events,
    ) -> None:
        self._store = store
        self._events = events
        broker, commit, now_ms = config.broker, metadata.commit, metadata.now_ms
        self.topics = Topics(broker, kernel, now_ms, commit, events)
        self.groups = Groups(broker, now_ms, commit, events)
        self.offsets = Offsets(
            now_ms,
            commit,
            events,
            end=lambda topic, queue_id: store.queue_state(topic, queue_id).end,
            first=self.topics.first_offset,
        )
        self.pending_resets = PendingResets(commit, lambda: store.marks.confirmed.offset, events, clients.member_count)
        self.locks = QueueLocks(broker.name, broker.queue_lock_ms / 1000, commit)
        self.settings = Settings(config, now_ms, events)
        self.clock = ClockTable(store)
        self.queue_ends = QueueEnds(store, commit)
        self.member_places = MemberPlaces(commit)
        own: tuple[Table, ...] = (
            self.topics,
            self.groups,
            self.offsets,
            self.pending_resets,
            self.locks,
            self.settings,
            self.clock,
            self.queue_ends,
            self.member_places,
        )
        for table in own:
            metadata.add(table)
        events.on(SettingsChanged, self.topics.settings_changed)
        events.on(LogShortened, self.log_shortened)
        events.on(TopicDeleted, self.offsets.topic_deleted)
        events.on(TopicDeleted, self.pending_resets.topic_deleted)
        events.on(TopicForgotten, self.queue_ends.topic_forgotten)

    def followed(self, kind: str, change: Any) -> None:
        """This node replicates from another one and has applied its change: notify the listeners of the table."""
        if kind in Topics.kinds:
            self.topics.followed(kind, change)
        elif kind in ("group", "group-deleted"):
            self._events.publish(GroupChanged(str(change["groupName"])))
        elif kind == "group-forbidden":
            self._events.publish(GroupChanged(str(change["group"])))
        elif kind == "reset":
            self._events.publish(ResetChanged(str(change[0]), str(change[1])))
        elif kind == "queue-ends":
            self.queue_ends.followed(change)

    def log_shortened(self, event: LogShortened) -> None:
        self.topics.forget_deleted(event.log_min)

    def fit_filling(self) -> None:
        """As `fit`, for a copy whose log is still behind its tables: they are right, and queues get there."""
        self.queue_ends.restore()

    def filled(self) -> None:
        """The log of such a copy has caught up with its tables."""
        self.topics.hide_followed()

    def fit_member(self) -> None:
        """As `fit`, for a member of a Raft group: its tables know only what is confirmed, of which nothing is lost. Queues may end before
        it, since what this member does not know to be confirmed is not in them yet."""
        self._hide_deleted(ours=False)
        self.queue_ends.restore()

    def fit(self) -> None:
        """Queues were built from the log, tables from what was said of it: bring the two together."""
        self._hide_deleted()
        self.topics.add_ends(self.queue_ends.restore())
        self.offsets.clamp()

    def _hide_deleted(self, *, ours: bool = True) -> None:
        for name in self.topics.hide_deleted(ours=ours):
            self._store.forget_topic(name)
