"""A message on its way, its callback, and errors for many."""

from __future__ import annotations

import pytest

from kappamq.client.bursts.waiting import CallbackSink, Waiting, complain, each_its_own, weigh
from kappamq.client.producer.pressure import Pressure
from kappamq.errors import BrokerError, NotConnected
from kappamq.message import Message, MessageQueue, SendResult, SendStatus


def test_a_callback_gets_a_result_or_an_error_and_its_own_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[tuple[object, object]] = []
    result = SendResult(status=SendStatus.OK, message_id="1", queue=MessageQueue("t", "b", 0), queue_offset=0)
    good, bad = (CallbackSink(lambda *said: calls.append(said), complain) for _ in range(2))
    assert not good.done()
    good.set_result(result)
    bad.set_exception(NotConnected("gone"))
    assert good.done()
    assert calls[0] == (result, None)
    assert isinstance(calls[1][1], NotConnected)
    CallbackSink(lambda result, error: 1 / 0, complain).set_result(result)
    assert "the callback of a send failed" in caplog.text


def test_what_a_message_weighs_and_whether_it_joins_others() -> None:
    def waiting(message: Message) -> Waiting:
        sink = CallbackSink(print, complain)
        made = Waiting(message, sink, Pressure(1, 1), None, None, accepted=2.0, deadline=5.0, born_ms=7)
        if not made.weight:
            weigh(made)
        return made

    plain = waiting(Message("t", b"x" * 100))
    assert plain.joins
    assert (plain.size, plain.limit) == (100, 3.0)
    assert 100 < plain.weight < 300
    assert waiting(Message("t", b"x", tags="a" * 1000)).weight > 1000
    assert not waiting(Message("t", b"x", flag=1)).joins
    assert not waiting(Message("t", b"x", delay=1)).joins
    assert not waiting(Message("%RETRY%g", b"x")).joins


def test_each_gets_an_error_of_its_own() -> None:
    error = BrokerError("no", response_code=77)
    error.add_note("attempt 1")
    first, second = each_its_own(error, 2)
    assert first is error
    assert second is not error
    assert type(second) is BrokerError
    assert (str(second), second.response_code) == ("no", 77)
    second.add_note("own")
    assert error.__notes__ == ["attempt 1"]


def test_an_error_that_cannot_be_copied_is_shared() -> None:
    class Odd(Exception):
        def __init__(self, number: int, *, why: str) -> None:
            super().__init__(f"{number}: {why}")

    error = Odd(1, why="so")
    error.add_note("once")
    assert each_its_own(error, 3) == [error] * 3
    assert error.__notes__ == ["once"]
