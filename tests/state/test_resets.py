"""Resets that consumers have not heard of yet: a fold over the log, told to each client once."""

from __future__ import annotations

from typing import Any

import pytest

from kappamq.errors import NotAvailable
from kappamq.events import Events
from kappamq.state import resets
from kappamq.state.events import ResetChanged
from kappamq.state.resets import AWAITED_S, PendingResets
from tests.state.committing import committing

QUEUE = ("g", "t", 0)


class Log:
    def __init__(self) -> None:
        self.recorded: list[tuple[str, Any]] = []

    def __call__(self, kind: str, change: Any) -> int:
        self.recorded.append((kind, change))
        return 0


def pull(table: PendingResets, client: str, offset: int, stored: int = 5, now: float = 0, parked: bool = False) -> bool:
    return table.must_move(client, QUEUE, offset, stored, now, parked=parked)


def commit(table: PendingResets, client: str, now: float = 0, *, member: bool = True, tool: bool = False) -> bool:
    return table.may_commit(client, QUEUE, now, member=member, tool=tool)


def test_the_table_is_a_fold() -> None:
    log = Log()
    table = committing(PendingResets, log)
    table.add("g", "t", {0: 5, 1: 6})
    table.add("h", "t", {0: 1})
    table.add("g", "u", {0: 2})
    assert pull(table, "c", 9)
    assert table.get(*QUEUE) == 5, "told, but nobody knows yet whether it was heard"
    assert not pull(table, "c", 5)
    assert table.get(*QUEUE) is None
    table.forget(topic="u")
    table.forget(topic="u")
    again = committing(PendingResets, log)
    for kind, change in list(log.recorded):
        assert kind in PendingResets.kinds
        again.apply(kind, change)
    loaded = committing(PendingResets, log)
    loaded.from_snapshot(table.to_snapshot())
    for copy in (table, again, loaded):
        assert copy.to_snapshot() == {
            "pending": [
                {"group": "g", "topic": "t", "offsets": {"0": 5, "1": 6}, "heard": {"0": ["c"]}},
                {"group": "h", "topic": "t", "offsets": {"0": 1}, "heard": {}},
            ]
        }
        assert copy.is_pending("g", "t")
        assert commit(copy, "c")
        assert not commit(copy, "d")


def test_what_earlier_versions_recorded() -> None:
    table = committing(PendingResets, Log())
    table.apply("reset", ["g", "t", {"0": 5, "1": 6}])
    table.apply("reset-done", ["g", "t", 0])
    table.from_snapshot({"pending": [{"group": "h", "topic": "t", "offsets": {"0": 1}}]})
    assert (table.get("g", "t", 0), table.get("g", "t", 1), table.get("h", "t", 0)) == (None, 6, 1)
    assert commit(table, "anybody")


def test_a_full_disk_does_not_stop_a_pull() -> None:
    def record(kind: str, change: Any) -> int:
        if kind != "reset":
            raise NotAvailable("the disk is full")
        return 0

    table = committing(PendingResets, record)
    table.add("g", "t", {0: 5})
    assert [pull(table, "c", 9), pull(table, "c", 5)] == [True, False]
    assert table.get(*QUEUE) is None


def test_who_does_not_obey_is_not_told_for_ever() -> None:
    table = committing(PendingResets, Log())
    table.add("g", "t", {0: 5})
    assert [pull(table, "c", 9) for _ in range(3)] == [True, False, False]
    table.add("g", "t", {0: 5})
    assert pull(table, "c", 9), "a new reset is told anew"
    table.forget(group="g")
    assert not pull(table, "c", 9)


def test_two_pulls_that_have_waited_show_nothing() -> None:
    table = committing(PendingResets, Log())
    table.add("g", "t", {0: 5})
    assert [pull(table, "c", 9, parked=True) for _ in range(2)] == [True, True]
    assert not commit(table, "c")
    assert not pull(table, "c", 5)
    assert commit(table, "c")


