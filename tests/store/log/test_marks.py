"""Marks of the log: which events move them, by the rule of each mode."""

from __future__ import annotations

import pytest

from kappamq.store.log.marks import AsyncFlush, Marks, SyncFlush, mode_of


def offsets(marks: Marks) -> dict[str, int]:
    return {
        "written": marks.written.offset,
        "flushed": marks.flushed.offset,
        "answerable": marks.answerable.offset,
        "visible": marks.visible.offset,
        "confirmed": marks.confirmed.offset,
    }


def test_with_async_flush_only_confirmed_waits_for_the_disk() -> None:
    marks = Marks(AsyncFlush())
    marks.move_written(100)
    assert offsets(marks) == {"written": 100, "flushed": 0, "answerable": 100, "visible": 100, "confirmed": 0}
    marks.move_flushed(60)
    assert offsets(marks) == {"written": 100, "flushed": 60, "answerable": 100, "visible": 100, "confirmed": 60}


def test_with_sync_flush_everything_waits_for_the_disk() -> None:
    marks = Marks(SyncFlush())
    marks.move_written(100)
    assert offsets(marks) == {"written": 100, "flushed": 0, "answerable": 0, "visible": 0, "confirmed": 0}
    marks.move_flushed(60)
    assert offsets(marks) == {"written": 100, "flushed": 60, "answerable": 60, "visible": 60, "confirmed": 60}


@pytest.mark.parametrize(
    ("mode", "on_written", "on_flushed"),
    [
        (AsyncFlush(), ["written", "answerable", "visible"], ["flushed", "confirmed"]),
        (SyncFlush(), ["written"], ["flushed", "answerable", "visible", "confirmed"]),
    ],
    ids=["async", "sync"],
)
def test_whoever_waits_is_handed_back_by_the_call_that_moves_the_mark(
    mode: AsyncFlush | SyncFlush, on_written: list[str], on_flushed: list[str]
) -> None:
    marks = Marks(mode)
    for name in offsets(marks):
        assert getattr(marks, name).wait(100, name)
    assert marks.move_written(99) == []
    assert marks.move_written(100) == on_written
    assert marks.move_flushed(100) == on_flushed


def test_each_mark_is_one_of_its_own_and_none_goes_back() -> None:
    marks = Marks(mode_of("async"))
    assert len({id(mark) for mark in marks.all()}) == 6
    marks.reset(500)
    assert {mark.offset for mark in marks.all()} == {500}
    with pytest.raises(AssertionError, match="never goes back"):
        marks.move_written(499)


def test_the_setting_names_the_mode() -> None:
    assert (mode_of("sync").name, mode_of("async").name) == ("sync", "async")
