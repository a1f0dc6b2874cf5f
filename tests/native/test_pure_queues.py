"""Queues: what dispatch enters, what a pull gets, what memory keeps."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.native import map_file
from kappamq.native.layout import (
    BROKEN,
    COLD,
    EMPTY,
    ENTRY,
    FOUND,
    GONE,
    INDEX_PENDING,
    NEED_ENTRIES,
    NO_MATCH,
    NO_MESSAGES,
    TAIL_KEEP_BYTES,
    TOO_LARGE,
    TOO_SMALL,
)  # fmt: skip
from kappamq.native.pure_record import index_hash, java_hash
from tests.native import requests
from tests.native.conftest import BORN, NOW, SETTINGS, load_kernel

Make = Callable[..., Any]


def append(
    kernel: Any,
    count: int = 1,
    *,
    topic: str = "tea",
    queue_id: int = 0,
    text: bytes = b"",
    body: bytes = b"hello",
    sys_flag: int = 0,
) -> None:
    for _ in range(count):
        kernel.append(topic, queue_id, 0, sys_flag, NOW, BORN, 0, 0, body, text, NOW)


def publish(kernel: Any) -> list[tuple[str, int]]:
    """Write what is pending to a map of its own and let everybody see it; the queues that woke."""
    start, data = kernel.take()
    segment = start - start % kernel.segment_bytes
    view = bytearray(kernel.segment_bytes)
    view[start - segment : start - segment + len(data)] = data
    kernel.map_segment(segment, view)
    eaten, woken = kernel.dispatch(data, start)
    assert eaten == len(data)
    return woken


def test_entries_name_the_records(make: Make) -> None:
    kernel = make()
    append(kernel, 2, text=b"TAGS\x01TagA\x02")
    append(kernel, 1, queue_id=3)
    assert kernel.queue_state("tea", 0) == (0, 0, 2, 0)
    publish(kernel)
    assert kernel.queue_state("tea", 0) == (0, 2, 2, 0)
    assert kernel.dirty_queues() == 2
    taken = kernel.take_entries(100)
    assert [(topic, queue_id, first) for topic, queue_id, first, _ in taken] == [("tea", 0, 0), ("tea", 3, 0)]
    first, second = (ENTRY.unpack_from(taken[0][3], at) for at in (0, 20))
    assert first == (0, second[0], java_hash(b"TagA"))
    assert ENTRY.unpack(taken[1][3]) == (
        2 * second[0],
        second[0] - 10,
        0,
    )
    assert kernel.queue_state("tea", 0) == (0, 2, 2, 2)
    assert kernel.take_entries(100) == []
    assert kernel.dirty_queues() == 0
    assert kernel.queue_ids("tea") == [0, 3]
    assert kernel.queue_ids("other") == []
    assert kernel.queue_state("tea", 2) == kernel.queue_state("other", 0) == (0, 0, 0, 0)


def test_taken_in_the_order_of_their_first_entry(make: Make) -> None:
    kernel = make()
    for queue_id in (2, 0, 3, 2):
        append(kernel, queue_id=queue_id)
    publish(kernel)
    assert [entry[1] for entry in kernel.take_entries(2)] == [2, 0]
    append(kernel, queue_id=2)
    publish(kernel)
    assert [entry[1:3] for entry in kernel.take_entries(9)] == [(3, 0), (2, 2)]


def test_many_topics_and_queues(make: Make) -> None:
    kernel = make()
    for number in range(300):
        kernel.set_topic(f"topic{number}", 4, 4, 3)
        append(kernel, topic=f"topic{number}", queue_id=number * 7919)
        append(kernel, topic="tea", queue_id=number * 1024)
    publish(kernel)
    assert kernel.dirty_queues() == 600
    assert kernel.queue_ids("tea") == [number * 1024 for number in range(300)]
    for number in range(300):
        assert kernel.queue_state(f"topic{number}", number * 7919) == (0, 1, 1, 0)
        assert kernel.queue_state(f"topic{number}", number * 7919 + 1) == (0, 0, 0, 0)
    assert {(topic, queue_id) for topic, queue_id, *_ in kernel.take_entries(1000)} == {
        (f"topic{number}", number * 7919) for number in range(300)
    } | {("tea", number * 1024) for number in range(300)}


def test_dispatching_twice_changes_nothing(make: Make) -> None:
    kernel = make()
    append(kernel, 3)
    start, data = kernel.take()
    kernel.dispatch(data, start)
    before = kernel.take_entries(9)
    assert kernel.dispatch(data, start)[0] == len(data)
    assert kernel.queue_state("tea", 0) == (0, 3, 3, 3)
    assert kernel.take_entries(9) == []
    assert len(before) == 1


def test_dispatch_stops_at_what_is_no_whole_record(make: Make) -> None:
    kernel = make()
    append(kernel, 2)
    _, data = kernel.take()
    half = len(data) // 2
    assert kernel.dispatch(data[:-1], 0)[0] == half
    assert kernel.queue_state("tea", 0).end == 1
    assert kernel.dispatch(data[:half] + b"x" * 200, 0)[0] == half


def test_numbering_that_jumps_begins_anew(make: Make) -> None:
    source, kernel = make(), make()
    append(source, 5)
    _, data = source.take()
    size = len(data) // 5
    kernel.dispatch(data[3 * size :], 3 * size)
    assert kernel.queue_state("tea", 0) == (3, 5, 5, 3)
    assert kernel.take_entries(9)[0][2] == 3


def test_woken_once(make: Make) -> None:
    kernel = make()
    kernel.watch("tea", 1, True)
    append(kernel, 2, queue_id=1)
    append(kernel, 1, queue_id=2)
    assert publish(kernel) == [("tea", 1)]
    append(kernel, 1, queue_id=1)
    assert publish(kernel) == []


def test_keys(make: Make) -> None:
    kernel = make()
    append(kernel, text=b"KEYS\x01k1  k2 \x02UNIQ_KEY\x01u\x02")
    size = kernel.append_offset
    append(kernel, text=b"KEYS\x01\x02UNIQ_KEY\x01\x02")
    publish(kernel)
    rows = list(INDEX_PENDING.iter_unpack(kernel.take_index()))
    assert rows == [(index_hash(java_hash(b"tea#" + key) & 0xFFFFFFFF), 0, NOW) for key in (b"u", b"k1", b"k2")]
    kernel.index_enabled = False
    append(kernel, text=b"KEYS\x01k1\x02")
    publish(kernel)
    assert kernel.take_index() == b""
    assert size > 0


def test_transactions(make: Make) -> None:
    """Prepared: in the index, in no queue. Rolled back: nowhere. Committed: as any other."""
    kernel = make()
    for sys_flag in (4, 12, 8):
        append(kernel, sys_flag=sys_flag, text=b"UNIQ_KEY\x01u\x02")
    assert kernel.queue_state("tea", 0).next == 1
    publish(kernel)
    assert kernel.queue_state("tea", 0)[:2] == (0, 1)
    assert len(kernel.take_index()) == 2 * INDEX_PENDING.size


def test_the_last_pair_that_is_one_counts(make: Make) -> None:
    kernel = make()
    append(kernel, text=b"TAGS\x01A\x02TAGS\x01B\x02TAGS\x01\x02xTAGS\x01C\x02y\x01TAGS\x02")
    publish(kernel)
    assert ENTRY.unpack(kernel.take_entries(1)[0][3])[2] == java_hash(b"B")


@pytest.mark.parametrize(
    ("level", "delay"), [(b"1", 1000), (b"2", 5000), (b"9", 10000), (b"0", 1000), (b"x", 1000), (b"1234567890", 1000)]
)
def test_delayed_records_carry_the_time_they_are_due(make: Make, level: bytes, delay: int) -> None:
    kernel = make()
    kernel.delays_ms = (1000, 5000, 10000)
    assert kernel.delays_ms == (1000, 5000, 10000)
    append(kernel, topic="SCHEDULE_TOPIC_XXXX", text=b"DELAY\x01" + level + b"\x02TAGS\x01A\x02")
    append(kernel, text=b"DELAY\x01" + level + b"\x02TAGS\x01A\x02")
    publish(kernel)
    assert [ENTRY.unpack(entry[3])[2] for entry in kernel.take_entries(9)] == [NOW + delay, java_hash(b"A")]


# -- pulls -------------------------------------------------------------------------------------------------------------


def pull(
    kernel: Any,
    offset: int,
    count: int = 32,
    codes: frozenset[int] | None = None,
    warm: bool = False,
    queue_id: int = 0,
    topic: str = "tea",
) -> tuple[int, Any]:
    result: tuple[int, Any] = kernel.pull(topic, queue_id, offset, count, codes, 7, False, warm)
    return result


def test_where_a_pull_can_stand(make: Make) -> None:
    kernel = make()
    assert pull(kernel, 0) == pull(kernel, 0, topic="other") == (NO_MESSAGES, (0, 0, 0))
    append(kernel, 5)
    assert pull(kernel, 0) == (NO_MESSAGES, (0, 0, 0))
    publish(kernel)
    assert pull(kernel, 5) == (EMPTY, (5, 0, 5))
    assert pull(kernel, 6) == (TOO_LARGE, (5, 0, 5))
    kernel.set_queue_min("tea", 0, 2)
    assert pull(kernel, 1) == (TOO_SMALL, (2, 2, 5))
    verdict, reply = pull(kernel, 2, 2)
    ((head, body),) = requests.answers(reply)
    assert verdict == FOUND
    assert head["extFields"] == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "4",
        "minOffset": "2",
        "maxOffset": "5",
    }
    assert struct.unpack_from(">q", body, 20) == (2,)
    assert len(body) == 2 * int.from_bytes(body[:4], "big")
    assert kernel.get_count == 2
    assert kernel.get_bytes == len(body)


def test_limits(make: Make) -> None:
    kernel = make(transfer_bytes_max=300)
    append(kernel, 4)
    size = kernel.append_offset // 4
    publish(kernel)
    ((_, body),) = requests.answers(pull(kernel, 0)[1])
    assert len(body) == 300 // size * size
    kernel.transfer_bytes_max = 1
    ((_, body),) = requests.answers(pull(kernel, 0)[1])
    assert len(body) == size, "one record always goes"


def test_filter(make: Make) -> None:
    kernel = make()
    for tag in (b"A", b"B", b"A", b""):
        append(kernel, text=b"TAGS\x01" + tag + b"\x02" if tag else b"")
    publish(kernel)
    wanted = frozenset([java_hash(b"A"), 1 << 40])
    ((head, body),) = requests.answers(pull(kernel, 0, codes=wanted)[1])
    assert head["extFields"]["nextBeginOffset"] == "4"
    assert body.count(b"hello") == 2
    assert pull(kernel, 3, codes=wanted) == (NO_MATCH, (4, 0, 4))
    assert pull(kernel, 0, codes=frozenset()) == (NO_MATCH, (4, 0, 4))


def test_a_filter_gives_up_after_800_entries(make: Make) -> None:
    kernel = make()
    append(kernel, 900)
    publish(kernel)
    assert pull(kernel, 10, codes=frozenset([5])) == (NO_MATCH, (810, 0, 900))


def test_cold_gone_and_unmapped(make: Make) -> None:
    kernel = make()
    append(kernel, 3)
    size = kernel.append_offset // 3
    publish(kernel)
    kernel.hot_from = size + 1
    assert pull(kernel, 0) == (COLD, (0, 3 * size))
    assert pull(kernel, 1, 1) == (COLD, (size, 2 * size))
    assert pull(kernel, 2)[0] == FOUND
    assert pull(kernel, 0, warm=True)[0] == FOUND
    kernel.log_min = size
    ((head, body),) = requests.answers(pull(kernel, 0, warm=True)[1])
    assert len(body) == 2 * size
    assert head["extFields"]["nextBeginOffset"] == "3"
    kernel.log_min = 3 * size
    assert pull(kernel, 0, warm=True) == (GONE, (3, 0, 3))
    kernel.log_min = 0
    kernel.map_segment(0, None)
    assert pull(kernel, 0, warm=True) == (BROKEN, (0, 0, 3))


def test_old_blocks_that_are_in_memory(make: Make) -> None:
    kernel = make()
    append(kernel, 3)
    size = kernel.append_offset // 3
    publish(kernel)
    kernel.hot_from = 3 * size
    assert pull(kernel, 0)[0] == COLD
    kernel.mark_warm(256, True)  # has the same place, and is another one
    assert pull(kernel, 0)[0] == COLD
    kernel.mark_warm(0, True)
    assert pull(kernel, 0)[0] == FOUND
    kernel.mark_warm(256, False)
    assert pull(kernel, 0)[0] == FOUND
    kernel.mark_warm(0, False)
    assert pull(kernel, 0)[0] == COLD
    for bad in (-1, (1 << 58) + 1):
        with pytest.raises(ValueError, match="no block"):
            kernel.mark_warm(bad, True)


def test_a_cold_record_ends_an_answer_from_memory(make: Make) -> None:
    """Entries may be in any order: those of an LMQ queue, which lists messages of other topics, are the only ones that really are."""
    kernel = make()
    append(kernel, 3)
    size = kernel.append_offset // 3
    publish(kernel)
    kernel.set_queue("%LMQ%tea", 0, 0, 3)
    entries = b"".join(ENTRY.pack(at * size, size, 0) for at in (2, 0, 1))
    kernel.lend_entries("%LMQ%tea", 0, 0, entries)
    kernel.hot_from = 2 * size
    found, answer = kernel.pull("%LMQ%tea", 0, 0, 32, None, 7, False, False)
    assert found == FOUND
    ((head, body),) = requests.answers(answer)
    assert (len(body), head["extFields"]["nextBeginOffset"]) == (size, "1")
    assert kernel.pull("%LMQ%tea", 0, 1, 32, None, 7, False, False) == (COLD, (0, 2 * size))


def test_records_that_do_not_lie_where_they_should(make: Make) -> None:
    """A pull ends before the first of them, so that nobody loses the good ones before it; the next one is told which it is."""
    kernel = make()
    append(kernel, 4)
    size = kernel.append_offset // 4
    start, data = kernel.take()
    kernel.dispatch(data, start)
    spoilt = data[: 2 * size] + bytes(4) + data[2 * size + 4 :]
    kernel.map_segment(0, spoilt.ljust(kernel.segment_bytes, b"\0"))
    ((head, body),) = requests.answers(pull(kernel, 0, warm=True)[1])
    assert (len(body), head["extFields"]["nextBeginOffset"]) == (2 * size, "2")
    assert pull(kernel, 2, warm=True) == (BROKEN, (2, 0, 4))
    ((head, body),) = requests.answers(pull(kernel, 3, warm=True)[1])
    assert (len(body), head["extFields"]["nextBeginOffset"]) == (size, "4")
    kernel.map_segment(0, b"")
    assert pull(kernel, 0, warm=True) == (BROKEN, (0, 0, 4))


@pytest.mark.parametrize("bit", range(96))
def test_no_flip_in_an_entry_hides_or_swaps_a_message(make: Make, bit: int) -> None:
    """Every bit of an entry's log offset and size. The queues hold records of the same size and number, so that a flip may lead
    to a whole record of another topic, another queue, or another number."""
    scratch = make()
    append(scratch, body=b"")
    size = 512
    body = b"x" * (size - scratch.append_offset)
    kernel = make()
    kernel.mins_raised = True
    append(kernel, 4, body=body)
    append(kernel, 4, topic="pot", body=body)
    append(kernel, 4, queue_id=1, body=body)
    publish(kernel)
    entries = bytearray({(topic, at): data for topic, at, _first, data in kernel.take_entries(9)}["tea", 0])
    entries[2 * ENTRY.size + bit // 8] ^= 0x80 >> bit % 8
    kernel.set_queue("tea", 0, 0, 4)
    kernel.lend_entries("tea", 0, 0, bytes(entries))
    ((head, found),) = requests.answers(pull(kernel, 0, warm=True)[1])
    assert (len(found), head["extFields"]["nextBeginOffset"]) == (2 * size, "2")
    assert pull(kernel, 2, warm=True) == (BROKEN, (2, 0, 4))
    ((head, body),) = requests.answers(pull(kernel, 3, warm=True)[1])
    assert struct.unpack_from(">q", body, 20)[0] == 3


def test_an_entry_below_the_log_is_broken_once_all_queues_begin_in_it(make: Make) -> None:
    kernel = make()
    append(kernel, 3)
    size = kernel.append_offset // 3
    publish(kernel)
    kernel.log_min = 2 * size
    ((head, body),) = requests.answers(pull(kernel, 0)[1])  # the files behind these entries have just been deleted
    assert (len(body), head["extFields"]["nextBeginOffset"]) == (size, "3")
    kernel.mins_raised = True
    assert pull(kernel, 0) == (BROKEN, (0, 0, 3))
    assert pull(kernel, 0, warm=True) == (BROKEN, (0, 0, 3))


def test_what_cannot_be_read_is_not_served(make: Make, tmp_path: Path) -> None:
    """The middle of a record lies on a page that the disk has lost: the broker survives, and serves no zeros."""
    if load_kernel("native") is None or not hasattr(load_kernel("native"), "MappedFile"):
        pytest.skip("no compiled kernel")
    kernel = make()
    append(kernel, 1)
    size = kernel.append_offset
    append(kernel, 1, body=b"x" * 20_000)
    append(kernel, 1)
    start, data = kernel.take()
    path = tmp_path / "log"
    path.write_bytes(data.ljust(kernel.segment_bytes, b"\0"))
    with path.open("r+b") as file:
        view = map_file(file.fileno(), kernel.segment_bytes)
        kernel.map_segment(0, view)
        kernel.dispatch(data, start)
        assert pull(kernel, 1, 1)[0] == FOUND
        file.truncate(8192)
        ((head, body),) = requests.answers(pull(kernel, 0)[1])
        assert (len(body), head["extFields"]["nextBeginOffset"]) == (size, "1")
        assert pull(kernel, 1) == (BROKEN, (1, 0, 3))
        assert pull(kernel, 2) == (BROKEN, (2, 0, 3))
        file.truncate(kernel.segment_bytes)
        file.seek(0)
        file.write(data)
        file.flush()
        for stretch in view.lost():
            view.restore(*stretch, file.fileno())
        ((head, body),) = requests.answers(pull(kernel, 0)[1])
        assert (body, head["extFields"]["nextBeginOffset"]) == (data, "3")
        kernel.map_segment(0, None)
        view.close()


def test_entries_from_disk(make: Make) -> None:
    kernel = make()
    append(kernel, 4)
    publish(kernel)
    entries = kernel.take_entries(9)[0][3]
    kernel.set_queue("tea", 0, 0, 4)
    assert pull(kernel, 1) == (NEED_ENTRIES, (1, 0, 4))
    assert kernel.tail_entries("tea", 0, 1, 9) == b""
    kernel.lend_entries("tea", 0, 1, entries[20:60])
    ((head, body),) = requests.answers(pull(kernel, 1)[1])
    assert head["extFields"]["nextBeginOffset"] == "3"
    assert body.count(b"hello") == 2
    assert pull(kernel, 3) == (NEED_ENTRIES, (3, 0, 4))
    assert pull(kernel, 0)[0] == NEED_ENTRIES
    kernel.lend_entries("tea", 0, 0, b"")
    assert pull(kernel, 1)[0] == NEED_ENTRIES
    with pytest.raises(ValueError, match="no entries"):
        kernel.lend_entries("tea", 0, 0, b"12345")


def test_loans_are_bounded(make: Make) -> None:
    kernel = make()
    for queue_id in range(3):
        append(kernel, 1, queue_id=queue_id)
    publish(kernel)
    for queue_id in range(3):
        kernel.set_queue("tea", queue_id, 0, 1_000_000)
        kernel.lend_entries("tea", queue_id, 0, ENTRY.pack(0, 100, 0) * 400_000)
    assert [pull(kernel, 5, queue_id=queue_id)[0] == NEED_ENTRIES for queue_id in range(3)] == [True, False, False]


def test_tails_are_bounded(make: Make) -> None:
    """Entries in files may leave memory: of long tails the newest 1024 stay first, short ones go, longest settled first."""
    kernel = make()

    def held(queue_id: int, offset: int) -> bool:
        return kernel.tail_entries("tea", queue_id, offset, 1) != b""

    append(kernel, 1100, body=b"x", queue_id=0)
    append(kernel, 3, queue_id=1)
    publish(kernel)
    kernel.tail_bytes_max = TAIL_KEEP_BYTES + 100
    assert len(kernel.tail_entries("tea", 0, 0, 5)) == 100
    assert len(kernel.tail_entries("tea", 0, 1099, 5)) == 20
    kernel.take_entries(9)
    assert held(0, 0), "taken is not yet in a file"
    kernel.take_entries(9)
    assert not held(0, 75)
    assert held(0, 76)
    assert held(1, 0)
    assert pull(kernel, 75)[0] == NEED_ENTRIES
    assert pull(kernel, 76)[0] == FOUND
    append(kernel, 3, queue_id=0)
    publish(kernel)
    assert (held(0, 76), held(1, 0)) == (True, True), "nothing goes that is in no file"
    kernel.take_entries(9)
    kernel.take_entries(9)
    assert (held(0, 76), held(1, 0)) == (True, False), "queue 1 has been settled longest"
    kernel.tail_bytes_max = 0
    kernel.take_entries(9)
    assert not held(0, 1102)
    append(kernel, 1, queue_id=0)
    publish(kernel)
    assert kernel.take_entries(9)[0][2] == 1103


def test_tails_do_not_grow_under_a_load_that_never_rests(make: Make) -> None:
    """Whenever entries are taken there are new ones: what is in a file by then leaves memory all the same."""
    kernel = make()
    kernel.tail_bytes_max = TAIL_KEEP_BYTES + 1000 * 20
    for number in range(1, 8):
        append(kernel, 700, body=b"x", queue_id=0)
        append(kernel, 2, queue_id=1)
        publish(kernel)
        kernel.take_entries(9)
        append(kernel, 10, body=b"x", queue_id=0)
        publish(kernel)
        end = number * 710
        held = next(offset for offset in range(end) if kernel.tail_entries("tea", 0, offset, 1))
        assert end - held <= 2 * 1024 + 710, "no more than is kept, and what was taken last"
        assert kernel.tail_entries("tea", 0, end - 10, 99) != b""
    assert kernel.take_entries(9)[0][2:] == (end - 10, kernel.tail_entries("tea", 0, end - 10, 10))


def test_a_mapped_file_is_held(module: ModuleType, make: Make) -> None:
    kernel = make()
    view = mmap.mmap(-1, kernel.segment_bytes)
    kernel.map_segment(0, view)
    if module.NAME == "native":
        with pytest.raises(BufferError):
            view.close()
    kernel.map_segment(0, None)
    view.close()
    with pytest.raises(ValueError, match="no log file begins at 5"):
        kernel.map_segment(5, b"")


@pytest.mark.parametrize("bad", [(-1, 0, 0), (1 << 31, 0, 0), (0, 5, 4), (0, -1, 4), (0, 0, 1 << 58)])
def test_impossible_queues(make: Make, bad: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="tea"):
        make().set_queue("tea", *bad)


@given(
    st.lists(st.tuples(st.sampled_from([b"A", b"B", b"C"]), st.integers(1, 60)), min_size=1, max_size=40),
    st.integers(0, 45), st.integers(1, 40),
    st.none() | st.frozensets(st.sampled_from([java_hash(tag) for tag in (b"A", b"B")])), st.integers(1, 2000), st.integers(0, 4000),
)  # fmt: skip
def test_selects_as_the_obvious_loop_does(
    messages: list[tuple[bytes, int]],
    offset: int,
    count: int,
    codes: frozenset[int] | None,
    bytes_max: int,
    log_min: int,
) -> None:
    for kind in ("twin", "native"):
        kernel = load_kernel(kind).Kernel(**{**SETTINGS, "transfer_bytes_max": bytes_max})
        kernel.open_segment(0, kernel.segment_bytes)
        records: list[tuple[bytes, int, int]] = []
        for tag, size in messages:
            at = kernel.append_offset
            append(kernel, text=b"TAGS\x01" + tag + b"\x02", body=b"x" * size)
            records.append((tag, at, kernel.append_offset - at))
        publish(kernel)
        kernel.log_min = log_min
        verdict, payload = kernel.pull("tea", 0, offset, count, codes, 7, False, True)
        if codes is None:
            given = kernel.get_count, kernel.get_bytes
            fetched = kernel.fetch("tea", 0, offset, count, True)
            wanted = requests.answers(payload)[0][1] if verdict == FOUND else payload
            assert fetched == (verdict, wanted), "the records of the reply, or the same reason"
            assert (kernel.get_count, kernel.get_bytes) == given, "whoever hands them on counts them"
        if offset >= len(records):
            assert verdict == (EMPTY if offset == len(records) else TOO_LARGE)
            continue
        expected, total, following, gone = [], 0, offset, False
        for tag, at, size in records[offset:]:
            if at < log_min:
                gone = True
            elif codes is None or java_hash(tag) in codes:
                if expected and (len(expected) == count or total + size > bytes_max):
                    break
                expected.append((at, size))
                total += size
            following += 1
        if not expected:
            assert (verdict, payload[0]) == (GONE if gone else NO_MATCH, following)
            continue
        ((head, body),) = requests.answers(payload)
        assert verdict == FOUND
        assert head["extFields"]["nextBeginOffset"] == str(following)
        starts = [struct.unpack_from(">q", body, at + 28)[0] for at in record_starts(body)]
        assert starts == [at for at, _ in expected]


def record_starts(body: bytes) -> list[int]:
    starts, at = [], 0
    while at < len(body):
        starts.append(at)
        at += int.from_bytes(body[at : at + 4], "big")
    return starts


# -- forgetting a topic ------------------------------------------------------------------------------------------------


def filled(make: Make) -> Any:
    kernel = make()
    append(kernel, 3)
    append(kernel, 1, queue_id=3)
    publish(kernel)
    return kernel


def test_a_deleted_topic_is_forgotten_when_nothing_of_it_is_left(make: Make) -> None:
    kernel = filled(make)
    assert kernel.queue_ids("tea")
    assert not kernel.forget_topic("tea"), "it may be used"
    kernel.set_topic("tea", 0, 0, 0)
    assert not kernel.forget_topic("tea"), "it has messages"
    for queue_id in kernel.queue_ids("tea"):
        end = kernel.queue_state("tea", queue_id).next
        kernel.set_queue("tea", queue_id, end, end)
    kernel.watch("tea", 0, True)
    assert not kernel.forget_topic("tea"), "somebody waits"
    kernel.watch("tea", 0, False)
    assert kernel.forget_topic("tea")
    assert kernel.queue_ids("tea") == []
    assert kernel.queue_state("tea", 0) == (0, 0, 0, 0)
    assert kernel.forget_topic("tea"), "it is not there: just so"
    assert kernel.dirty_queues() == 0
    assert kernel.take_entries(100) == []


def test_what_is_appended_and_not_yet_visible_keeps_a_topic(make: Make) -> None:
    kernel = make()
    kernel.append("new", 3, 0, 0, NOW, BORN, 0, 0, b"x", b"", NOW)
    assert not kernel.forget_topic("new")
    start, data = kernel.take()
    kernel.dispatch(data, start)
    assert not kernel.forget_topic("new"), "and then it has an entry"
    kernel.set_queue("new", 3, 1, 1)
    assert kernel.forget_topic("new")
    # Its records may still come by, as when a log is read again: then it is there again.
    kernel.dispatch(data, start)
    assert kernel.queue_state("new", 3)[:2] == (0, 1)


def test_topics_beside_a_forgotten_one_are_found(make: Make) -> None:
    """Many share few places in the kernel's table: what was pushed past one that goes moves up."""
    kernel = make()
    names = [f"topic {number}" for number in range(500)]
    for number, name in enumerate(names):
        kernel.set_topic(name, 0, 0, 0)
        kernel.set_queue(name, 0, number, number)
    for name in names[::3]:
        assert kernel.forget_topic(name)
    for number, name in enumerate(names):
        expected = (0, 0, 0, 0) if number % 3 == 0 else (number,) * 4
        assert kernel.queue_state(name, 0) == expected
    for name in names[::3]:
        kernel.set_queue(name, 0, 7, 7)
        assert kernel.queue_state(name, 0) == (7, 7, 7, 7)


