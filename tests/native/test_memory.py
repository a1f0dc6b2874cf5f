"""Without memory the kernel says so, and nothing is lost, doubled or half done: the same call again does the rest."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kappamq.native.layout import DONE, FULL, HalfOpened
from tests.native.build import build_kernel
from tests.native.conftest import BORN, NOW, SETTINGS
from tests.native.fuzz import load_extension
from tests.native.requests import member, properties, pull, send
from tests.native.test_pure_waiting import HALF, end
from tests.needs import needs

pytestmark = [pytest.mark.slow, needs("compiler")]

SENDS = b"".join(
    (
        send(b"x" * 300),
        send(b"y" * 3000, e="2", binary=True),
        send(b"".join(member(b"z" * n) for n in range(1, 40)), code=320, m="true"),
        send(b"later", i=properties(TIMER_DELAY_SEC="60")),
        send(b"half", i=HALF) * 40,
    )
)


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, ctypes.c_int]:
    """The kernel and the counter that makes its n-th allocation fail."""
    path = build_kernel(
        tmp_path_factory.mktemp("failing"), ["-O1", "-include", str(Path(__file__).with_name("failing_alloc.h"))]
    )
    return load_extension(str(path)), ctypes.c_int.in_dll(ctypes.CDLL(str(path)), "kappamq_fail_in")


def until_done(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except MemoryError:
        return call()


def history(module: ModuleType, counter: ctypes.c_int, fail_in: int) -> tuple[list[Any], bool]:
    """Everything a kernel produced, and whether the failure came to pass."""
    kernel = module.Kernel(**SETTINGS)
    counter.value = fail_in
    seen: list[Any] = []
    until_done(lambda: kernel.set_topic("tea", 4, 4, 3))
    until_done(lambda: kernel.set_row(1, "shop", "tea", False, 100, None))
    until_done(lambda: kernel.set_row(2, "shop", "tea", True, 100, frozenset([1, 2])))
    until_done(lambda: kernel.let_wait(True, 1 << 30, 18, "broker-a"))
    kernel.accepting = True
    kernel.open_segment(0, kernel.segment_bytes)
    acks, position = b"", 0
    notes: list[Any] = []
    while True:
        result = until_done(partial(kernel.burst, SENDS, position, BORN, NOW))
        position, acks = result[0], acks + result[2]
        notes += [note for note in result[7] if isinstance(note, HalfOpened)]
        if result[1] == DONE:
            break
        assert result[1] == FULL
        assert counter.value == 0, "there was room"
    seen += [
        acks,
        until_done(lambda: kernel.append("new", 70000, 0, 0, NOW, BORN, 0, 0, b"body", b"KEYS\x01" + b"k " * 50, NOW)),
    ]
    grouped = [("tea", 1, 0, 0, NOW, BORN, 0, 0, b"a", b""), ("newer", 0, 0, 0, NOW, BORN, 0, 9, b"b", b"")]
    seen.append(until_done(lambda: kernel.append_group(grouped, NOW)))
    until_done(lambda: kernel.watch("tea", 2, True))
    start, data = kernel.take()
    log = data + bytes(kernel.segment_bytes - len(data))
    until_done(lambda: kernel.map_segment(0, log))
    seen += [data, until_done(lambda: kernel.dispatch(data, start))]
    assert len(notes) == 40
    for number, note in enumerate(notes):
        asked = end(note.log_offset, tranStateTableOffset=str(number), commitOrRollback="8" if number % 2 else "12")
        seen.append(until_done(partial(kernel.burst, asked, 0, BORN, NOW)))
    start, data = kernel.take()
    log = log[:start] + data + log[start + len(data) :]
    until_done(lambda: kernel.map_segment(0, log))
    seen += [data, until_done(lambda: kernel.dispatch(data, start))]
    result = until_done(lambda: kernel.burst(pull() + pull(queueId="2", queueOffset="1"), 0, BORN, NOW))
    if result[1] == FULL:
        rest = until_done(lambda: kernel.burst(pull() + pull(queueId="2", queueOffset="1"), result[0], BORN, NOW))
        seen.append((result[4] + rest[4], result[5] + rest[5], result[6] + rest[6]))
    else:
        seen.append(result[4:])
    seen.append(until_done(lambda: kernel.pull("tea", 1, 0, 32, frozenset([0]), 1, True, True)))
    seen.append(until_done(lambda: kernel.fetch("tea", 1, 0, 32, True)))
    seen += [kernel.queue_state("tea", queue_id) for queue_id in range(4)]
    # Keys that were entered before the failure are entered again with the retry: the index looks them up by offset.
    index = kernel.take_index()
    seen.append(sorted({index[at : at + 20] for at in range(0, len(index), 20)}))
    seen.append(kernel.take_entries(9))
    until_done(lambda: kernel.lend_entries("tea", 1, 0, seen[-1][0][3]))
    failed = fail_in > 0 and counter.value == 0
    counter.value = 0
    return seen, failed


def test_every_allocation_may_fail(failing: tuple[ModuleType, ctypes.c_int]) -> None:
    module, counter = failing
    expected, _ = history(module, counter, 0)
    fail_in = 1
    while True:
        seen, failed = history(module, counter, fail_in)
        assert seen == expected, f"allocation {fail_in}"
        if not failed:
            break
        fail_in += 1
    assert fail_in > 20, "the failures did not happen"


def test_no_kernel_without_memory(failing: tuple[ModuleType, ctypes.c_int]) -> None:
    module, counter = failing
    for fail_in in range(1, 5):
        counter.value = fail_in
        with pytest.raises(MemoryError):
            module.Kernel(**SETTINGS)
    counter.value = 0
