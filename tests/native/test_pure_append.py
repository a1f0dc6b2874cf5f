"""A note and the messages of a batch body as one group: all or none, and nothing if one of them is not plain."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kappamq.native.layout import Misnumbered, SegmentFull
from kappamq.native.pure_record import parse
from tests.native.conftest import BORN, NOW
from tests.native.requests import member

Make = Callable[..., Any]
NOTE = ("notes", 0, 0, 0, NOW, BORN, 0, 0, b"note", b"")


def append(kernel: Any, body: bytes, queue_id: int = 1) -> int | None:
    found = kernel.append_batch(NOTE, "tea", queue_id, NOW - 5, BORN, 4711, body, NOW)
    return None if found is None else int(found)


def test_a_note_and_its_messages_are_one_group(make: Make, module: ModuleType) -> None:
    kernel = make()
    end = append(kernel, member(b"a", b"k\x01v", 7) + member(b"b", b"KEYS\x01x\x02"))
    start, data = kernel.take()
    assert end == start + len(data)
    assert module.scan(data, start, True)[:3:2] == (len(data), 3)
    assert module.scan(data[:-1], start, True)[0] == 0, "whoever finds less than all of it finds nothing"
    first = parse(data, 0, len(data))
    assert not isinstance(first, int)
    second = data[first[0] :]
    assert b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER" in second
    assert (kernel.queue_state("notes", 0).next, kernel.queue_state("tea", 1).next) == (1, 2)


def test_the_same_as_a_group_of_its_messages(make: Make) -> None:
    together, one_by_one = make(), make()
    append(together, member(b"a", b"k\x01v\x02", 3))
    text = b"k\x01v\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
    one_by_one.append_group([NOTE, ("tea", 1, 3, 0, NOW - 5, BORN, 0, 4711, b"a", text)], NOW)
    assert together.take() == one_by_one.take()


@pytest.mark.parametrize(
    "body",
    [
        member(b"a", b"DELAY\x013\x02"),
        member(b"a") + member(b"b")[:-1],
        member(b"a", b"\xff\x01x"),
        member(b"a", b"k\x01" + b"x" * 32_700),
        b"short",
    ],
    ids=["delayed", "torn", "no UTF-8", "too long with what is added", "no batch"],
)
def test_what_is_not_plain_is_left(make: Make, body: bytes) -> None:
    kernel = make()
    assert append(kernel, body) is None
    assert kernel.take()[1] == b""
    assert kernel.queue_state("tea", 1).next == kernel.queue_state("notes", 0).next == 0


def test_all_or_none(make: Make) -> None:
    kernel = make()
    with pytest.raises(ValueError, match="at least one"):
        append(kernel, b"")
    with pytest.raises(ValueError, match="8 or 20 bytes"):
        kernel.append_batch(NOTE, "tea", 0, NOW, b"x", 0, member(b"a"), NOW)
    kernel.open_segment(0, 400)
    with pytest.raises(SegmentFull):
        append(kernel, member(b"x" * 200) + member(b"y" * 200))
    assert kernel.take()[1] == b""


# --- numbers of what another broker appended -------------------------------------------------------------------------


def others(make: Make, *queues: int, topic: str = "tea", sys_flag: int = 0, first: int = 0) -> list[bytes]:
    """One record for each queue id, as a kernel like ours appends them to a log of its own."""
    kernel, records = make(), []
    for queue_id in set(queues):
        kernel.set_queue(topic, queue_id, first, first)
    for queue_id in queues:
        kernel.append(topic, queue_id, 0, sys_flag, NOW, BORN, 0, 0, b"theirs", b"", NOW)
        records.append(kernel.take()[1])
    return records


def next_of(kernel: Any, *queue_ids: int) -> list[int]:
    return [kernel.queue_state("tea", queue_id).next for queue_id in queue_ids]


def test_numbers_follow_the_records(make: Make) -> None:
    data, kernel = b"".join(others(make, 0, 1, 0, 0)), make()
    assert kernel.number(memoryview(data)) == (len(data), None)
    assert next_of(kernel, 0, 1, 2) == [3, 1, 0]
    assert kernel.queue_state("tea", 0).end == 0, "nothing is to be seen before dispatch"
    kernel.dispatch(data, 0)
    assert kernel.queue_state("tea", 0)[:3] == (0, 3, 3)


def test_half_messages_have_no_number(make: Make) -> None:
    kernel = make()
    for sys_flag in (4, 12):
        data = b"".join(others(make, 0, 0, sys_flag=sys_flag))
        assert kernel.number(data) == (len(data), None)
    assert next_of(kernel, 0) == [0]


def test_numbering_stops_at_what_is_no_whole_record(make: Make) -> None:
    first, second = others(make, 0, 0)
    kernel = make()
    assert kernel.number(first + second[:-1]) == (len(first), None)
    assert next_of(kernel, 0) == [1]
    assert kernel.number(b"") == (0, None)


@pytest.mark.parametrize(
    "order", [[0, 1, 3], [0, 1, 1], [0, 1, 2, 0]], ids=["jump", "repetition", "from the beginning"]
)
def test_a_wrong_number_is_refused_with_all_that_came_along(make: Make, order: list[int]) -> None:
    mine = others(make, 0, 0, 0, 0)
    other = others(make, 1)[0]
    data = b"".join(mine[number] for number in order[:-1])
    kernel = make()
    kernel.number(mine[0])
    at = len(other) + len(data) - len(mine[0])
    assert kernel.number(other + data[len(mine[0]) :] + mine[order[-1]]) == (
        at,
        Misnumbered(at, "tea", 0, order[-1], len(order) - 1),
    )
    assert next_of(kernel, 0, 1) == [1, 0], "as before the call"
    assert kernel.number(other + mine[1])[1] is None


def test_a_queue_without_messages_begins_anywhere_and_then_goes_on(make: Make) -> None:
    kernel = make()
    records = others(make, 0, 0, 0, first=7)
    assert kernel.number(records[0] + records[2])[1] == Misnumbered(len(records[0]), "tea", 0, 9, 8)
    assert next_of(kernel, 0) == [0], "it has not begun"
    data = b"".join(records)
    assert kernel.number(data)[1] is None
    kernel.dispatch(data, 0)
    assert kernel.queue_state("tea", 0)[:3] == (7, 10, 10)


def test_a_queue_whose_topic_was_forgotten_begins_at_0_again(make: Make) -> None:
    """Dispatch, which is behind, has the deleted messages still."""
    kernel = make()
    kernel.set_queue("tea", 0, 2, 2)
    records = others(make, *[0] * 5)
    assert kernel.number(records[0] + records[1] + records[2] + records[4])[1] is not None
    assert next_of(kernel, 0) == [2]
    assert kernel.number(records[0])[1] is None
    assert kernel.number(records[1] + records[2] + records[4])[1] is not None, "it began in an earlier call"
    assert next_of(kernel, 0) == [1]
    data = b"".join(records)
    assert kernel.number(data[len(records[0]) :])[1] is None
    assert not kernel.forget_topic("tea")
    kernel.dispatch(data, 0)
    assert kernel.queue_state("tea", 0)[:3] == (0, 5, 5)
    assert len(kernel.tail_entries("tea", 0, 0, 9)) == 5 * 20
    kernel.dispatch(data, 0)
    assert kernel.queue_state("tea", 0)[:3] == (0, 5, 5), "once"


def test_rewinding_takes_back_what_is_not_dispatched(make: Make) -> None:
    kernel = make()
    records = others(make, 0, 0, 1)
    kernel.number(b"".join(records))
    kernel.dispatch(records[0], 0)
    kernel.rewind()
    assert next_of(kernel, 0, 1) == [1, 0]
    assert kernel.number(records[1]) == (len(records[1]), None)
    assert next_of(kernel, 0, 1) == [2, 0]


def test_what_was_appended_is_written_before_numbers_go_back(make: Make) -> None:
    kernel = make()
    kernel.append("tea", 0, 0, 0, NOW, BORN, 0, 0, b"mine", b"", NOW)
    with pytest.raises(AssertionError):
        kernel.rewind()
    assert next_of(kernel, 0) == [1]


def test_what_was_taken_stays_as_it_is_for_as_long_as_somebody_looks_at_it(make: Make) -> None:
    """Large writes are lent out in the kernel's own buffer, which it fills again when it gets it back."""
    kernel = make(segment_bytes=8 << 20, pending_bytes_max=4 << 20)
    held: list[tuple[Any, bytes]] = []
    for size in (200_000, 300_000, 100, 200_000, 900_000, 70_000):
        for letter in b"ab":
            kernel.append("tea", 0, 0, 0, NOW, BORN, 0, 0, bytes([letter]) * size, b"", NOW)
        assert kernel.append_offset > 0
        start, data = kernel.take()
        assert (len(data) > 2 * size, kernel.take()[1]) == (True, b"")
        held.append((data, bytes(data)))
        first, second = (bytes([letter]) * size for letter in b"ab")
        assert bytes(data).count(first) == bytes(data).count(second) == 1
        assert kernel.append_offset == start + len(data)
        for view, copy in held:
            assert view == copy
        if size == 100:
            held.clear()  # the buffers are filled again
    if isinstance(held[0][0], memoryview):
        with pytest.raises(TypeError):
            held[0][0][0] = 0
    del kernel
    for view, copy in held:
        assert view == copy
