"""Builds the parts that serve pulls, and subscribes them to changes of groups, topics and subscriptions."""

from __future__ import annotations

from kappamq.broker.events import ConnectionLost, Resubscribed
from kappamq.broker.foundation import Foundation
from kappamq.broker.pulling.filtering import Filtering
from kappamq.broker.pulling.kernel_rows import Subscriptions
from kappamq.broker.pulling.pull import Pulls
from kappamq.broker.pulling.read_ahead import ReadAhead
from kappamq.broker.upkeep.damage import EntryRepair
from kappamq.state.events import GroupChanged, ResetChanged, TopicChanged, TopicDeleted


class Pulling:
    def __init__(self, base: Foundation, repairs: EntryRepair) -> None:
        self._resets, self._clients = base.tables.pending_resets, base.clients
        self.subscriptions = Subscriptions(base.kernel, self._may_allow)
        self.filtering = Filtering(base.config, base.reader.beside.run)
        ahead = ReadAhead(base.store, base.kernel, base.clock, base.workers.read)
        self.pulls = Pulls(base, self.subscriptions, self.filtering, ahead, repairs)
        events = base.events
        events.on(TopicChanged, self.subscriptions.topic_changed)
        events.on(TopicDeleted, self.subscriptions.topic_deleted)
        events.on(TopicDeleted, self.pulls.last.topic_deleted)
        events.on(GroupChanged, self.subscriptions.group_changed)
        events.on(GroupChanged, self.pulls.last.group_changed)
        events.on(ResetChanged, self.subscriptions.reset_changed)
        events.on(Resubscribed, self.pulls.resubscribed)
        events.on(ConnectionLost, self.pulls.connection_lost)

    def _may_allow(self, group: str, topic: str) -> bool:
        """Whether the kernel may answer pulls alone: not those that have to hear of an offset reset first."""
        return not self._resets.is_pending(group, topic) or self._clients.is_broadcasting(group)
