from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kappamq.message import Message, MessageQueue, ReceivedMessage, Redeliver, SendResult, SendStatus


def test_keys_may_be_a_text_a_list_or_a_tuple() -> None:
    for keys in ("a b", ["a", "b"], ("a", "b")):
        assert Message("t", b"", keys=keys).keys == ("a", "b")  # type: ignore[arg-type]


def test_body_may_be_any_buffer() -> None:
    assert Message("t", bytearray(b"xy")).body == b"xy"  # type: ignore[arg-type]
    assert Message("t", memoryview(b"xy")[1:]).body == b"y"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topic": "", "body": b""}, "topic of a message must be a non-empty str"),
        ({"topic": None, "body": b""}, "topic of a message must be a non-empty str"),
        ({"topic": "t", "body": "text"}, "encode the text"),
        ({"topic": "t", "body": 7}, "body must be bytes"),
        ({"topic": "t", "body": {"cups": 42}}, r"json.dumps\(body\).encode\(\); got {'cups': 42}"),
        ({"topic": "t", "body": b"x", "keys": 5}, "keys must be strings"),
        ({"topic": "t", "body": b"x", "keys": b"order-7"}, "keys must be strings"),
        ({"topic": "t", "body": b"x", "properties": None}, "properties must be a mapping"),
        (
            {"topic": "t", "body": b"x", "properties": {"cups": 42}},
            "values of properties must be strings; got 'cups': 42",
        ),
        ({"topic": "t", "body": b"x", "flag": "1"}, "flag must be"),
        ({"topic": "t", "body": b"x", "flag": 1.5}, "flag must be"),
        ({"topic": "t", "body": b"x", "delay_level": "3"}, "delay_level must be"),
        ({"topic": "t", "body": b"x", "delay_level": True}, "delay_level must be"),
        ({"topic": "t", "body": b"x", "delay": float("nan")}, "delay must be a number of seconds"),
        ({"topic": "t", "body": b"x", "delay": float("inf")}, "delay must be a number of seconds"),
        ({"topic": "t", "body": b"x", "wait_stored": None}, "wait_stored must be"),
        ({"topic": "t", "body": b"x", "sharding_key": 5}, "sharding_key must be a str"),
        ({"topic": "t", "body": b"x", "transaction_id": 5}, "transaction_id must be a str"),
        ({"topic": "t", "body": b"", "keys": ("a b",)}, "must not contain blanks"),
        ({"topic": "t", "body": b"", "keys": ("",)}, "must not contain blanks"),
        ({"topic": "t", "body": b"", "flag": 1 << 31}, "32-bit"),
        ({"topic": "t", "body": b"", "delay_level": -1}, "delay_level"),
    ],
)
def test_wrong_messages_say_what_is_wrong(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        Message(**arguments)


def test_queues_sort_by_topic_broker_and_id_and_can_be_keys() -> None:
    queues = [MessageQueue("t", "b", 10), MessageQueue("t", "b", 9), MessageQueue("s", "z", 99)]
    assert sorted(queues) == [queues[2], queues[1], queues[0]]
    assert len({*queues, MessageQueue("t", "b", 9)}) == 3
    assert str(queues[0]) == "t@b/10"


def test_values_survive_pickling() -> None:
    queue = MessageQueue("t", "b", 1)
    values = [
        Message("t", b"x", keys=("k",), properties={"a": "b"}),
        SendResult(status=SendStatus.OK, message_id="m", queue=queue, queue_offset=3),
        received(queue),
    ]
    assert pickle.loads(pickle.dumps(values)) == values


def received(queue: MessageQueue) -> ReceivedMessage:
    return ReceivedMessage(
        topic="t", body=b"\xc3\xa4\xff", queue=queue, queue_offset=3, log_offset=4, message_id="m", offset_id="o"
    )


def test_text_never_fails() -> None:
    assert received(MessageQueue("t", "b", 1)).text == "ä�"


def test_only_ok_is_ok() -> None:
    for status in SendStatus:
        result = SendResult(status=status, message_id="m", queue=MessageQueue("t", "b", 1), queue_offset=3)
        assert result.ok == (status == "ok")


def test_when_to_be_delivered() -> None:
    assert Message("t", b"x", delay=1.0001).delay_ms == 1001, "rounded up: never early"
    assert Message("t", b"x", delay=timedelta(milliseconds=1500)).delay_ms == 1500
    assert Message("t", b"x", delay=0.1 + 0.2).delay_ms == 300
    assert Message("t", b"x", deliver_at=1_700_000_000_001).deliver_at_ms == 1_700_000_000_001
    at = datetime(2023, 11, 14, 22, 13, 20, 1500, tzinfo=UTC)
    assert Message("t", b"x", deliver_at=at).deliver_at_ms == 1_700_000_000_002
    assert (Message("t", b"x").delay_ms, Message("t", b"x").deliver_at_ms) == (None, None)
    for wrong in ({"delay": -1}, {"delay": 1, "delay_level": 2}, {"delay": 1, "deliver_at": 5}):
        with pytest.raises(ValueError, match="delay"):
            Message("t", b"x", **wrong)  # type: ignore[arg-type]
    for wrong in ({"deliver_at": 1.5}, {"deliver_at": True}, {"deliver_at": "noon"}):
        with pytest.raises(TypeError, match="deliver_at"):
            Message("t", b"x", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("tags", ["a||b", " a", "a ", "*"])
def test_a_tag_that_no_subscription_could_name(tags: str) -> None:
    with pytest.raises(ValueError, match="a tag must not be"):
        Message("tea", b"x", tags=tags)


def test_values_of_another_kind() -> None:
    with pytest.raises(TypeError, match=r"tags must be a str with one tag.*got \['a'\]"):
        Message("tea", b"x", tags=["a"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="delay must be a number of seconds, or a timedelta; got '5s'"):
        Message("tea", b"x", delay="5s")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"level": "3"}, {"level": None}, {"level": 1.5}, {"done": "1"}, {"pause_ms": "5"}])
def test_a_redelivery_is_told_in_whole_numbers(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be an int"):
        Redeliver(**wrong)