def test_it_is_open_until_everybody_has_heard_or_had_time_to() -> None:
    dropped: list[tuple[str, str]] = []
    events = Events()
    events.on(ResetChanged, lambda event: dropped.append((event.group, event.topic)))
    table = committing(lambda commit: PendingResets(commit, events=events), Log())
    table.add("g", "t", {0: 5})
    table.expect("g", "t", [0], ["a", "b", "c"], now=0)
    assert not pull(table, "a", 5)
    assert pull(table, "b", 9)
    assert table.is_pending("g", "t")
    assert not pull(table, "b", 5)
    assert table.is_pending("g", "t"), "c may have it, too"
    assert not pull(table, "a", 6, now=AWAITED_S + 1)
    assert not table.is_pending("g", "t")
    assert dropped == [("g", "t")]
    # And open again when somebody shows that it has not heard.
    assert not commit(table, "c", now=100)
    assert table.is_pending("g", "t")
    assert dropped == [("g", "t")] * 2
    assert not pull(table, "a", 7, now=101)
    assert table.is_pending("g", "t")
    assert pull(table, "c", 9, stored=7, now=102)
    assert not pull(table, "c", 7, stored=7, now=103)
    assert not table.is_pending("g", "t")
    assert commit(table, "c", now=104)


def test_a_question_counts_with_the_pull_that_follows_it() -> None:
    table = committing(PendingResets, Log())
    table.add("g", "t", {0: 5})
    table.offset_queried("c", QUEUE, 5, 0, member=True)
    assert not commit(table, "c"), "it may ask for the sake of asking, and go on where it was"
    assert not pull(table, "c", 5, stored=5)
    assert commit(table, "c")
    table.offset_queried("tool", QUEUE, 5, 0, member=False)
    assert not table.is_pending("g", "t"), "whoever only looks does not slow anybody down"


def test_tools_wait_for_consumers() -> None:
    table = committing(PendingResets, Log())
    table.add("g", "t", {0: 5})
    assert not commit(table, "tool", member=False, tool=True)
    pull(table, "c", 5)
    assert commit(table, "tool", member=False, tool=True)
    assert not commit(table, "address", member=False), "a consumer whose heartbeat has not come yet"
    assert not table.is_pending("g", "t")


def test_what_is_remembered_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resets, "NOTIFIED_MAX", 2)
    monkeypatch.setattr(resets, "REMEMBERED_MAX", 3)
    table = committing(PendingResets, Log())
    table.add("g", "t", dict.fromkeys(range(10), 5))
    for client in "abc":
        pull(table, client, 5)
    assert [commit(table, client) for client in "abc"] == [False, True, True]
    for queue_id in range(1, 10):
        table.must_move("a", ("g", "t", queue_id), 5, 5, AWAITED_S)
    assert len(table._remembered) == 3
    assert len(table._resets) == 4, "queue 0 is open again"
    table.forget(group="g")
    assert not table._resets
    assert not table._remembered
    assert not table._open


def test_members_of_a_large_group_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resets, "NOTIFIED_MAX", 2)
    monkeypatch.setattr(resets, "UNSETTLED_MAX", 2)
    table = committing(lambda commit: PendingResets(commit, member_count={"g": 5}.__getitem__), Log())
    table.add("g", "t", {0: 5})
    members = "abcde"
    assert all(pull(table, client, 9) for client in members)
    for _ in range(3):
        assert not any(pull(table, client, 5) for client in members), "none of them pushes another one out"
    again = committing(PendingResets, Log())
    again.from_snapshot(table.to_snapshot())
    assert not any(pull(again, client, 6) for client in members), "nor does a start, when nobody has come back yet"


def test_clients_that_come_and_go_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection of a client that sends no heartbeat is another client."""
    monkeypatch.setattr(resets, "UNSETTLED_MAX", 3)
    table = committing(PendingResets, Log())
    table.add("g", "t", {0: 5})
    for number in range(10):
        assert pull(table, f"p{number}", 9)
        table.offset_queried(f"a{number}", QUEUE, 5, 0, member=True)
        assert not commit(table, f"c{number}")
    reset = table._resets[QUEUE]
    assert [len(clients) for clients in (reset.answered, reset.queried, reset.awaited)] == [3, 3, 3]
    assert not pull(table, "p9", 9), "the newest are known"


def test_nobody_is_told_of_a_reset_that_may_be_taken_back() -> None:
    confirmed = 99
    table = committing(lambda commit: PendingResets(commit, lambda: confirmed), Log())
    table.add("g", "t", {0: 5})
    table.expect("g", "t", [0], ["c"], now=0, safe=100)
    assert not pull(table, "c", 9)
    assert not pull(table, "c", 9), "nor taken for one that was told"
    assert not commit(table, "c"), "but what it commits from before does not count"
    confirmed = 100
    assert pull(table, "c", 9)
    assert not pull(table, "c", 5)
    assert commit(table, "c")
