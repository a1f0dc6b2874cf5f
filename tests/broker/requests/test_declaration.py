"""Declarations of requests: each code once, headers decoded by them, and handlers that fit them."""

from __future__ import annotations

import pytest

from kappamq.broker.requests.declaration import Declaration, RequestTable
from kappamq.errors import HeaderError, NotSupported
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import GetMaxOffset, GetMinOffset, SendMessage, SendMessageV2

MAX = Declaration(30, GetMaxOffset, "Returns the end of a queue.")
REFUSED = Declaration(31, GetMinOffset, "Returns the beginning of a queue.", refusal="not today")
CONNECTION = "connection"


def test_a_code_that_is_declared_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"request code 30 is declared twice: 'Returns the end.*' and 'Another.'"):
        RequestTable([MAX, Declaration(30, GetMinOffset, "Another.")])


def test_a_header_is_decoded_or_what_is_wrong_with_it_is_told() -> None:
    frame = Frame(30, ext={"topic": "t", "queueId": "2"})
    request = MAX.request(CONNECTION, frame)  # type: ignore[arg-type]
    assert request.header == GetMaxOffset(topic="t", queue_id=2)
    with pytest.raises(HeaderError, match="field 'queueId' of GetMaxOffset is missing"):
        MAX.request(CONNECTION, Frame(30, ext={"topic": "t"}))  # type: ignore[arg-type]


def test_a_handler_sees_one_kind_of_header_whatever_came() -> None:
    sent = SendMessage(
        producer_group="g",
        topic="t",
        default_topic="d",
        default_topic_queues=4,
        queue_id=0,
        sys_flag=0,
        born_ms=1,
        flag=0,
    )
    declared = Declaration(310, SendMessageV2, "Stores a message.", normalise=lambda header: header.plain())
    request = declared.request(CONNECTION, Frame(310, ext=sent.short().encode()))  # type: ignore[arg-type]
    assert request.header == sent


def test_a_refused_code_is_not_even_decoded() -> None:
    with pytest.raises(NotSupported, match=r"^ request type 31 not supported: not today$"):
        REFUSED.request(CONNECTION, Frame(31))  # type: ignore[arg-type]


def test_declarations_and_handlers_have_to_agree() -> None:
    table = RequestTable([MAX, REFUSED])
    assert (list(table), len(table), table[30]) == ([30, 31], 2, MAX)
    table.check({30: None})
    with pytest.raises(RuntimeError, match="request code 30 is declared as served but has no handler"):
        table.check({})
    for code in (31, 32):
        with pytest.raises(RuntimeError, match=f"request code {code} has a handler but is not declared as served"):
            table.check({30: None, code: None})