def test_lent_entries_go_with_their_topic(make: Make) -> None:
    kernel = make()
    kernel.set_queue("old", 0, 5, 5)
    kernel.lend_entries("old", 0, 0, bytes(200))
    assert kernel.forget_topic("old")
    kernel.set_topic("old", 1, 1, 3)
    kernel.set_queue("old", 0, 0, 5)
    assert kernel.pull("old", 0, 0, 1, None, 1, False, True)[0] == NEED_ENTRIES


# -- how far a group has asked ---------------------------------------------------------------------------------------------


def test_the_last_pull_of_a_queue_is_remembered(make: Make) -> None:
    kernel = filled(make)
    kernel.set_row(1, "shop", "tea", False, 100, None)
    assert kernel.asked("shop", "tea", 0) == -1
    kernel.burst(requests.pull(queueId="0", queueOffset="1"), 0, BORN, NOW)
    kernel.burst(requests.pull(queueId="0", queueOffset="99"), 0, BORN, NOW)
    assert (kernel.asked("shop", "tea", 0), kernel.asked("shop", "tea", 1)) == (99, -1)
    assert kernel.asked("shop", "tea", -1) == kernel.asked("shop", "tea", 1 << 40) == kernel.asked("x", "tea", 0) == -1
    kernel.burst(requests.pull(queueId="0", queueOffset="0"), 0, BORN, NOW)
    assert kernel.asked("shop", "tea", 0) == 0, "the last one, not the furthest"
    kernel.set_row(2, "shop", "tea", False, 101, None)
    assert kernel.asked("shop", "tea", 0) == -1, "a new row knows nothing"
    kernel.burst(requests.pull(queueId="0", queueOffset="1"), 0, BORN, NOW)
    kernel.drop_row("shop", "tea", False)
    assert kernel.asked("shop", "tea", 0) == -1
