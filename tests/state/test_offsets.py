"""Consumer offsets: they go back only if somebody says so, neither live nor when the log is folded again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kappamq.errors import NotAvailable
from kappamq.protocol import fastjson
from kappamq.state.events import CommitsRecorded
from kappamq.state.offsets import Offsets
from tests.broker.recorded import Log
from tests.state.committing import committing

TOPICS, GROUPS, QUEUES = ["t1", "t2"], ["g1", "g2"], [0, 1]


def make(log: Log | None = None) -> Offsets:
    return committing(lambda commit: Offsets(lambda: 1_700_000_000_000, commit), (log or Log()).record)


def known(offsets: Offsets) -> dict[tuple[str, str, int], int]:
    return {
        (topic, group, queue_id): offset
        for group in GROUPS
        for topic in offsets.topics_of(group)
        for queue_id, offset in offsets.queues(group, topic).items()
    }


def test_a_late_commit_changes_nothing() -> None:
    offsets = make()
    assert offsets.get("g", "t", 0) is None
    offsets.commit("g", "t", 0, 5)
    offsets.commit("g", "t", 0, 3)
    assert offsets.get("g", "t", 0) == 5
    assert offsets.get("g", "t", 1) is None


def test_a_set_offset_goes_anywhere_and_is_told_to_the_log() -> None:
    log = Log()
    offsets = make(log)
    for offset in (50, 10, 10, 30, 20):
        offsets.set("g", "t", 0, offset)
        assert offsets.get("g", "t", 0) == offset
    offsets.commit("g", "t", 0, 15)
    assert offsets.get("g", "t", 0) == 20
    offsets.record_commits()
    offsets.set("g", "t", 0, 20)
    offsets.record_commits()
    offsets.set("g", "t", 0, 5)
    offsets.record_commits()
    assert [change for _kind, change in log.records] == [[["t", "g", {"0": 20}]], [["t", "g", {"0": 5}]]]
    again = make()
    for kind, change in log.records:
        again.apply(kind, change)
    assert again.get("g", "t", 0) == 5, "the last word counts"


def test_zero_is_an_offset_and_less_is_none() -> None:
    offsets = make()
    offsets.commit("g", "t", 0, -1)
    assert offsets.get("g", "t", 0) is None
    assert offsets.topics_of("g") == set(), "nothing was committed, nothing is known"
    offsets.commit("g", "t", 0, 0)
    assert offsets.get("g", "t", 0) == 0


def test_commits_are_told_to_the_log_all_at_once() -> None:
    log = Log()
    offsets = make(log)
    told: list[Any] = []
    offsets._events.on(CommitsRecorded, lambda event: told.append(event.changes))
    offsets.record_commits()
    assert log.records == [], "nothing happened"
    for offset in range(1, 100):
        offsets.commit("g1", "t", 0, offset)
        offsets.commit("g2", "t", 1, offset * 2)
    offsets.record_commits()
    assert log.records == [("offsets", [["t", "g1", {"0": 99}], ["t", "g2", {"1": 198}]])]
    assert told == [{("t", "g1"): {0: 99}, ("t", "g2"): {1: 198}}]
    offsets.commit("g1", "t", 0, 99)
    offsets.record_commits()
    assert len(log.records) == 1, "what is not new is not told again"


def test_what_the_log_did_not_take_is_told_the_next_time() -> None:
    log = Log()
    offsets = make(log)
    offsets.commit("g", "t", 0, 5)
    log.refuses = True
    with pytest.raises(NotAvailable):
        offsets.record_commits()
    assert offsets.dirty, "meanwhile the snapshot has it"
    offsets.commit("g", "t", 1, 6)
    log.refuses = False
    offsets.record_commits()
    assert log.records == [("offsets", [["t", "g", {"0": 5, "1": 6}]])]


def test_no_failure_loses_what_the_log_did_not_take() -> None:
    def fails(kind: str, change: Any, *, anyway: bool = False) -> int:
        raise MemoryError("nobody expects this")

    offsets = Offsets(lambda: 1_700_000_000_000, fails)
    offsets.commit("g", "t", 0, 5)
    with pytest.raises(MemoryError):
        offsets.record_commits()
    assert offsets.get("g", "t", 0) == 5
    assert offsets.beside() == [("t", "g", 0, 5)]


def test_at_no_moment_of_a_record_an_offset_goes_back() -> None:
    """A thread may ask for all of them at any time."""
    seen: list[Any] = []

    def record(kind: str, change: Any) -> int:
        seen.append(offsets.with_overlay()["offsetTable"])
        return 0

    offsets = committing(lambda commit: Offsets(lambda: 1_700_000_000_000, commit), record)
    for offset in (5, 6):
        offsets.commit("g", "t", 0, offset)
        offsets.record_commits()
        assert seen.pop() == {"t@g": {0: offset}}


@pytest.mark.parametrize("then_reset", [False, True])
def test_an_offset_that_is_recorded_while_a_thread_copies_is_in_the_copy(then_reset: bool) -> None:
    class Slow(dict[tuple[str, str], dict[int, int]]):
        """Between the two copies that the thread makes the loop goes on."""

        def copy(self) -> dict[tuple[str, str], dict[int, int]]:
            found = dict(self)
            offsets.record_commits()
            if then_reset:
                offsets.move("g", "t", {0: 2})
            return found

    offsets = make()
    offsets.commit("g", "t", 0, 5)
    offsets._table = Slow()
    assert offsets.with_overlay()["offsetTable"] == {"t@g": {0: 5}}
    assert offsets.get("g", "t", 0) == (2 if then_reset else 5)
    assert offsets.beside() == []


def test_a_reset_goes_anywhere_and_is_safe_where_it_says() -> None:
    log = Log()
    offsets = make(log)
    offsets.commit("g", "t", 0, 50)
    offsets.commit("g", "t", 1, 50)
    safe = offsets.move("g", "t", {0: 10, 2: 70})
    assert safe == len(log.records)
    assert offsets.queues("g", "t") == {0: 10, 1: 50, 2: 70}
    assert [kind for kind, _ in log.records] == ["offsets", "offsets-reset"], "commits from before come before it"
    offsets.commit("g", "t", 0, 12)
    assert offsets.get("g", "t", 0) == 12, "from there it goes on"


def test_a_reset_that_cannot_be_recorded_has_not_happened() -> None:
    log = Log()
    offsets = make(log)
    offsets.commit("g", "t", 0, 50)
    log.refuses = True
    with pytest.raises(NotAvailable):
        offsets.move("g", "t", {0: 10})
    with pytest.raises(NotAvailable):
        offsets.delete(topic="t")
    assert offsets.get("g", "t", 0) == 50


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ({"topic": "t1"}, {("t2", "g1"), ("t2", "g2")}),
        ({"group": "g1"}, {("t1", "g2"), ("t2", "g2")}),
        ({"topic": "t1", "group": "g1"}, {("t1", "g2"), ("t2", "g1"), ("t2", "g2")}),
    ],
)
def test_what_is_deleted_is_forgotten_everywhere(chosen: dict[str, str], left: set[tuple[str, str]]) -> None:
    log = Log()
    offsets = make(log)
    for topic in TOPICS:
        for group in GROUPS:
            offsets.commit(group, topic, 0, 7)
    offsets.delete(**chosen)
    pairs = {(topic, group) for topic in TOPICS for group in GROUPS}
    assert {(topic, group) for topic, group in pairs if offsets.get(group, topic, 0) is not None} == left
    assert {(topic, group) for group in GROUPS for topic in offsets.topics_of(group)} == left
    assert {(topic, group) for topic in TOPICS for group in offsets.groups_of(topic)} == left
    offsets.record_commits()
    assert {(topic, group) for topic, group, _ in log.records[-1][1]} == left, "a commit that waited does not come back"


def test_nobody_has_read_beyond_a_log_that_was_cut() -> None:
    offsets = make()
    offsets.commit("g1", "t", 0, 100)
    offsets.commit("g2", "t", 0, 30)
    offsets.commit("g1", "t", 1, 100)
    offsets.commit("g1", "other", 0, 100)
    offsets.record_commits()
    offsets.dirty = False
    offsets._end = lambda topic, queue_id: 100
    offsets.clamp()
    assert not offsets.dirty
    offsets._end = lambda topic, queue_id: 40 if (topic, queue_id) == ("t", 0) else 200
    offsets.clamp()
    assert offsets.dirty
    assert offsets.queues("g1", "t") == {0: 40, 1: 100}
    assert (offsets.get("g2", "t", 0), offsets.get("g1", "other", 0)) == (30, 100)


def test_a_commit_of_messages_that_were_lost_is_none() -> None:
    """The consumer had them before the crash that took them; the next ones get their numbers."""
    offsets = make()
    offsets._end = lambda topic, queue_id: 90
    offsets.commit("g", "t", 0, 80)
    offsets.commit("g", "t", 0, 100)
    assert offsets.get("g", "t", 0) == 80
    offsets.commit("g", "t", 0, 90)
    assert offsets.get("g", "t", 0) == 90


def test_a_cut_log_is_one_look_at_each_offset() -> None:
    offsets = make()
    for group in GROUPS:
        for number in range(100):
            offsets.commit(group, f"t{number}", 0, 7)
    asked: list[tuple[str, int]] = []

    def end(topic: str, queue_id: int) -> int:
        asked.append((topic, queue_id))
        return 9

    offsets.record_commits()
    offsets._end = end
    offsets.clamp()
    assert len(asked) == 100 * len(GROUPS), "20,000 queues must not cost 20,000 walks over the table"


def test_topics_by_group() -> None:
    offsets = make()
    for topic, group in (("t1", "g1"), ("t2", "g1"), ("t1", "g2")):
        offsets.commit(group, topic, 0, 1)
    assert offsets.topics_by_group() == {"g1": ["t1", "t2"], "g2": ["t1"]}


def test_javas_file_is_read_and_what_makes_no_sense_is_left_out() -> None:
    offsets = make()
    text = b'{"offsetTable":{"t@g":{0:12,1:3},"%RETRY%g@g":{0:1},"noSeparator":{0:1},"x@y":null}}'
    offsets.from_snapshot(fastjson.loads(text))
    assert offsets.queues("g", "t") == {0: 12, 1: 3}
    assert offsets.topics_of("g") == {"t", "%RETRY%g"}
    assert offsets.topics_of("y") == set()


def test_a_snapshot_is_a_copy() -> None:
    """It is written on a worker while consumers go on."""
    offsets = make()
    offsets.commit("g", "t", 0, 1)
    snapshot = offsets.to_snapshot()
    text = fastjson.dumps(snapshot)
    offsets.commit("g", "t", 0, 2)
    offsets.commit("g", "t", 1, 2)
    offsets.commit("h", "t", 0, 2)
    assert fastjson.dumps(snapshot) == text


class OffsetsMachine(RuleBasedStateMachine):
    """Against a plain dict; and at any moment the log, alone or behind any snapshot, gives what was told to it."""

    topics, groups, queues = st.sampled_from(TOPICS), st.sampled_from(GROUPS), st.sampled_from(QUEUES)
    numbers = st.integers(0, 9)

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.offsets = make(self.log)
        self.model: dict[tuple[str, str, int], int] = {}
        self.snapshots: list[tuple[int, bytes]] = []

    @rule(topic=topics, group=groups, queue=queues, offset=numbers)
    def commit(self, topic: str, group: str, queue: int, offset: int) -> None:
        self.offsets.commit(group, topic, queue, offset)
        key = (topic, group, queue)
        self.model[key] = max(offset, self.model.get(key, -1))

    @rule(topic=topics, group=groups, queue=queues, offset=numbers)
    def set(self, topic: str, group: str, queue: int, offset: int) -> None:
        self.offsets.set(group, topic, queue, offset)
        self.model[topic, group, queue] = offset

    @rule(topic=topics, group=groups, values=st.dictionaries(queues, numbers, min_size=1))
    def reset(self, topic: str, group: str, values: dict[int, int]) -> None:
        self.offsets.move(group, topic, values)
        self.model |= {(topic, group, queue): offset for queue, offset in values.items()}

    @rule(topic=topics | st.none(), group=groups)
    def delete(self, topic: str | None, group: str) -> None:
        self.offsets.delete(topic, group)
        self.model = {key: value for key, value in self.model.items() if key[1] != group or topic not in (None, key[0])}

    @rule()
    def record(self) -> None:
        self.offsets.record_commits()

    @rule()
    def refuse(self) -> None:
        """The log takes nothing for a while."""
        self.log.refuses = True
        try:
            self.offsets.record_commits()
        except NotAvailable:
            pass
        finally:
            self.log.refuses = False

    @rule()
    def snapshot(self) -> None:
        self.snapshots.append((len(self.log.records), fastjson.dumps(self.offsets.to_snapshot())))

    @rule(data=st.data())
    def crash(self, data: Any) -> None:
        """What had been recorded is there again, from any snapshot and with any overlap."""
        self.offsets.record_commits()
        at, text = data.draw(st.sampled_from([(0, b"{}"), *self.snapshots]))
        again = make()
        again.from_snapshot(fastjson.loads(text))
        for kind, change in self.log.records[data.draw(st.integers(0, at)) :]:
            again.apply(kind, change)
        assert known(again) == self.model

    @invariant()
    def as_the_model_says(self) -> None:
        assert known(self.offsets) == self.model


TestOffsets = OffsetsMachine.TestCase
TestOffsets.settings = settings(max_examples=60, stateful_step_count=30)


def test_beside_the_log_the_larger_one_wins_and_a_reset_wins_over_both() -> None:
    """On a node that does not write: what others have recorded comes with the log."""
    log = Log()
    offsets = make(log)
    for queue in range(4):
        offsets.commit("g", "t", queue, 50)
    offsets.apply("offsets", [["t", "g", {"0": 40, "1": 50, "2": 60}]])
    assert [offsets.get("g", "t", queue) for queue in range(4)] == [50, 50, 60, 50]
    assert offsets.beside() == [("t", "g", 0, 50), ("t", "g", 3, 50)], (
        "what the log knows, or knows better, is forgotten"
    )
    offsets.apply("offsets-reset", ["t", "g", {"0": 7}])
    assert offsets.get("g", "t", 0) == 7
    offsets.record_commits()
    assert log.records == [("offsets", [["t", "g", {"3": 50}]])], "it goes back nowhere when this node writes"


def test_what_a_former_leader_has_answered_counts_where_its_log_has_lost_it() -> None:
    offsets = make(Log())
    offsets.commit("g", "t", 0, 5)
    offsets.commit("g", "t", 1, 5)
    offsets.record_commits()
    offsets.commit("g", "t", 1, 6)
    answered = offsets.answered()
    offsets.reset()
    assert offsets.queues("g", "t") == {}
    offsets.apply("offsets", [["t", "g", {"0": 9}]])
    offsets.keep(answered)
    assert offsets.queues("g", "t") == {0: 9, 1: 6}
    for _ in range(100):
        offsets.commit("g", "t", 1, offsets.queues("g", "t")[1] + 1)
        offsets.record_commits()
    assert len(offsets._recent) <= 10, "what is remembered is bounded"


def test_commits_that_no_table_takes_any_more_are_not_lost() -> None:
    """A leader that was deposed changes nothing until its tables are what the log says."""

    def refused(kind: str, change: Any, *, anyway: bool = False) -> int:
        raise NotAvailable("this broker is not the master now")

    offsets = Offsets(lambda: 1_700_000_000_000, refused)
    offsets.commit("g", "t", 0, 5)
    with pytest.raises(NotAvailable):
        offsets.record_commits()
    assert offsets.answered() == [("t", "g", 0, 5)]
