"""Where the last pulls began: per queue, and forgotten with the topic or the group."""

from __future__ import annotations

from kappamq.broker.pulling.last_pulls import LastPulls
from kappamq.config.broker import BrokerConfig
from kappamq.events import Events
from kappamq.state.events import GroupChanged, TopicDeleted
from kappamq.state.groups import Groups
from tests.state.committing import committing


def test_pulls_are_forgotten_with_their_topic_and_their_group() -> None:
    events = Events()
    groups = committing(lambda commit: Groups(BrokerConfig(name="b"), lambda: 1, commit, events))
    pulls = LastPulls(groups)
    events.on(GroupChanged, pulls.group_changed)
    events.on(TopicDeleted, pulls.topic_deleted)
    for group in "gh":
        groups.existing(group)
        for topic in "tu":
            pulls.note(group, topic, 1, 7)
            pulls.note(group, topic, 1, 9)
    assert (pulls.get("g", "t", 1), pulls.get("g", "t", 0), pulls.get("x", "t", 1)) == (9, -1, -1)
    groups.forbid("g", "u", readable=False)
    assert pulls.get("g", "u", 1) == 9, "a group that was only changed is there still"
    events.publish(TopicDeleted("t"))
    assert [pulls.get(group, topic, 1) for group in "gh" for topic in "tu"] == [-1, 9, -1, 9]
    groups.delete("g")
    assert [pulls.get(group, "u", 1) for group in "gh"] == [-1, 9]
