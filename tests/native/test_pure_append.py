"""A note and the messages of a batch body as one group: all or none, and nothing if one of them is not plain."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kappamq.native.layout import SegmentFull
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
