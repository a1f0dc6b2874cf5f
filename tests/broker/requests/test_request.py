"""What a handler can learn from a request, and how it answers."""

from __future__ import annotations

from typing import Any

import pytest

from kappamq.broker.requests.request import Request, merged
from kappamq.errors import ProtocolError
from kappamq.protocol.bodies.topics import TopicList
from kappamq.protocol.codes import FLAG_ONEWAY, Language, RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import GetMaxOffset, OffsetResponse

HEADER = GetMaxOffset(topic="t", queue_id=1)


def request_of(**values: Any) -> Request[GetMaxOffset]:
    frame = Frame(RequestCode.GET_MAX_OFFSET, ext={**HEADER.encode(), "extra": "e"}, **values)
    return Request(HEADER, "connection", frame)  # type: ignore[arg-type]


def test_what_came_can_be_read() -> None:
    request = request_of(
        opaque=7, body=b"body", language=Language.GO, version=400, remark="why", binary=True, flag=FLAG_ONEWAY
    )
    assert (request.header.topic, request.connection, request.code) == ("t", "connection", 30)
    assert (request.body, request.language, request.version, request.remark) == (b"body", Language.GO, 400, "why")
    assert (request.opaque, request.is_binary, request.is_oneway) == (7, True, True)
    assert request.fields == {"topic": "t", "queueId": "1", "extra": "e"}
    assert not hasattr(request, "__dict__"), "there are many of them"


def test_an_answer_has_the_number_and_the_form_of_its_request() -> None:
    answer = request_of(opaque=7, binary=True).reply(4, "remark", OffsetResponse(offset=9), b"body")
    assert (answer.code, answer.remark, answer.ext, answer.body) == (4, "remark", {"offset": "9"}, b"body")
    assert (answer.opaque, answer.binary, answer.is_response) == (7, True, True)
    assert request_of(opaque=8).reply().code == 0


def test_a_body_is_parsed_once() -> None:
    request = request_of(body=b'{"topicList":["a"]}')
    assert (request.parse(TopicList).topics, request.was_read_beside) == (["a"], False)
    with pytest.raises(ProtocolError):
        request_of(body=b"{").parse(TopicList)
    parsed = TopicList(["b"])
    request = request_of(body=b"{", parsed=parsed)
    assert request.parse(TopicList) is parsed
    assert request.was_read_beside


def test_one_code_has_one_handler() -> None:
    def handle(request: Request[Any]) -> None:
        pass

    assert merged([{10: handle}, {11: handle}]) == {10: handle, 11: handle}
    with pytest.raises(RuntimeError, match="request code 10 has two handlers"):
        merged([{10: handle}, {10: handle}])
