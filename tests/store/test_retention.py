from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.config.store import StoreConfig
from kappamq.store.retention import HOUR_MS, Deletion, DiskGuard, LogFile, Usage, believable, plan

GIB = 1 << 30
NO_LIMIT = 1 << 62
EMPTY_DISK = Usage(100 * GIB, 90 * GIB)


def at_hour(hour: int) -> int:
    return int(datetime.datetime(2026, 6, 1, hour, 30).timestamp() * 1000)


def config(**changes: Any) -> StoreConfig:
    return StoreConfig(root=Path("/unused"), **changes)


def files_of_ages(now_ms: int, *hours: float) -> list[LogFile]:
    return [LogFile(number * 1000, now_ms - int(age * HOUR_MS)) for number, age in enumerate(hours)]


def starts(deletions: list[Deletion]) -> list[int]:
    return [deletion.start for deletion in deletions]


def test_expired_files_go_at_the_hour() -> None:
    now = at_hour(4)
    found = plan(files_of_ages(now, 100, 73, 72, 71.9, 0), now, config(), EMPTY_DISK, NO_LIMIT)
    assert starts(found.delete) == [0, 1000, 2000]
    assert found.delete[0].why == "expired; hour 4 is for deleting"
    assert found.stopped == "the next file has not expired"


def test_not_at_another_hour() -> None:
    now = at_hour(5)
    found = plan(files_of_ages(now, 100, 0), now, config(), EMPTY_DISK, NO_LIMIT)
    assert (found.delete, found.stopped) == ([], "it is not the hour of deletion, and the disk has space")


def test_at_any_hour_when_the_operator_asks_or_the_disk_fills() -> None:
    now = at_hour(5)
    files = files_of_ages(now, 100, 50, 0)
    assert starts(plan(files, now, config(), EMPTY_DISK, NO_LIMIT, asked=True).delete) == [0]
    found = plan(files, now, config(), Usage(100 * GIB, 20 * GIB), NO_LIMIT)
    assert found.delete == [Deletion(0, "expired; the disk is 80.0% full (20480 MiB free)")]


def test_unexpired_files_stay_though_the_disk_is_full() -> None:
    now = at_hour(5)
    found = plan(files_of_ages(now, 10, 5, 0), now, config(), Usage(100 * GIB, 0), NO_LIMIT)
    assert found.delete == []


def test_unexpired_files_go_if_the_operator_said_so() -> None:
    now = at_hour(5)
    settings = config(delete_unexpired_ratio=0.85)
    files = files_of_ages(now, 100, 10, 5, 0)
    found = plan(files, now, settings, Usage(100 * GIB, 10 * GIB), NO_LIMIT)
    assert starts(found.delete) == [0, 1000, 2000]
    assert found.delete[1].why == "not expired, but the disk is 90.0% full (10240 MiB free)"
    assert found.stopped == "the last file always stays"
    assert starts(plan(files, now, settings, Usage(100 * GIB, 16 * GIB), NO_LIMIT).delete) == [0]


def test_unexpired_ratio_alone_is_an_occasion() -> None:
    now = at_hour(5)
    settings = config(delete_unexpired_ratio=0.5, disk_clean_ratio=0.9)
    found = plan(files_of_ages(now, 100, 1, 0), now, settings, Usage(100 * GIB, 40 * GIB), NO_LIMIT)
    assert starts(found.delete) == [0, 1000]


def test_one_round_takes_so_many() -> None:
    now = at_hour(4)
    found = plan(files_of_ages(now, *[100.0] * 30), now, config(delete_files_max=3), EMPTY_DISK, NO_LIMIT)
    assert starts(found.delete) == [0, 1000, 2000]
    assert "3 files" in found.stopped


@pytest.mark.parametrize(("needed", "expected"), [(999, []), (1000, [0]), (1999, [0]), (2000, [0, 1000])])
def test_what_is_needed_stays_whatever_the_disk_says(needed: int, expected: list[int]) -> None:
    now = at_hour(4)
    settings = config(delete_unexpired_ratio=0.1)
    found = plan(files_of_ages(now, 100, 100, 100, 100), now, settings, Usage(100, 1), needed)
    assert starts(found.delete) == expected
    assert found.stopped == f"the log is still needed from {needed} on"


def test_hours_are_local_time() -> None:
    now = at_hour(23)
    files = files_of_ages(now, 100, 0)
    assert plan(files, now, config(delete_hours=(1, 23)), EMPTY_DISK, NO_LIMIT).delete
    assert not plan(files, now, config(delete_hours=(22,)), EMPTY_DISK, NO_LIMIT).delete


LOGS = st.lists(st.integers(0, 200), max_size=15)


