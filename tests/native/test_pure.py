"""Bursts: what is taken, what is left, what is answered, and that nothing is ever half done."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kappamq.native.layout import (
    BAD,
    BATCH_PAIRS_MAX,
    DONE,
    EMPTY,
    FULL,
    LEFT,
    NEED_ENTRIES,
    NO_MESSAGES,
    PAUSE,
    SegmentFull,
)
from kappamq.native.pure_record import check_host, parse
from tests.native import requests
from tests.native.conftest import BORN, HOST, NOW, SETTINGS
from tests.native.requests import KEY, answers, member, properties, pull, send

Make = Callable[..., Any]
ADDED = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"


def burst(kernel: Any, data: bytes, position: int = 0) -> Any:
    return kernel.burst(data, position, BORN, NOW)


def records(data: bytes) -> list[Any]:
    found, at = [], 0
    while at < len(data):
        fields = parse(data, at, len(data))
        assert not isinstance(fields, int)
        found.append(fields)
        at += fields[0]
    return found


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("code", [310, 10])
def test_a_send_is_stored_and_answered(make: Make, module: ModuleType, code: int, binary: bool) -> None:
    kernel = make()
    data = send(code=code, binary=binary, opaque=77)
    consumed, verdict, acks, end, replies, pulls, commits, notes = burst(kernel, data)
    assert (consumed, verdict, replies, pulls, commits, notes) == (len(data), DONE, b"", [], [], [])
    ((head, _),) = answers(acks)
    assert head["opaque"] == 77
    assert head["extFields"] == {
        "msgId": HOST.hex().upper() + "0" * 16,
        "queueId": "1",
        "queueOffset": "0",
        "transactionId": KEY,
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert end == kernel.append_offset == kernel.put_bytes
    start, record = kernel.take()
    assert start == 0
    assert len(record) == end
    (fields,) = records(record)
    assert fields[9].startswith(properties(TAGS="TagA", KEYS="k1 k2").encode() + ADDED + b"__CRC32#\x01")
    assert fields[1:6] == (1, 0, 0, 0, NOW)
    assert record[fields[6] : fields[6] + fields[7]] == b"hello"
    assert struct.unpack_from(">i", record, 16) == (7,)
    assert struct.unpack_from(">q8s", record, 40) == (
        1700000000123,
        BORN,
    )
    assert module.scan(record, 0, True)[0] == end
    assert (kernel.fast_frames, kernel.left_frames, kernel.put_count) == (1, 0, 1)


def test_frames_cut_anywhere(make: Make) -> None:
    kernel = make()
    data = send() + send(binary=True) + send(body=b"x" * 50)
    ends = [len(send()), len(send()) + len(send(binary=True)), len(data)]
    for cut in range(len(data)):
        kernel.take()
        consumed, verdict, acks, *_ = burst(kernel, data[:cut])
        whole = [end for end in ends if end <= cut]
        assert (consumed, verdict, len(answers(acks))) == (max(whole, default=0), DONE, len(whole))


def test_the_first_frame_that_is_not_plain_stops_it(make: Make) -> None:
    kernel = make()
    odd = requests.framed(requests.header(34, {}), b"{}")
    data = send(opaque=1) + send(opaque=2) + odd + send(opaque=3)
    consumed, verdict, acks, *_ = burst(kernel, data)
    assert verdict == LEFT
    assert data[consumed:].startswith(odd)
    assert [head["opaque"] for head, _ in answers(acks)] == [1, 2]
    consumed, verdict, acks, *_ = burst(kernel, data, consumed + len(odd))
    assert (consumed, verdict) == (len(data), DONE)
    assert [head["opaque"] for head, _ in answers(acks)] == [3]
    assert (kernel.fast_frames, kernel.left_frames) == (3, 1)


@pytest.mark.parametrize(
    "claim",
    [
        struct.pack(">i", 3), struct.pack(">i", -1), struct.pack(">i", (1 << 24) + 1), struct.pack(">iI", 100, 97),
        struct.pack(">iI", 100, 2 << 24),
        struct.pack(">iI", 1 << 20, (1 << 18) + 1),
    ],
)  # fmt: skip
def test_a_claim_that_no_frame_may_make_is_refused_at_once(make: Make, claim: bytes) -> None:
    kernel = make()
    consumed, verdict, acks, *_ = burst(kernel, send() + claim)
    assert (consumed, verdict) == (len(send()), BAD)
    assert len(answers(acks)) == 1


@pytest.mark.parametrize(
    ("changed", "body"),
    [
        ({"b": "other"}, b"x"), ({"b": "full"}, b"x"), ({"e": "4"}, b"x"), ({}, b""), ({}, b"x" * 101),
        ({"i": properties(DELAY="3")}, b"x"),
        ({"i": properties(WAIT="false")}, b"x"), ({"i": "TAGS\x01a\x02"}, b"x"), ({"i": properties(UNIQ_KEY='a"b')}, b"x"),
        ({"i": properties(UNIQ_KEY="a\x7fb")}, b"x"), ({"i": properties(a="x" * 33000)}, b"x"), ({"f": "4"}, b"x"),
    ],
)  # fmt: skip
def test_what_is_not_plain_leaves_no_trace(make: Make, changed: dict[str, str], body: bytes) -> None:
    kernel = make(message_bytes_max=100)
    kernel.set_topic("full", 4, 4, 2)
    assert burst(kernel, send(body, **changed))[:4] == (0, LEFT, b"", 0)
    assert kernel.take() == (0, b"")
    assert kernel.put_count == 0


def test_not_accepting(make: Make) -> None:
    kernel = make()
    kernel.accepting = False
    assert burst(kernel, send())[1] == LEFT
    kernel.accepting, kernel.force_slow = True, True
    assert burst(kernel, send())[1] == LEFT
    kernel.force_slow = False
    assert burst(kernel, send())[1] == DONE
    kernel.set_topic("tea", 1, 4, 3)
    assert burst(kernel, send())[1] == LEFT, "queue 1 is gone for senders"
    kernel.set_topic("tea", 4, 4, 2)
    assert burst(kernel, send(e="0"))[1] == LEFT


def test_one_way_is_not_answered(make: Make) -> None:
    kernel = make()
    assert burst(kernel, send(flag=2))[1:3] == (DONE, b"")
    assert kernel.put_count == 1
    assert burst(kernel, send(flag=1))[1] == LEFT


def test_queue_offsets_run_ahead_of_dispatch(make: Make) -> None:
    kernel = make()
    acks = b"".join(burst(kernel, send(e=queue))[2] for queue in ("0", "1", "0", "0"))
    assert [head["extFields"]["queueOffset"] for head, _ in answers(acks)] == ["0", "0", "1", "2"]


def test_properties_without_a_last_separator(make: Make) -> None:
    kernel = make(tail_crc=False)
    burst(kernel, send(i=properties(a="b")[:-1]))
    assert records(kernel.take()[1])[0][9].startswith(properties(a="b").encode() + b"MSG_REGION\x01")


def test_v6_hosts(make: Make, module: ModuleType) -> None:
    kernel = make(store_host=bytes(range(20)))
    assert kernel.store_host == bytes(range(20))
    acks = kernel.burst(send(), 0, bytes(20), NOW)[2]
    assert answers(acks)[0][0]["extFields"]["msgId"] == bytes(range(20)).hex().upper() + "0" * 16
    start, data = kernel.take()
    assert module.scan(data, start, True)[0] == len(data)
    assert records(data)[0][4] == 0x30
    kernel.store_host = HOST
    assert answers(kernel.burst(send(), 0, BORN, NOW)[2])[0][0]["extFields"]["msgId"].startswith(HOST.hex().upper())
    for bad in (b"", b"1234567", bytes(21)):
        with pytest.raises(ValueError, match="8 or 20 bytes"):
            kernel.store_host = bad
        with pytest.raises(ValueError, match="8 or 20 bytes"):
            kernel.burst(b"", 0, bad, NOW)
        with pytest.raises(ValueError, match="8 or 20 bytes"):
            check_host(bad)


# -- room --------------------------------------------------------------------------------------------------------------


def test_a_segment_is_filled_to_the_last_byte_but_its_end_mark(make: Make) -> None:
    size = burst(make(), send())[3]
    for spare, verdict in ((8, DONE), (7, FULL)):
        kernel = make()
        kernel.open_segment(1000, 1000 + 2 * size + spare)
        assert burst(kernel, send() * 2)[:2] == ((2 if verdict == DONE else 1) * len(send()), verdict)
        assert burst(kernel, send())[1] == FULL
        start, data = kernel.take()
        kernel.open_segment(start + len(data) + 100, 1 << 20)
        assert burst(kernel, send())[1] == DONE


def test_pending_is_bounded_but_for_one(make: Make) -> None:
    size = burst(make(), send())[3]
    kernel = make(pending_bytes_max=size * 2)
    assert burst(kernel, send() * 3)[:2] == (2 * len(send()), FULL)
    kernel.take()
    kernel.pending_bytes_max = 1
    assert burst(kernel, send() * 3)[:2] == (len(send()), FULL)


def test_a_queue_ends_somewhere(make: Make, module: ModuleType) -> None:
    """Behind the largest offset nothing is appended: dispatch would take it for damage."""
    source = make()
    source.append("tea", 1, 0, 0, NOW, BORN, 0, 0, b"x", b"", NOW)
    record = bytearray(source.take()[1])
    record[20:28] = (1 << 58).to_bytes(8, "big")
    kernel = make()
    assert kernel.dispatch(record, 0)[0] == len(record)
    assert kernel.queue_state("tea", 1).end == (1 << 58) + 1
    assert burst(kernel, send())[1] == LEFT
    assert burst(kernel, batch(member(b"x")))[1] == LEFT
    with pytest.raises(ValueError, match="the queue is full"):
        kernel.append("tea", 1, 0, 0, NOW, BORN, 0, 0, b"x", b"", NOW)
    with pytest.raises(ValueError, match="a queue is full"):
        kernel.append_group([group_member("tea", 1, b"x")], NOW)
    assert kernel.take() == (0, b"")


def test_open_segment_checks(make: Make) -> None:
    kernel = make()
    for bad in ((-1, 5), (6, 5), (0, 1 << 62)):
        with pytest.raises(ValueError, match="no log file holds"):
            kernel.open_segment(*bad)
    burst(kernel, send())
    with pytest.raises(AssertionError):
        kernel.open_segment(0, 5)


# -- batches -----------------------------------------------------------------------------------------------------------


def batch(*members: bytes, **changed: str | None) -> bytes:
    return send(b"".join(members), code=320, m="true", **changed)


@pytest.mark.parametrize("count", [1, 2, 40])
def test_a_batch_becomes_records(make: Make, module: ModuleType, count: int) -> None:
    kernel = make()
    burst(kernel, send())
    before = kernel.append_offset
    _, verdict, acks, end, *_ = burst(kernel, batch(*[member(b"body%d" % n, b"k\x01%d" % n, n) for n in range(count)]))
    ((head, _),) = answers(acks)
    ids = head["extFields"]["msgId"].split(",")
    assert verdict == DONE
    assert len(ids) == count
    assert head["extFields"]["queueOffset"] == "1"
    assert "transactionId" not in head["extFields"]
    start, data = kernel.take()
    assert module.scan(data, start, True)[:3] == (len(data), 0, count + 1)
    made = records(data[before:])
    assert [int(name[16:], 16) for name in ids] == [fields[3] for fields in made]
    assert [fields[2] for fields in made] == list(range(1, count + 1))
    mark = b"__BATCH#\x01%010d\x02" % (end - before) if count > 1 else b""
    # The properties of the batch itself, but not its key, and what the broker adds.
    more = b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02" + ADDED
    assert made[0][9].startswith(b"k\x010\x02" + more + mark + b"__CRC32#\x01")
    if count > 1:
        assert made[1][9].startswith(b"k\x011\x02" + more + b"__CRC32#\x01")
        half = data[: before + made[0][0] + 20]
        assert module.scan(half, start, True)[:3] == (before, 0, 1), "half a batch is nothing"


def test_a_batch_is_all_or_nothing(make: Make) -> None:
    members = [member(b"x" * 100) for _ in range(10)]
    size = burst(make(), batch(*members))[3]
    kernel = make()
    kernel.open_segment(0, size + 7)
    assert burst(kernel, batch(*members))[:4] == (0, FULL, b"", 0)
    assert kernel.take() == (0, b"")
    assert kernel.queue_state("tea", 1).next == 0
    kernel.open_segment(0, size + 8)
    assert burst(kernel, batch(*members))[1] == DONE


@pytest.mark.parametrize(
    "bad",
    [
        member(b"x", b"DELAY\x011\x02"), member(b"x", b"WAIT\x01false\x02"), member(b"x", b"\xff\x01a\x02"), member(b""), member(b"x")[:-1],
        member(b"x", b"a\x01" + b"b" * 32760),
    ],
)  # fmt: skip
def test_one_bad_member_leaves_the_whole_batch(make: Make, bad: bytes) -> None:
    kernel = make()
    assert burst(kernel, batch(member(b"x"), member(b"y"), bad))[:4] == (0, LEFT, b"", 0)
    assert kernel.take() == (0, b"")
    assert kernel.queue_state("tea", 1).next == 0


@pytest.mark.parametrize("changed", [{"m": "false"}, {"m": None}, {"i": "DELAY\x013\x02"}, {"i": "WAIT\x01false\x02"}])
def test_a_batch_that_is_none(make: Make, changed: dict[str, str | None]) -> None:
    assert burst(make(), send(member(b"x"), code=320, **{"m": "true", **changed}))[1] == LEFT


def test_members_inherit_what_they_do_not_say_themselves(make: Make) -> None:
    kernel = make()
    own = "a\x011\x02UNIQ_KEY\x01whole\x02b\x012"
    parts = [member(b"x"), member(b"x", b"b\x019"), member(b"x", b"a\x017\x02b\x019\x02UNIQ_KEY\x01u")]
    assert burst(kernel, batch(*parts, i=own))[1] == DONE
    texts = [fields[9].partition(b"MSG_REGION")[0] for fields in records(kernel.take()[1])]
    assert texts == [b"a\x011\x02b\x012\x02", b"b\x019\x02a\x011\x02", b"a\x017\x02b\x019\x02UNIQ_KEY\x01u\x02"]


@pytest.mark.parametrize(
    ("own", "verdict"),
    [
        ("".join(f"n{n}\x01v\x02" for n in range(BATCH_PAIRS_MAX)), DONE),
        ("UNIQ_KEY\x01u\x02" + "".join(f"n{n}\x01v\x02" for n in range(BATCH_PAIRS_MAX)) + "UNIQ_KEY\x01v", DONE),
        ("".join(f"n{n}\x01v\x02" for n in range(BATCH_PAIRS_MAX + 1)), LEFT),
        ("a\x011\x02b\x012\x02a\x013", LEFT),
        ("a\x01" + "b" * 32_000, DONE),
        ("a\x01" + "b" * 32_700, LEFT),
    ],
)
def test_what_a_batch_may_hand_on(make: Make, own: str, verdict: int) -> None:
    assert burst(make(), batch(member(b"x"), i=own))[1] == verdict


def test_what_is_handed_on_counts_for_each_member(make: Make) -> None:
    members = [member(b"x") for _ in range(10)]
    room = sum(map(len, members)) + 10 * len(b"a\x01bcd\x02")
    assert burst(make(message_bytes_max=room), batch(*members, i="a\x01bcd"))[1] == DONE
    assert burst(make(message_bytes_max=room - 1), batch(*members, i="a\x01bcd"))[1] == LEFT


def test_a_batch_needs_no_key_of_its_own(make: Make) -> None:
    assert burst(make(), batch(member(b"x"), i=None))[1] == DONE


# -- the slow path -----------------------------------------------------------------------------------------------------


def test_append(make: Make, module: ModuleType) -> None:
    kernel = make()
    assert kernel.append("new", 70_000, -5, 0x701, NOW, BORN, 3, 1 << 40, b"", b"a\x01b", NOW)[:2] == (0, 0)
    log_offset, queue_offset, size = kernel.append("new", 70_000, -5, 0x701, NOW, BORN, 3, 1 << 40, b"", b"a\x01b", NOW)
    start, data = kernel.take()
    assert (log_offset, queue_offset, size * 2) == (size, 1, len(data))
    assert module.scan(data, start, True)[0] == len(data)
    assert b"a\x01b\x02__CRC32#" in data
    assert struct.unpack_from(">iq", data, 72) == (3, 1 << 40)


def test_append_takes_other_buffers(make: Make) -> None:
    kernel = make(tail_crc=False)
    kernel.append("tea", 0, 0, 0, NOW, BORN, 0, 0, memoryview(b"body"), b"", NOW)
    first = kernel.take()[1]
    kernel.open_segment(0, 1 << 20)
    assert b"body" in first


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (1, -1),
        (1, 1 << 31),
        (2, 1 << 31),
        (3, -(1 << 31) - 1),
        (4, 1 << 63),
        (6, 1 << 31),
        (7, -(1 << 63) - 1),
        (9, b"x" * 32768),
        (10, 1 << 63),
    ],
)
def test_append_refuses_what_no_record_can_hold(make: Make, place: int, value: object) -> None:
    arguments: list[object] = ["tea", 0, 0, 0, NOW, BORN, 0, 0, b"x", b"", NOW]
    arguments[place] = value
    kernel = make()
    with pytest.raises(ValueError):
        kernel.append(*arguments)
    assert kernel.take() == (0, b"")


def test_append_without_room(make: Make) -> None:
    kernel = make()
    kernel.open_segment(0, 150)
    with pytest.raises(SegmentFull) as caught:
        kernel.append("tea", 0, 0, 0, NOW, BORN, 0, 0, b"x" * 100, b"", NOW)
    assert caught.value.args == (88 + 100 + 4 + 2 + 20,)


def group_member(topic: str, queue_id: int, body: bytes, properties: bytes = b"", sys_flag: int = 0) -> Any:
    return topic, queue_id, 5, sys_flag, NOW, BORN, 1, 4711, body, properties


def test_append_group(make: Make, module: ModuleType) -> None:
    kernel = make()
    kernel.append("tea", 0, 0, 0, NOW, BORN, 0, 0, b"before", b"", NOW)
    members = [
        group_member("tea", 0, b"a", b"k\x01v"), group_member("new", 3, b"b"), group_member("tea", 0, b"c"),
        group_member("tea", 0, b"half", sys_flag=4),
    ]  # fmt: skip
    placed = kernel.append_group(members, NOW)
    start, data = kernel.take()
    assert [queue_offset for _at, queue_offset, _size in placed] == [1, 0, 2, 0]
    assert [at for at, _queue_offset, _size in placed] == [fields[3] for fields in records(data)][1:]
    assert module.scan(data, start, True)[2] == 5
    first = placed[0][0] - start
    # Whoever finds less than all of the group finds nothing of it.
    assert module.scan(data[:-1], start, True)[0] == first
    assert module.scan(data[: placed[2][0]], start, True)[2] == 1
    assert kernel.queue_state("tea", 0).next == 3


def test_a_group_of_one_is_a_plain_record(make: Make) -> None:
    alone, grouped = make(), make()
    alone.append("tea", 0, 5, 0, NOW, BORN, 1, 4711, b"a", b"k\x01v", NOW)
    grouped.append_group([group_member("tea", 0, b"a", b"k\x01v")], NOW)
    assert alone.take() == grouped.take()


def test_append_group_all_or_none(make: Make) -> None:
    kernel = make()
    with pytest.raises(ValueError, match="at least one"):
        kernel.append_group([], NOW)
    with pytest.raises(ValueError, match="longer than"):
        kernel.append_group([group_member("tea", 0, b"a"), group_member("tea", 0, b"a", b"x" * 32768)], NOW)
    kernel.open_segment(0, 300)
    with pytest.raises(SegmentFull) as caught:
        kernel.append_group([group_member("tea", 0, b"x" * 100), group_member("tea", 0, b"y" * 100)], NOW)
    assert caught.value.args == (2 * (88 + 100 + 4 + 2 + 20) + 20,)
    assert kernel.take()[1] == b""
    assert kernel.queue_state("tea", 0).next == 0


# -- pulls -------------------------------------------------------------------------------------------------------------


def filled(make: Make, count: int = 3, **changed: Any) -> Any:
    kernel = make(**changed)
    kernel.set_row(7, "shop", "tea", False, 100, None)
    burst(kernel, send() * count)
    start, data = kernel.take()
    view = bytearray(kernel.segment_bytes)
    view[: len(data)] = data
    kernel.map_segment(0, view)
    kernel.dispatch(data, start)
    return kernel


@pytest.mark.parametrize("binary", [False, True])
def test_a_pull_is_answered(make: Make, binary: bool) -> None:
    kernel = filled(make)
    consumed, verdict, acks, _, replies, pulls, commits, _ = burst(kernel, pull(binary=binary, opaque=5) * 2)
    assert (verdict, acks, pulls, commits) == (DONE, b"", [], [(7, 1, 5)] * 2)
    assert consumed == 2 * len(pull(binary=binary, opaque=5))
    for head, body in answers(replies):
        assert head["opaque"] == 5
        assert head["remark"] == "FOUND"
        assert len(records_from(body)) == 3
        assert head["extFields"]["nextBeginOffset"] == head["extFields"]["maxOffset"] == "3"


def records_from(body: bytes) -> list[bytes]:
    found = []
    while body:
        size = int.from_bytes(body[:4], "big")
        found.append(body[:size])
        body = body[size:]
    return found


def test_what_a_pull_may_need(make: Make) -> None:
    kernel = filled(make)
    _, verdict, _, _, replies, pulls, commits, _ = burst(
        kernel, pull(queueOffset="3", sysFlag="2") + pull(queueId="2", maxMsgNums="99", sysFlag="1")
    )
    assert (verdict, replies, commits) == (DONE, b"", [])
    assert pulls == [
        (EMPTY, 7, 1, 3, 32, 2, 15000, 9, False, (3, 0, 3)),
        (NO_MESSAGES, 7, 2, 0, 32, 1, 15000, 9, False, (0, 0, 0)),
    ]
    assert [type(value) for value in pulls[0]] == [int] * 8 + [bool, tuple]
    kernel.set_queue("tea", 1, 0, 3)
    assert burst(kernel, pull(binary=True))[5] == [(NEED_ENTRIES, 7, 1, 0, 32, 3, 15000, 9, True, (0, 0, 3))]


@pytest.mark.parametrize(
    "frame",
    [
        pull(topic="other"), pull(consumerGroup="other"), pull(queueId="4"), pull(subVersion="101"), pull(body=b"x"), pull(flag=2),
        pull(sysFlag="7"),
        pull(subscription="A", sysFlag="7"),
    ],
)  # fmt: skip
def test_pulls_that_are_left(make: Make, frame: bytes) -> None:
    assert burst(filled(make), frame)[1:] == (LEFT, b"", burst(filled(make), b"")[3], b"", [], [], [])


def test_rows(make: Make) -> None:
    kernel = filled(make)
    kernel.set_row(8, "shop", "tea", True, 0, frozenset([5]))
    assert burst(kernel, pull(sysFlag="6", subVersion="999"))[5][0][1] == 8, "its own subscription needs no version"
    kernel.set_row(9, "shop", "tea", False, 200, None)
    assert burst(kernel, pull(queueOffset="3", subVersion="150"))[5][0][1] == 9
    kernel.drop_row("shop", "tea", False)
    kernel.drop_row("nobody", "tea", False)
    assert burst(kernel, pull())[1] == LEFT
    assert burst(kernel, pull(sysFlag="6"))[1] == DONE
    for number in range(300):
        kernel.set_row(number, f"g{number}", "tea", False, 0, None)
    for number in range(0, 300, 2):
        kernel.drop_row(f"g{number}", "tea", False)
    verdicts = [burst(kernel, pull(consumerGroup=f"g{number}", subVersion="0"))[1] for number in range(300)]
    assert verdicts == [LEFT, DONE] * 150


def test_sends_and_pulls_of_one_read(make: Make) -> None:
    """Answers to sends wait for the log, those to pulls do not; a pull does not see what the same read brought."""
    kernel = filled(make)
    _, verdict, acks, end, replies, pulls, *_ = burst(kernel, send() + pull(queueOffset="3") + pull() + send())
    assert verdict == DONE
    assert len(answers(acks)) == 2
    assert len(answers(replies)) == 1
    assert pulls[0][0] == EMPTY
    assert end == kernel.append_offset


def test_enough_is_enough(make: Make) -> None:
    """A read full of pulls is answered a megabyte at a time; nothing of it is lost or answered twice."""
    kernel = filled(make, count=600, segment_bytes=4 << 20, pending_bytes_max=4 << 20, transfer_count_max=1000)
    frames = pull(maxMsgNums="1000") * 40
    position, verdict, answered = 0, PAUSE, []
    while verdict == PAUSE:
        position, verdict, _, _, replies, *_ = burst(kernel, frames, position)
        assert len(replies) < 2 << 20
        answered += answers(replies)
    assert (position, verdict, len(answered)) == (len(frames), DONE, 40)
    assert len({body for _, body in answered}) == 1


def test_settings_can_be_read_and_changed(module: ModuleType) -> None:
    kernel = module.Kernel(**SETTINGS)
    for name, value in SETTINGS.items():
        if name not in ("region", "cluster", "trace_on"):
            assert getattr(kernel, name) == value
    numbers = """message_bytes_max frame_bytes_max header_bytes_max pending_bytes_max transfer_bytes_max transfer_count_max
    tail_bytes_max hot_from log_min fast_frames left_frames put_count put_bytes get_count get_bytes"""
    for name in numbers.split():
        setattr(kernel, name, 12345)
        assert getattr(kernel, name) == 12345
    for name in ("tail_crc", "accepting", "force_slow", "index_enabled"):
        for value in (True, False):
            setattr(kernel, name, value)
            assert getattr(kernel, name) is value
    with pytest.raises(ValueError, match="segment_bytes"):
        module.Kernel(**{**SETTINGS, "segment_bytes": 0})
    with pytest.raises(ValueError):
        module.Kernel(**{**SETTINGS, "store_host": b"x"})
