"""Messages that lie in an answer are those that are decoded record by record, whoever asks for whichever field first."""

from __future__ import annotations

import copy
import pickle
import random
import sys
import threading
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kappamq import native
from kappamq.message import ReceivedMessage
from kappamq.protocol.records import messages as module
from kappamq.protocol.records.messages import MessageBlock, StoredMessages, messages_in_place
from kappamq.protocol.records.record import SYS_COMPRESSED, SYS_INNER_BATCH, Record
from kappamq.protocol.records.tags import Subscription
from kappamq.protocol.records.view import RecordView, walk
from tests.protocol.records.test_record import SAMPLE, records
from tests.protocol.records.test_view import IPV6, LONG_NAME
from tests.store.stores import kernels

NAMES = [field.name for field in fields(ReceivedMessage)]
FAR = 1 << 62


@pytest.fixture(params=kernels(), autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    kernel = native.load(request.param)
    monkeypatch.setattr(module, "_index_plain", kernel.index_plain)
    monkeypatch.setattr(module, "_columns", kernel.columns)
    return str(request.param)


each_input = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def in_place(listed: list[Record], *, original_topics: bool = False) -> MessageBlock:
    data = b"".join(record.encode() for record in listed)
    stored = messages_in_place(data, "b", 0, FAR, original_topics=original_topics)
    assert stored is not None
    return MessageBlock(stored, 0, stored.count)


def numbered(listed: list[Record]) -> list[Record]:
    """As they would follow each other in an answer."""
    return [
        replace(
            record,
            queue_offset=number,
            queue_id=record.queue_id & 0x7FFFFFFF,
            log_offset=record.log_offset & (FAR - 1),
            sys_flag=record.sys_flag & ~(SYS_COMPRESSED | SYS_INNER_BATCH),
        )
        for number, record in enumerate(listed)
        if "\0" not in record.topic and "INNER_MULTI" not in record.properties
    ]


def tea(number: int, properties: str = "") -> Record:
    return replace(SAMPLE, queue_offset=number, body=b"cup %d" % number, properties=properties, sys_flag=0)


@each_input
@given(st.lists(records(), max_size=6).map(numbered), st.randoms())
@example([replace(LONG_NAME, queue_offset=0), replace(IPV6, queue_offset=1)], random.Random(1))
def test_fields_are_those_of_the_record(listed: list[Record], dice: random.Random) -> None:
    expected = [record.to_message("b") for record in listed]
    for message, whole in zip(in_place(listed), expected, strict=True):
        dice.shuffle(NAMES)
        for name in NAMES:
            assert getattr(message, name) == getattr(whole, name), name
    assert list(in_place(listed)) == expected


@each_input
@given(
    st.lists(records(), min_size=1, max_size=4).map(numbered),
    st.lists(st.tuples(st.integers(0), st.integers(1, 255)), max_size=3),
)
def test_what_is_damaged_is_left_to_others(listed: list[Record], flips: list[tuple[int, int]]) -> None:
    data = bytearray(b"".join(record.encode() for record in listed))
    for position, value in flips if data else []:
        data[position % len(data)] ^= value
    twin, compiled = native.load("twin").index_plain(bytes(data), 0, 10), native.load().index_plain(bytes(data), 0, 10)
    assert twin == compiled


def test_with_damage_at_any_byte_what_is_taken_is_what_is_decoded_record_by_record() -> None:
    listed = [
        replace(tea(0, "TAGS\1hot\2"), tail_crc=True),
        replace(IPV6, queue_offset=1, sys_flag=0x30),
        replace(LONG_NAME, queue_offset=2, sys_flag=0),
        tea(3),
    ]
    data = b"".join(record.encode() for record in listed)
    end, noticed = sum(record.size for record in listed[:2]) - 20, 0
    for position in range(len(data)):
        for bit in (0, 7):
            spoilt = bytearray(data)
            spoilt[position] ^= 1 << bit
            stored = messages_in_place(bytes(spoilt), "b", 0, 4)
            if stored is None:
                noticed += position < end
                continue
            found = list(walk(bytes(spoilt)))
            views = [one for one in found if isinstance(one, RecordView)]
            assert len(views) == len(found) == 4, position
            assert list(MessageBlock(stored, 0, 4)) == [view.to_message("b") for view in views], position
    assert noticed >= 2 * end - 2 * 20, "but for the name of the checksum itself, nothing that it covers"


@pytest.mark.parametrize(
    "bad",
    [
        replace(tea(1), sys_flag=SYS_COMPRESSED),
        replace(tea(1), sys_flag=SYS_INNER_BATCH),
        tea(0),
        tea(9),
        tea(1, "INNER_MULTI_DISPATCH\1a,b\2"),
    ],
    ids=["compressed", "batch", "repeated", "beyond the answer", "of several queues"],
)
def test_what_needs_a_closer_look_is_not_taken(bad: Record) -> None:
    assert messages_in_place(tea(0).encode() + tea(1).encode(), "b", 0, 3) is not None
    assert messages_in_place(tea(0).encode() + bad.encode(), "b", 0, 3) is None
    assert messages_in_place(tea(0).encode() + tea(1).encode()[:-1], "b", 0, 3) is None
    assert messages_in_place(tea(0).encode(), "b", 1, 3) is None, "below what was asked for"


def test_a_topic_too_long_for_version_1_is_left_to_others() -> None:
    record = bytearray(replace(tea(0), topic="t" * 127, properties="a\1" + "b" * 100 + "\2").encode())
    at = record.index(b"\x7f" + b"t" * 127)
    record[at] = 128  # what Java reads as -128
    assert messages_in_place(bytes(record), "b", 0, 3) is None


@each_input
@given(
    st.lists(st.sampled_from(["", "hot", "Aa", "BB", "grün", "hot "]), max_size=12),
    st.sampled_from(["*", "hot", "Aa||grün"]),
)
def test_tags_are_compared_as_the_messages_show_them(tags: list[str], wanted: str) -> None:
    subscription = Subscription.parse(wanted)
    listed = [tea(number, f"TAGS\1{tag}\2" if tag else "") for number, tag in enumerate(tags)]
    stored = messages_in_place(b"".join(record.encode() for record in listed), "b", 0, FAR)
    assert stored is not None
    chosen = stored.matching(subscription)
    expected = [one for one in (r.to_message("b") for r in listed) if subscription.matches(one.tags or None)]
    assert list(MessageBlock(chosen, 0, chosen.count)) == expected


def test_a_redelivered_message_has_its_first_topic_and_its_queue() -> None:
    listed = [tea(0), replace(tea(1, "RETRY_TOPIC\1tea\2"), topic="%RETRY%g"), tea(2, "note\1RETRY_TOPIC\2")]
    shown = list(in_place(listed, original_topics=True))
    assert [message.topic for message in shown] == [SAMPLE.topic, "tea", SAMPLE.topic]
    assert shown[1].queue.topic == "%RETRY%g"
    assert [message.topic for message in in_place(listed)] == [SAMPLE.topic, "%RETRY%g", SAMPLE.topic]


def test_a_block_is_a_sequence_whose_slices_are_blocks() -> None:
    block = in_place([tea(number) for number in range(20)])
    assert len(block) == 20
    assert list(block.offsets) == list(range(20))
    assert list(block.body_sizes) == [len(b"cup %d" % number) for number in range(20)]
    part = block[3:15][2:4]
    assert isinstance(part, MessageBlock)
    assert ([message.queue_offset for message in part], list(part.offsets)) == ([5, 6], [5, 6])
    assert (block[-1].queue_offset, block[0].body, part[1].queue_offset) == (19, b"cup 0", 6)
    assert len(block[9:3]) == 0
    for wrong in (20, -21):
        with pytest.raises(IndexError):
            block[wrong]
    with pytest.raises(IndexError):
        part[2]
    with pytest.raises(ValueError, match="steps"):
        block[::2]


def test_a_message_behaves_like_one_that_was_built() -> None:
    record = tea(0, "TAGS\1hot\2KEYS\1a b\2cups\0012\2")
    built = record.to_message("b")
    for lazy in (lambda: in_place([record])[0],):
        assert lazy() == built
        assert built == lazy()
        assert repr(lazy()) == repr(built)
        assert asdict(lazy()) == asdict(built)
        assert replace(lazy(), reconsume_times=3) == replace(built, reconsume_times=3)
        assert lazy() != replace(built, flag=77)
        assert lazy().text == "cup 0"
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(lazy(), protocol)) == built
        assert copy.copy(lazy()) == copy.deepcopy(lazy()) == built
        with pytest.raises(AttributeError, match="cannot assign"):
            lazy().body = b"other"  # type: ignore[misc]
        with pytest.raises(AttributeError, match="'colour'"):
            lazy().colour  # type: ignore[attr-defined]  # noqa: B018
        with pytest.raises(TypeError, match="unhashable"):  # because of the properties, as always
            hash(lazy())
        with pytest.raises(TypeError, match="unhashable"):
            hash(built)


