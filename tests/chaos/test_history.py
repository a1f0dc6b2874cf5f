"""The judge of a group's history sees what is wrong, one kind at a time, and says nothing of what is right."""

from __future__ import annotations

import pytest

from tests.chaos.history import Found, History, Sent


def history() -> tuple[History, list[Sent]]:
    """Three messages of one producer, answered one after the other."""
    made = History()
    all_sent = []
    for number in range(3):
        sent = made.begin("plain", "t")
        made.acked(sent, 0, number)
        sent.began, sent.ended = float(number), number + 0.5
        all_sent.append(sent)
    return made, all_sent


def kinds(made: History, *ids: str, last: bool = True, stored_ms: int = 1000) -> list[str]:
    found = [Found(name, offset, stored_ms) for offset, name in enumerate(ids)]
    wrong = made.note("t", 0, found) + made.judge(last=last)
    return sorted({one.kind for one in wrong})


def test_what_is_right_is_not_complained_of() -> None:
    made, sent = history()
    assert kinds(made, *[one.id for one in sent]) == []
    assert kinds(made, *[one.id for one in sent]) == []  # read again


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ([0, 1], ["lost"]),
        ([0, 2, 1], ["moved", "order"]),
        ([0, 1, 2, 1], ["duplicate", "order"]),
    ],
)
def test_what_is_wrong_is_seen(order: list[int], expected: list[str]) -> None:
    made, sent = history()
    assert kinds(made, *[sent[n].id for n in order]) == expected


def test_invented_and_changed_and_gaps() -> None:
    made, sent = history()
    assert kinds(made, *[one.id for one in sent], "nobody") == ["invented"]
    wrong = made.note("t", 0, [Found(sent[0].id, 1, 0)])
    assert [one.kind for one in wrong] == ["changed"]
    wrong = made.note("t", 0, [Found(sent[0].id, 0, 0), Found(sent[2].id, 2, 0)])
    assert [one.kind for one in wrong] == ["gap"]


def test_what_was_answered_while_reading_may_come_later() -> None:
    made, sent = history()
    made.note("t", 0, [Found(sent[0].id, 0, 0)])
    assert [one.kind for one in made.judge(read=1.2)] == []
    assert [one.text.split()[0] for one in made.judge(read=2.2)] == [sent[1].id]
    # Sent again to another queue, which was read before it was answered there.
    made.troubles.append([0.0, 3.0])
    made.note("t", 1, [Found(sent[1].id, 0, 0)])
    assert made.judge(read=1.2) == []


def test_twice_is_right_for_who_may_have_sent_again() -> None:
    made, sent = history()
    made.troubles.append([2.1, 3.0])
    assert kinds(made, *[sent[n].id for n in (0, 1, 2, 2)]) == []
    made, sent = history()
    made.troubles.append([2.6, 3.0])  # after its answer
    assert kinds(made, *[sent[n].id for n in (0, 1, 2, 2)]) == ["duplicate"]


def test_a_batch_is_whole() -> None:
    made = History()
    first = made.begin("batch", "t")
    first.batch = first.id
    second = made.begin("batch", "t", first.id)
    assert kinds(made, first.id) == ["torn"]
    assert kinds(made, first.id, second.id) == []


def test_timers_come_and_not_early() -> None:
    made = History()
    sent = made.begin("timer", "t", late=True, due_ms=1000)
    made.acked(sent)
    assert made.missing() == [sent]
    assert kinds(made, last=False) == []
    assert kinds(made) == ["lost"]
    assert kinds(made, sent.id, stored_ms=999) == ["early"]
    assert made.missing() == []


def test_a_transaction_ends_as_decided() -> None:
    made = History()
    rolled = made.begin("tx", "t", late=True, wanted=False)
    made.acked(rolled)
    assert kinds(made) == []
    assert kinds(made, rolled.id) == ["decided twice"]


def test_offsets_do_not_go_back() -> None:
    made = History()
    queue = ("t", 0)
    made.commit_asked(queue, 7)
    made.committed(queue, 7)
    committed_at = made.commits[queue][0][0]
    later = committed_at + 5
    assert made.judge_offset(queue, 7, later, 3.0) == []
    assert [one.kind for one in made.judge_offset(queue, 6, later, 3.0)] == ["offset went back"]
    assert made.judge_offset(queue, 6, committed_at + 2, 3.0) == []  # it was on its way to the log
    assert [one.kind for one in made.judge_offset(queue, 8, later, 3.0)] == ["offset invented"]
