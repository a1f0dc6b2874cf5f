"""Parked pulls: each comes back exactly once, by growth, by the clock or with its owner, and the kernel watches for no one else."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kappamq.broker.pulling.long_poll import LongPoll
from tests.store.stores import Writer, config, kernels, opened

PARKED_MAX, OWNER_MAX, OWNER_QUEUE_MAX = 8, 4, 3
TOPICS, QUEUE_IDS, OWNERS = ["a", "b"], [0, 1], ["x", "y", "z"]


class Watching:
    """The part of the kernel that is told which queues are waited for."""

    def __init__(self) -> None:
        self.watched: set[tuple[str, int]] = set()

    def watch(self, topic: str, queue_id: int, on: bool) -> None:
        (self.watched.add if on else self.watched.discard)((topic, queue_id))


def test_growth_wakes_all_of_one_queue_in_the_order_they_came() -> None:
    polls: LongPoll[str] = LongPoll(Watching(), 10, 10)
    for number in range(3):
        assert polls.park("t", 0, 100.0 - number, f"pull {number}", "owner")
    polls.park("t", 1, 100.0, "other", "owner")
    assert polls.grown("t", 0) == ["pull 0", "pull 1", "pull 2"]
    assert polls.grown("t", 0) == []
    assert polls.count == 1
    assert polls.expired(100.0) == ["other"], "those who were woken do not expire as well"


def test_deadlines_are_met_in_their_order() -> None:
    polls: LongPoll[str] = LongPoll(Watching(), 10, 10)
    for until in (3.0, 1.0, 2.0):
        polls.park("t", 0, until, f"until {until}", "owner")
    assert polls.expired(0.999) == []
    assert polls.expired(2.0) == ["until 1.0", "until 2.0"]
    assert polls.expired(9.0) == ["until 3.0"]


def test_who_has_too_many_is_turned_away_and_others_are_not() -> None:
    polls: LongPoll[int] = LongPoll(Watching(), 3, 2)
    assert polls.park("t", 0, 1.0, 1, "greedy")
    assert polls.park("t", 1, 1.0, 2, "greedy")
    assert not polls.park("t", 2, 1.0, 3, "greedy")
    assert polls.park("t", 2, 1.0, 4, "modest")
    assert not polls.park("t", 2, 1.0, 5, "late"), "all places are taken"
    assert polls.drop("greedy") == 2
    assert polls.park("t", 2, 1.0, 6, "late")


def test_one_owner_parks_only_so_many_for_one_queue() -> None:
    polls: LongPoll[int] = LongPoll(Watching(), 10, 10, 2)
    assert [polls.park("t", 0, 1.0, number, "greedy") for number in range(3)] == [True, True, False]
    assert polls.park("t", 1, 1.0, 4, "greedy"), "another queue"
    assert polls.park("t", 0, 1.0, 5, "modest")
    assert polls.waits_for("t", 0, "greedy") == 2
    polls.grown("t", 0)
    assert polls.park("t", 0, 1.0, 6, "greedy"), "those that were answered do not count"


def test_a_woken_pull_may_wait_on() -> None:
    kernel = Watching()
    polls: LongPoll[str] = LongPoll(kernel, 1, 1)
    for _ in range(5):
        assert polls.park("t", 0, 10.0, "pull", "owner")
        kernel.watched.clear()  # the kernel forgets a queue when it reports it
        assert polls.grown("t", 0) == ["pull"]
    assert polls.expired(99.0) == []


def test_a_busy_queue_leaves_no_pile_of_deadlines() -> None:
    polls: LongPoll[int] = LongPoll(Watching(), 10, 10)
    polls.park("quiet", 0, 1000.0, -1, "owner")
    for number in range(5000):
        polls.park("t", 0, 1000.0, number, "owner")
        polls.grown("t", 0)
        if number % 100 == 0:
            assert polls.expired(1.0) == []
    assert len(polls._due) < 1200
    assert not polls._owners.keys() - {"owner"}
    assert polls.expired(1000.0) == [-1], "tidying up has lost nobody"


@pytest.mark.parametrize("kind", kernels())
def test_the_kernel_reports_a_watched_queue_once(tmp_path: Path, kind: str) -> None:
    grown: list[tuple[str, int]] = []
    with opened(config(tmp_path), kind, grown=grown.extend) as store:
        polls: LongPoll[str] = LongPoll(store.kernel, 10, 10)
        writer = Writer(store)

        def send() -> list[tuple[str, int]]:
            grown.clear()
            for queue_id in (0, 1):
                writer.send(b"x", "t", queue_id)
            writer.write()
            return list(grown)

        assert send() == [], "nobody waits"
        polls.park("t", 1, 5.0, "first", "owner")
        assert send() == [("t", 1)]
        assert polls.grown("t", 1) == ["first"]
        assert send() == [], "it does not wait any more"
        polls.park("t", 1, 5.0, "expires", "owner")
        polls.park("t", 0, 9.0, "leaves", "other")
        assert polls.expired(5.0) == ["expires"]
        assert polls.drop("other") == 1
        assert send() == []


@dataclass
class Pull:
    number: int
    queue: tuple[str, int]
    until: int
    owner: Hashable


class LongPollMachine(RuleBasedStateMachine):
    """Against a plain list of who waits."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = Watching()
        self.polls: LongPoll[int] = LongPoll(self.kernel, PARKED_MAX, OWNER_MAX, OWNER_QUEUE_MAX)
        self.now = 0
        self.parked = 0
        self.waiting: list[Pull] = []

    @rule(
        topic=st.sampled_from(TOPICS),
        queue_id=st.sampled_from(QUEUE_IDS),
        hold=st.integers(-1, 10),
        owner=st.sampled_from(OWNERS),
    )
    def park(self, topic: str, queue_id: int, hold: int, owner: str) -> None:
        of_owner = [pull.queue for pull in self.waiting if pull.owner == owner]
        in_queue = of_owner.count((topic, queue_id))
        assert self.polls.waits_for(topic, queue_id, owner) == in_queue
        room = len(self.waiting) < PARKED_MAX and len(of_owner) < OWNER_MAX and in_queue < OWNER_QUEUE_MAX
        self.parked += 1
        pull = Pull(self.parked, (topic, queue_id), self.now + hold, owner)
        assert self.polls.park(topic, queue_id, pull.until, pull.number, owner) == room
        if room:
            self.waiting.append(pull)

    @rule(topic=st.sampled_from(TOPICS), queue_id=st.sampled_from(QUEUE_IDS))
    def grow(self, topic: str, queue_id: int) -> None:
        queue = (topic, queue_id)
        if queue not in self.kernel.watched:
            assert not [pull for pull in self.waiting if pull.queue == queue], "its growth would not be reported"
        self.kernel.watched.discard(queue)
        woken = [pull for pull in self.waiting if pull.queue == queue]
        assert self.polls.grown(topic, queue_id) == [pull.number for pull in woken]
        self.waiting = [pull for pull in self.waiting if pull.queue != queue]

    @rule(seconds=st.integers(0, 6))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        late = sorted((pull for pull in self.waiting if pull.until <= self.now), key=lambda p: (p.until, p.number))
        assert self.polls.expired(self.now) == [pull.number for pull in late]
        self.waiting = [pull for pull in self.waiting if pull.until > self.now]

    @rule(owner=st.sampled_from(OWNERS))
    def leave(self, owner: str) -> None:
        assert self.polls.drop(owner) == sum(pull.owner == owner for pull in self.waiting)
        self.waiting = [pull for pull in self.waiting if pull.owner != owner]

    @rule(owner=st.sampled_from(OWNERS), topic=st.sampled_from(TOPICS))
    def take(self, owner: str, topic: str) -> None:
        taken = [pull for pull in self.waiting if pull.owner == owner and pull.queue[0] == topic]
        assert self.polls.take(owner, topic) == [pull.number for pull in taken]
        self.waiting = [pull for pull in self.waiting if pull not in taken]

    @invariant()
    def counted_and_watched(self) -> None:
        assert self.polls.count == len(self.waiting)
        assert self.kernel.watched == {pull.queue for pull in self.waiting}

    def teardown(self) -> None:
        late = self.polls.expired(self.now + 1000)
        assert sorted(late) == [pull.number for pull in self.waiting]
        assert (self.polls.count, self.polls._queues, self.polls._owners, self.polls._of_owner) == (0, {}, {}, {})


TestLongPoll = LongPollMachine.TestCase
TestLongPoll.settings = settings(max_examples=60, stateful_step_count=40)
