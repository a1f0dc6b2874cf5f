"""Answers that wait until what they speak of is stored."""

from __future__ import annotations

from typing import Any

from kappamq.broker.requests.answers import answer_when_stored
from kappamq.broker.requests.request import Request
from kappamq.protocol.codes import FLAG_ONEWAY
from kappamq.protocol.frame import Frame, FrameDecoder
from kappamq.protocol.headers.admin import GetBrokerConfig


class Writer:
    def __init__(self) -> None:
        self.turns = 0
        self.parked: list[tuple[Any, bytes, int, int, bool]] = []

    def set_turn(self) -> None:
        self.turns += 1

    def park(self, waiting: Any, answers: bytes, end: int, size: int, *, flushed: bool) -> None:
        self.parked.append((waiting, answers, end, size, flushed))


def request_of(frame: Frame) -> Request[GetBrokerConfig]:
    return Request(GetBrokerConfig(), "connection", frame)  # type: ignore[arg-type]


def test_an_answer_is_parked_and_the_body_of_its_request_charged() -> None:
    writer, request = Writer(), request_of(Frame(code=10, opaque=7, body=b"12345"))
    answer_when_stored(writer, request, request.reply(), 400, flushed=False)  # type: ignore[arg-type]
    ((waiting, answers, end, size, flushed),) = writer.parked
    assert (waiting, end, size, flushed, writer.turns) == ("connection", 400, 9, False, 1)
    (answer,) = FrameDecoder().feed(answers)
    assert (answer.code, answer.opaque) == (0, 7)


def test_a_oneway_request_is_written_and_not_answered() -> None:
    writer, request = Writer(), request_of(Frame(code=10, opaque=7, flag=FLAG_ONEWAY))
    answer_when_stored(writer, request, request.reply(), 400)  # type: ignore[arg-type]
    assert (writer.parked, writer.turns) == ([], 1)
