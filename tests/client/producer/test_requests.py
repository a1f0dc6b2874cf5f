from __future__ import annotations

import pytest

from kappamq.client.producer.requests import AGAIN_S, Requests
from kappamq.clock import VirtualClock
from kappamq.errors import HeaderError, ProtocolError
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, request
from kappamq.protocol.headers.client import PushReply
from kappamq.protocol.records import properties
from kappamq.protocol.records.compression import Compression, compress
from tests.client.loop import on_loop


def pushed(correlation_id: str, body: bytes = b"42", sys_flag: int = 0, **others: str) -> Frame:
    header = PushReply(
        producer_group="g",
        topic="c_REPLY_TOPIC",
        default_topic="TBW102",
        default_topic_queues=4,
        queue_id=0,
        sys_flag=sys_flag,
        born_ms=5,
        flag=1,
        properties=properties.encode({"CORRELATION_ID": correlation_id, "UNIQ_KEY": "u", **others}),
        born_host="/10.0.0.1:5",  # as Java writes it
        store_host="10.0.0.2:10911",
        store_ms=6,
    )
    return request(header, body)


@on_loop
async def test_a_reply_finds_the_request_it_answers() -> None:
    requests = Requests(VirtualClock(message_ms=9))
    first, second = requests.open("a"), requests.open("b")
    answer = requests.serve(pushed("b", TAGS="hot", KEYS="k l"))
    assert answer.code == ResponseCode.SUCCESS
    assert not first.done()
    message = await second
    assert (message.body, message.topic, message.message_id, message.tags, message.keys) == (
        *(b"42", "c_REPLY_TOPIC", "u", "hot"),
        ("k", "l"),
    )
    assert (message.born_ms, message.stored_ms, message.flag, message.born_host) == (5, 6, 1, "10.0.0.1:5")
    assert message.properties["ARRIVE_TIME"] == "9"


@on_loop
async def test_late_and_doubled_replies_are_taken_and_dropped() -> None:
    requests = Requests(VirtualClock())
    waiting = requests.open("a")
    assert requests.serve(pushed("a", b"first")).code == ResponseCode.SUCCESS
    assert requests.serve(pushed("a", b"second")).code == ResponseCode.SUCCESS
    assert (await waiting).body == b"first"
    requests.close("a")
    assert requests.serve(pushed("a")).code == ResponseCode.SUCCESS
    assert requests.serve(pushed("never asked")).code == ResponseCode.SUCCESS
    assert len(requests) == 0


@pytest.mark.parametrize("method", list(Compression))
@on_loop
async def test_a_compressed_reply_is_unpacked(method: Compression) -> None:
    requests = Requests(VirtualClock())
    waiting = requests.open("a")
    requests.serve(pushed("a", compress(b"tea " * 5000, method), sys_flag=1 | method.value))
    message = await waiting
    assert (message.body, message.sys_flag & 1) == (b"tea " * 5000, 0)


@on_loop
async def test_a_reply_that_cannot_be_read_ends_the_waiting() -> None:
    requests = Requests(VirtualClock())
    waiting = requests.open("a")
    answer = requests.serve(pushed("a", b"not zlib", sys_flag=1))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    with pytest.raises(ProtocolError, match="the reply to request a cannot be decoded"):
        await waiting
    with pytest.raises(HeaderError):  # the channel answers it with an error code
        requests.serve(Frame(code=RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT))


@on_loop
async def test_a_broker_out_of_reach_is_not_tried_by_every_request() -> None:
    clock = VirtualClock()
    requests = Requests(clock)
    assert requests.strangers(["a"]) == ["a"]
    assert requests.strangers(["a", "b"]) == ["b"]
    clock.advance(AGAIN_S)
    assert requests.strangers(["a"]) == ["a"]
