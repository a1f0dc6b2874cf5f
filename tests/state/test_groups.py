"""Consumer groups: made on first use where allowed, bounded, and the same again after their changes are repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.config.broker import BrokerConfig
from kappamq.errors import GroupNotFound, InvalidParameter, NotAvailable
from kappamq.protocol import fastjson, names
from kappamq.protocol.bodies.clients import SubscriptionGroupConfig
from kappamq.state.events import GroupChanged
from kappamq.state.groups import Groups
from tests.broker.recorded import Log
from tests.state.committing import committing


def make(log: Log | None = None, **changes: Any) -> Groups:
    return committing(
        lambda commit: Groups(BrokerConfig(name="b", **changes), lambda: 1_700_000_000_000, commit),
        (log or Log()).record,
    )


def state(groups: Groups) -> tuple[Any, Any]:
    return groups.table, groups.forbidden


def test_the_groups_every_broker_has() -> None:
    groups = make()
    assert set(groups.table) == set(names.BUILT_IN_GROUPS)
    assert groups.existing(names.TOOLS_GROUP).consume_enable


def test_a_group_is_made_when_it_first_appears() -> None:
    log = Log()
    groups = make(log)
    changed: list[str] = []
    groups._events.on(GroupChanged, lambda event: changed.append(event.name))
    made = groups.get("g")
    assert made == SubscriptionGroupConfig(name="g")
    assert groups.get("g") is made
    assert [kind for kind, _ in log.records] == ["group"]
    assert changed == ["g"]
    assert groups.dirty


def test_no_group_is_made_where_that_is_not_allowed() -> None:
    log = Log()
    groups = make(log, auto_create_group=False)
    assert groups.get("g") is None
    with pytest.raises(GroupNotFound, match=r"\[g\] does not exist.*autoCreateSubscriptionGroup"):
        groups.existing("g")
    assert log.records == []
    groups.update(SubscriptionGroupConfig(name="g", retry_times_max=3))
    assert groups.existing("g").retry_times_max == 3


@pytest.mark.parametrize("name", ["", " ", "a b", "a@b", "x" * 121])
def test_a_name_that_cannot_be_makes_no_group(name: str) -> None:
    groups = make()
    before = dict(groups.table)
    assert groups.get(name) is None
    with pytest.raises(InvalidParameter):
        groups.update(SubscriptionGroupConfig(name=name))
    assert groups.table == before


def test_groups_are_bounded() -> None:
    built_in = len(names.BUILT_IN_GROUPS)
    groups = make(groups_max=built_in + 1)
    assert groups.get("one") is not None
    assert groups.get("two") is None
    with pytest.raises(InvalidParameter, match="groups_max"):
        groups.update(SubscriptionGroupConfig(name="two"))
    groups.update(SubscriptionGroupConfig(name="one", retry_queues=2))  # one that is there may change
    assert groups.delete("one")
    assert groups.get("two") is not None


def test_a_group_goes_once() -> None:
    log = Log()
    groups = make(log)
    groups.get("g")
    changed: list[str] = []
    groups._events.on(GroupChanged, lambda event: changed.append(event.name))
    assert groups.delete("g")
    assert not groups.delete("g")
    assert changed == ["g"]
    assert [kind for kind, _ in log.records] == ["group", "group-deleted"]


def test_forbidden_topics() -> None:
    groups = make()
    assert not groups.is_forbidden("g", "t")
    assert groups.forbid("g", "t", readable=False) is False
    assert groups.is_forbidden("g", "t")
    assert not groups.is_forbidden("g", "other")
    assert not groups.is_forbidden("other", "t")
    assert groups.forbid("g", "t", readable=True) is True
    assert groups.forbidden == {}, "nothing is kept of it"


def test_a_group_made_again_is_not_forbidden_what_the_old_one_was() -> None:
    log = Log()
    groups = make(log)
    groups.get("g")
    groups.forbid("g", "t", readable=False)
    groups.delete("g")
    groups.get("g")
    assert not groups.is_forbidden("g", "t")
    repeated = make()
    for kind, change in log.records:
        repeated.apply(kind, change)
    assert not repeated.is_forbidden("g", "t")


def test_a_log_that_takes_nothing_stops_operators_but_not_consumers() -> None:
    log = Log()
    groups = make(log)
    groups.get("old")
    groups.dirty = False
    log.refuses = True
    assert groups.get("new") is not None
    assert groups.dirty, "a snapshot may still have it"
    before = (dict(groups.table), dict(groups.forbidden), groups.version)
    for change in (
        lambda: groups.update(SubscriptionGroupConfig(name="old", consume_enable=False)),
        lambda: groups.delete("old"),
        lambda: groups.forbid("old", "t", readable=False),
    ):
        with pytest.raises(NotAvailable):
            change()
    assert (groups.table, groups.forbidden, groups.version) == before, "what is not recorded has not happened"


def test_every_change_has_its_version() -> None:
    groups = make()
    changes: list[Callable[[], object]] = [
        lambda: groups.get("g"),
        lambda: groups.update(SubscriptionGroupConfig(name="g", retry_queues=4)),
        lambda: groups.forbid("g", "t", readable=False),
        lambda: groups.delete("g"),
    ]
    counters = [groups.version.counter]
    for change in changes:
        change()
        counters.append(groups.version.counter)
    assert counters == sorted(set(counters)), counters


def test_a_snapshot_is_a_copy() -> None:
    """It is written on a worker while the table goes on."""
    groups = make()
    groups.update(SubscriptionGroupConfig(name="g", attributes={"a": "1"}))
    groups.forbid("g", "t", readable=False)
    snapshot = groups.to_snapshot()
    text = fastjson.dumps(snapshot)
    groups.table["g"].attributes["a"] = "2"
    groups.table["g"].retry_policy["type"] = "EXPONENTIAL"
    groups.forbid("g", "t2", readable=False)
    groups.get("other")
    assert fastjson.dumps(snapshot) == text


NAMES = st.sampled_from(["g1", "g2", names.TOOLS_GROUP])
STEPS = st.lists(
    st.one_of(
        st.builds(lambda name, times: ("update", name, times), NAMES, st.integers(0, 3)),
        st.builds(lambda name: ("delete", name), NAMES),
        st.builds(
            lambda name, topic, yes: ("forbid", name, topic, yes), NAMES, st.sampled_from(["t1", "t2"]), st.booleans()
        ),
    ),
    max_size=25,
)


@given(STEPS, st.data())
def test_a_snapshot_and_the_records_behind_it_give_the_same_groups(steps: list[tuple[Any, ...]], data: Any) -> None:
    log = Log()
    live = make(log)
    snapshots = [(0, fastjson.dumps(live.to_snapshot()))]
    for step in steps:
        if step[0] == "update":
            live.update(replace(SubscriptionGroupConfig(name=step[1]), retry_times_max=step[2]))
        elif step[0] == "delete":
            live.delete(step[1])
        else:
            live.forbid(*step[1:])
        snapshots.append((len(log.records), fastjson.dumps(live.to_snapshot())))
    at, text = data.draw(st.sampled_from(snapshots))
    first = data.draw(st.integers(0, at))  # records that are in the snapshot already may come again
    repeated = make()
    for name in names.BUILT_IN_GROUPS:
        del repeated.table[name]  # these come back with every start; here we look at the fold alone
    repeated.from_snapshot(fastjson.loads(text))
    for kind, change in log.records[first:]:
        repeated.apply(kind, change)
    assert state(repeated) == state(live)
