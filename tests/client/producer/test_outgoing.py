from __future__ import annotations

import pytest

from kappamq.client.producer.outgoing import single, together
from kappamq.config.client import ClientConfig
from kappamq.errors import IllegalMessage, InvalidParameter
from kappamq.message import Message
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.records import batch, properties
from kappamq.protocol.records.compression import decompress
from kappamq.protocol.trace import MessageKind

CONFIG = ClientConfig(nameservers=("a:1",))
ID = "7F00000138AF0FF046834CB5BA830000"


def test_what_a_message_says_becomes_properties() -> None:
    message = Message(
        "tea",
        b"x",
        tags="hot",
        keys=("a", "b"),
        delay_level=3,
        wait_stored=False,
        sharding_key="s",
        properties={"p": "q"},
    )
    outgoing = single(message, ID, 5, CONFIG)
    assert properties.decode(outgoing.properties) == {
        "UNIQ_KEY": ID,
        "WAIT": "false",
        "TAGS": "hot",
        "KEYS": "a b",
        "DELAY": "3",
        "__SHARDINGKEY": "s",
        "p": "q",
    }
    header = outgoing.header("shop", 2, "broker-a", CONFIG)
    assert (header.producer_group, header.queue_id, header.broker_name, header.born_ms) == ("shop", 2, "broker-a", 5)
    assert (header.batch, header.sys_flag, outgoing.code) == (False, 0, RequestCode.SEND_MESSAGE_V2)


@pytest.mark.parametrize(("kind", "flag"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
@pytest.mark.parametrize("level", [0, 5, 22])
def test_a_large_body_is_compressed_and_says_how(kind: str, flag: int, level: int) -> None:
    config = ClientConfig(nameservers=("a:1",), compress_kind=kind, compress_level=level)  # type: ignore[arg-type]
    body = b"tea for two " * 1000
    outgoing = single(Message("tea", body), ID, 0, config)
    if outgoing.sys_flag:
        assert outgoing.sys_flag == flag
        assert len(outgoing.body) < len(body)
        assert decompress(outgoing.body, outgoing.sys_flag) == body
    else:
        assert (kind, level) == ("zlib", 0)  # which stores without compressing
        assert outgoing.body == body


def test_below_the_threshold_and_where_it_does_not_help_nothing_is_compressed() -> None:
    assert single(Message("tea", b"x" * 4095), ID, 0, CONFIG).sys_flag == 0
    assert single(Message("tea", b"x" * 4096), ID, 0, CONFIG).sys_flag == 0x301
    noise = __import__("random").Random(1).randbytes(5000)
    assert single(Message("tea", noise), ID, 0, CONFIG).body == noise


@pytest.mark.parametrize(
    ("message", "given", "kind"),
    [
        (Message("tea", b"x"), {}, MessageKind.NORMAL),
        (Message("tea", b"x", sharding_key="s"), {}, MessageKind.ORDER),
        (Message("tea", b"x", delay_level=1), {}, MessageKind.DELAY),
        (Message("tea", b"x"), {"extra": {"TIMER_DELIVER_MS": "5"}}, MessageKind.DELAY),
        (Message("tea", b"x"), {"sys_flag": 4}, MessageKind.HALF),
    ],
    ids=["normal", "order", "level", "timer", "half"],
)
def test_traces_are_told_what_kind_of_message_it_is(message: Message, given: dict, kind: MessageKind) -> None:
    assert single(message, ID, 0, CONFIG, **given).kind is kind


def test_a_batch_keeps_each_members_own() -> None:
    messages = [Message("tea", b"1", tags="a", flag=3), Message("tea", b"2", keys="k")]
    outgoing = together(messages, ["id1", "id2"], 9, CONFIG)
    assert outgoing.code == RequestCode.SEND_BATCH_MESSAGE
    assert properties.decode(outgoing.properties) == {"WAIT": "true"}
    first, second = batch.split(outgoing.body)
    assert (first.body, first.flag, properties.decode(first.properties)["TAGS"]) == (b"1", 3, "a")
    assert properties.decode(second.properties) == {"UNIQ_KEY": "id2", "WAIT": "true", "KEYS": "k"}
    assert outgoing.header("g", 0, "b", CONFIG).batch is True


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message("tea", b""), "is empty"),
        (Message("tea", bytes(5 << 20)), "the limit is 4194304"),
        (Message("../tea", b"x"), "not allowed"),
        (Message("t" * 128, b"x"), "127"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), "is reserved for the broker"),
        (Message("rmq_sys_kappamq_offsets", b"x"), "is reserved for the broker"),
        (Message("tea", b"x", properties={"KEYS": "k"}), "is reserved by RocketMQ"),
        (Message("tea", b"x", properties={" ": "k"}), "blank"),
        (Message("tea", b"x", properties={"k": ""}), "blank"),
        (Message("tea", b"x", properties={"k": "\x02"}), "separator|blank"),
        (Message("tea", b"x", properties={"k": "v" * 32767}), "the limit is 32767"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_sent_says_what_to_change(message: Message, text: str) -> None:
    with pytest.raises(Exception, match=text) as raised:
        single(message, ID, 0, CONFIG)
    assert raised.type.__module__ == "kappamq.errors"


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (Message("cake", b"x"), "one topic"),
        (Message("tea", b"x", wait_stored=False), "wait_stored"),
        (Message("tea", b"x", delay_level=1), "delayed"),
        (Message("tea", b"x", transaction_id="t"), "transaction"),
        (Message("tea", b""), "empty"),
    ],
)
def test_what_cannot_be_in_one_batch_says_why(second: Message, text: str) -> None:
    with pytest.raises(IllegalMessage, match=text):
        together([Message("tea", b"x"), second], ["a", "b"], 0, CONFIG)


def test_a_batch_does_not_go_to_a_retry_topic() -> None:
    with pytest.raises(IllegalMessage, match="retry topic"):
        together([Message("%RETRY%g", b"x")], ["a"], 0, CONFIG)


def test_a_bad_topic_is_an_invalid_parameter() -> None:
    with pytest.raises(InvalidParameter):
        single(Message("leading or trailing blanks", b"x"), ID, 0, CONFIG)
