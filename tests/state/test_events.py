"""What the tables publish: each change once, with what it is about, and nothing when a change was refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from kappamq.config.broker import BrokerConfig
from kappamq.events import Events
from kappamq.protocol.bodies.clients import SubscriptionGroupConfig
from kappamq.state.events import CommitsRecorded, GroupChanged, ResetChanged
from kappamq.state.groups import Groups
from kappamq.state.offsets import Offsets
from kappamq.state.resets import PendingResets
from tests.broker.recorded import Log
from tests.state.committing import committing


def test_each_change_is_published_once_and_in_order() -> None:
    events, log = Events(), Log()
    heard: list[object] = []
    for kind in (GroupChanged, ResetChanged, CommitsRecorded):
        events.on(kind, heard.append)
    groups = committing(lambda commit: Groups(BrokerConfig(name="b"), lambda: 1, commit, events), log.record)
    offsets = committing(lambda commit: Offsets(lambda: 1, commit, events), log.record)
    resets = committing(lambda commit: PendingResets(commit, events=events), log.record)
    groups.update(SubscriptionGroupConfig(name="g"))
    groups.forbid("g", "t", readable=False)
    offsets.commit("g", "t", 0, 5)
    offsets.record_commits()
    offsets.record_commits()
    resets.add("g", "t", {0: 3})
    groups.delete("g")
    assert heard == [
        GroupChanged("g"),
        GroupChanged("g"),
        CommitsRecorded({("t", "g"): {0: 5}}),
        ResetChanged("g", "t"),
        GroupChanged("g"),
    ]


def test_events_cannot_be_changed() -> None:
    event = GroupChanged("g")
    with pytest.raises(FrozenInstanceError):
        event.name = "other"  # type: ignore[misc]
