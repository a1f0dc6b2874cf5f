"""Rows of the kernel: it knows exactly the pairs that are allowed, by the number under which Python knows them."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kappamq.broker.pulling import kernel_rows as module
from kappamq.broker.pulling.kernel_rows import Row, Subscriptions

Key = tuple[str, str, bool]


class Rows:
    """The kernel's table."""

    def __init__(self) -> None:
        self.rows: dict[Key, tuple[int, int, frozenset[int] | None]] = {}

    def set_row(
        self, row: int, group: str, topic: str, explicit: bool, version: int, codes: frozenset[int] | None
    ) -> None:
        self.rows[group, topic, explicit] = (row, version, codes)

    def drop_row(self, group: str, topic: str, explicit: bool) -> None:
        del self.rows[group, topic, explicit]  # a row that is not there must not be dropped


def test_a_row_says_who_wants_what() -> None:
    kernel = Rows()
    rows = Subscriptions(kernel)
    rows.allow("g", "t", False, 7, frozenset({1, 2}))
    number, version, codes = kernel.rows["g", "t", False]
    assert (version, codes) == (7, frozenset({1, 2}))
    assert rows.row(number) == Row("g", "t", frozenset({1, 2}))


def test_a_newer_subscription_has_a_new_number() -> None:
    """A pull that the kernel judged by the old row must not be answered by the filter of the new one."""
    kernel = Rows()
    rows = Subscriptions(kernel)
    rows.allow("g", "t", False, 1, frozenset({1}))
    old = kernel.rows["g", "t", False][0]
    rows.allow("g", "t", False, 2, None)
    assert kernel.rows["g", "t", False][0] != old
    with pytest.raises(KeyError):
        rows.row(old)


def test_what_may_not_be_allowed_loses_its_row() -> None:
    kernel = Rows()
    forbidden: set[str] = set()
    rows = Subscriptions(kernel, lambda group, topic: topic not in forbidden)
    rows.allow("g", "t", True, 0, None)
    forbidden.add("t")
    rows.allow("g", "t", True, 0, None)
    assert kernel.rows == {}, "the row from before must not stay either"
    rows.allow("g", "other", True, 0, None)
    assert set(kernel.rows) == {("g", "other", True)}


def test_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS_MAX", 3)
    kernel = Rows()
    rows = Subscriptions(kernel)
    for number in range(10):
        rows.allow(f"g{number}", "t", False, 0, None)
    assert len(kernel.rows) == 3
    rows.allow("g0", "t", False, 1, None)
    assert kernel.rows["g0", "t", False][1] == 1, "one that is there may change"
    rows.drop_pair("g0", "t")
    rows.allow("g9", "t", False, 0, None)
    assert ("g9", "t", False) in kernel.rows


class SubscriptionsMachine(RuleBasedStateMachine):
    groups = st.sampled_from(["g1", "g2", "g3"])
    topics = st.sampled_from(["t1", "t2", "t3"])

    def __init__(self) -> None:
        super().__init__()
        self.kernel = Rows()
        self.rows = Subscriptions(self.kernel)
        self.allowed: dict[Key, tuple[int, frozenset[int] | None]] = {}

    @rule(
        group=groups,
        topic=topics,
        explicit=st.booleans(),
        version=st.integers(0, 3),
        codes=st.none() | st.frozensets(st.integers(0, 3)),
    )
    def allow(self, group: str, topic: str, explicit: bool, version: int, codes: frozenset[int] | None) -> None:
        self.rows.allow(group, topic, explicit, version, codes)
        self.allowed[group, topic, explicit] = (version, codes)

    @rule(group=groups, topic=topics, explicit=st.booleans())
    def drop(self, group: str, topic: str, explicit: bool) -> None:
        self.rows.drop(group, topic, explicit)
        self.allowed.pop((group, topic, explicit), None)

    @rule(group=groups, topic=topics)
    def drop_pair(self, group: str, topic: str) -> None:
        self.rows.drop_pair(group, topic)
        self.allowed = {key: value for key, value in self.allowed.items() if key[:2] != (group, topic)}

    @rule(group=groups)
    def drop_group(self, group: str) -> None:
        self.rows.drop_group(group)
        self.allowed = {key: value for key, value in self.allowed.items() if key[0] != group}

    @rule(topic=topics)
    def drop_topic(self, topic: str) -> None:
        self.rows.drop_topic(topic)
        self.allowed = {key: value for key, value in self.allowed.items() if key[1] != topic}

    @invariant()
    def the_kernel_knows_what_is_allowed(self) -> None:
        assert {key: (version, codes) for key, (_, version, codes) in self.kernel.rows.items()} == self.allowed
        numbers = [number for number, _, _ in self.kernel.rows.values()]
        assert len(set(numbers)) == len(numbers)
        for (group, topic, _explicit), (number, _version, codes) in self.kernel.rows.items():
            assert self.rows.row(number) == Row(group, topic, codes)
        assert len(self.rows._rows) == len(numbers), "rows nobody knows are not kept"


TestSubscriptions = SubscriptionsMachine.TestCase
TestSubscriptions.settings = settings(max_examples=50, stateful_step_count=30)