@given(
    ages=LOGS,
    hour=st.integers(0, 23),
    free=st.integers(0, 100),
    needed=st.integers(0, 16_000),
    unexpired=st.none() | st.sampled_from([0.3, 0.85]),
    retention=st.integers(0, 150),
    asked=st.booleans(),
)
def test_what_never_goes(
    ages: list[int], hour: int, free: int, needed: int, unexpired: float | None, retention: int, asked: bool
) -> None:
    now = at_hour(hour)
    files = files_of_ages(now, *ages)
    settings = config(delete_unexpired_ratio=unexpired, retention_hours=retention, delete_files_max=5)
    found = plan(files, now, settings, Usage(100, free), needed, asked=asked)
    gone = len(found.delete)
    assert starts(found.delete) == [file.start for file in files[:gone]]  # from the front, without a gap
    assert gone <= 5
    assert gone < len(files) or not files
    assert found.stopped
    for file in files[:gone]:
        assert file.start + 1000 <= needed
        forced = unexpired is not None and 1 - free / 100 > unexpired
        assert forced or file.mtime_ms + retention * HOUR_MS <= now
        assert forced or asked or hour == 4 or 1 - free / 100 > settings.disk_clean_ratio


class TestDiskGuard:
    settings = config(disk_refuse_ratio=0.9, disk_refuse_free_bytes=2 * GIB)

    def test_few_bytes_and_high_ratio_together(self) -> None:
        guard = DiskGuard(self.settings)
        assert not guard.check(Usage(1000 * GIB, 5 * GIB))  # 99.5 % full, but room enough
        assert not guard.check(Usage(10 * GIB, 3 * GIB // 2))  # little space on a small disk, far from full
        assert not guard.refusing
        assert guard.check(Usage(100 * GIB, GIB))
        assert guard.refusing
        assert guard.why.startswith("the disk is 99.0% full (1024 MiB free): free some space")

    def test_resumes_by_itself_but_does_not_flutter(self) -> None:
        guard = DiskGuard(self.settings)
        guard.check(Usage(100 * GIB, GIB))
        assert not guard.check(Usage(100 * GIB, 2 * GIB))  # just above where it stopped
        assert guard.refusing
        assert guard.check(Usage(100 * GIB, 5 * GIB // 2))
        assert not guard.refusing
        assert guard.why == ""

    def test_resumes_by_ratio_on_a_small_disk(self) -> None:
        guard = DiskGuard(self.settings)
        guard.check(Usage(10 * GIB, GIB // 2))
        assert guard.refusing
        assert not guard.check(Usage(10 * GIB, 11 * GIB // 10))
        assert guard.check(Usage(10 * GIB, 13 * GIB // 10))

    def test_a_system_that_does_not_say(self) -> None:
        guard = DiskGuard(self.settings)
        assert not guard.check(Usage(0, 0))
        assert not guard.refusing

    @given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 100)), max_size=30))
    def test_decisions(self, readings: list[tuple[int, int]]) -> None:
        guard = DiskGuard(self.settings)
        for total, free in readings:
            usage = Usage(total * GIB, min(free, total) * GIB // 4)
            before = guard.refusing
            assert guard.check(usage) == (guard.refusing != before)
            if usage.ratio > 0.9 and usage.free_bytes < 2 * GIB:
                assert guard.refusing
            if usage.ratio <= 0.88 or usage.free_bytes >= 3 * GIB:
                assert not guard.refusing
            assert bool(guard.why) == guard.refusing


# --- clocks that were wrong when a file was written -----------------------------------------------------------------------


def test_a_file_written_by_a_clock_that_was_ahead_expires_with_its_neighbours() -> None:
    now = at_hour(4)
    files = files_of_ages(now, 100, -365 * 24, 90, 1, 0)
    assert starts(plan(files, now, config(), EMPTY_DISK, NO_LIMIT).delete) == [0, 1000, 2000]


def test_a_file_written_in_1970_does_not_go_before_its_neighbours() -> None:
    now = at_hour(4)
    files = [*files_of_ages(now, 100, 10), LogFile(2000, 5), *files_of_ages(now, 2, 0)[1:]]
    assert starts(plan(files, now, config(), EMPTY_DISK, NO_LIMIT).delete) == [0]


def test_a_clock_that_is_far_behind_deletes_nothing() -> None:
    files = files_of_ages(at_hour(4), 100, 90, 0)
    now = int(datetime.datetime(1975, 1, 1, 4, 30).timestamp() * 1000)
    assert plan(files, now, config(), EMPTY_DISK, NO_LIMIT).delete == []


@given(st.lists(st.integers(0, 1 << 42), max_size=12), st.integers(0, 1 << 42))
def test_times_of_files_go_together(times: list[int], now_ms: int) -> None:
    found = [file.mtime_ms for file in believable([LogFile(n, ms) for n, ms in enumerate(times)], now_ms)]
    assert found == sorted(found)
    assert all(ms <= now_ms for ms in found)
    if times == sorted(times) and all(ms <= now_ms for ms in times):
        assert found == times, "where nothing is odd, nothing is changed"
    # In doubt a file is young.
    assert all(ms >= min(said, now_ms) for ms, said in zip(found, times, strict=True) if said <= now_ms)
