"""A question for bytes of the log and its answer: everything comes back as it went, and what nobody would ask or say is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kappamq.replication.frames import BadStream
from kappamq.replication.greeting import Refusal
from kappamq.replication.ranges import NEIGHBOUR_BYTES, RangePiece, RangeQuestion, check_question

QUESTION = RangeQuestion(
    cluster="c",
    name="b",
    group="g",
    group_id="g:1",
    who="n0",
    segment_bytes=1000,
    start=2100,
    end=2500,
    before=64,
    behind=64,
)


def test_a_question_goes_over() -> None:
    assert RangeQuestion.of(QUESTION.values()) == QUESTION
    assert RangeQuestion.of({**QUESTION.values(), "later": 5}) == QUESTION


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": 2500},
        {"end": 3001},  # two files
        {"segment_bytes": 0},
        {"before": NEIGHBOUR_BYTES + 1},
        {"behind": NEIGHBOUR_BYTES + 1},
        {"start": 0, "end": 10},  # 64 bytes before the log
        {"start": -1},
        {"end": "x"},
        {"group_id": 5},
    ],
)
def test_what_nobody_can_ask_for(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadStream):
        RangeQuestion.of({**QUESTION.values(), **wrong})


@pytest.mark.parametrize(
    ("differs", "text"),
    [
        ({"cluster": "x"}, "brokerClusterName"),
        ({"name": "x"}, "brokerName"),
        ({"group": "x"}, "dLegerGroup"),
        ({"group_id": "x"}, "founding of the group is 'x', ours 'g:1'"),
        ({"segment_bytes": 5000}, "mappedFileSizeCommitLog"),
        ({"who": "n1"}, "does not ask itself"),
    ],
)
def test_another_log_is_not_mended(differs: dict[str, Any], text: str) -> None:
    ours = replace(QUESTION, who="n1", start=0, end=0)
    check_question(QUESTION, ours)
    with pytest.raises(Refusal, match=text):
        check_question(replace(QUESTION, **differs), ours)


def test_pieces_go_over() -> None:
    piece = RangePiece.decode(RangePiece(2100, b"records").encode())
    assert (piece.offset, bytes(piece.data)) == (2100, b"records")
    for wrong in (b"", bytes(8)):
        with pytest.raises(BadStream, match="nothing is in it"):
            RangePiece.decode(wrong)