def test_changing_the_properties_of_a_message_changes_nothing_else() -> None:
    message = in_place([tea(0, "TAGS\1hot\2")])[0]
    message.properties["TAGS"] = "cold"  # type: ignore[index]
    assert message.tags == "hot"
    assert message.properties["TAGS"] == "cold"


def test_a_detached_message_keeps_only_its_own_memory() -> None:
    listed = [replace(tea(number), body=bytes(10_000)) for number in range(10)]
    message = in_place(listed)[3]
    assert message.pinned_bytes > 100_000
    before = sys.getrefcount(message._stored)
    stored = message._stored
    assert message.detach() is message
    assert message.pinned_bytes == 0
    assert sys.getrefcount(stored) <= before
    assert message == listed[3].to_message("b")
    assert message.detach() == message
    assert listed[3].to_message("b").pinned_bytes == 0, "one that was built pins nothing"
    assert listed[3].to_message("b").detach().pinned_bytes == 0
    assert pickle.loads(pickle.dumps(in_place(listed)[3])).pinned_bytes == 0


def test_threads_may_read_while_another_one_detaches() -> None:
    expected = [tea(number, "TAGS\1hot\2") for number in range(200)]
    block = list(in_place(expected))
    wrong: list[object] = []

    def read() -> None:
        for message, record in zip(block, expected, strict=True):
            if (message.body, message.tags, message.queue_offset) != (record.body, "hot", record.queue_offset):
                wrong.append(message)

    def detach() -> None:
        for message in block:
            message.detach()

    threads = [threading.Thread(target=work) for work in (read, detach, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_cached_message_takes_little_more_than_its_bytes() -> None:
    """Per message that waits: its stored bytes and a fifth of a KB, whatever it weighs."""
    listed = [replace(tea(number), body=bytes(100)) for number in range(512)]
    stored = messages_in_place(b"".join(record.encode() for record in listed), "b", 0, FAR)
    assert isinstance(stored, StoredMessages)
    assert stored.pinned_bytes / 512 <= 1.3 * listed[0].size + 200
