from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.errors import StoreFormatError
from kappamq.store.files import Files
from kappamq.store.index.view import IndexHeader, IndexView, Search, file_name, is_file_name, rebuild_slots
from tests.store.java_index import ENTRY, JavaIndexFile, build

FOREVER = 1 << 62
FILES = Files()
Open = Callable[[bytes, int, int], IndexView]

# Laid out by hand: 4 slots, 6 entries (5 usable). Hash 2746024 is that of TopicTest#k1.
K1 = 2746024
GOLDEN = bytes.fromhex(
    "0000018bcfe56800" "0000018bcfe57d78"  # begin 1700000000000, end 1700000005496
    "0000000000000064" "00000000000000fa"  # begin offset 100, end offset 250
    "00000002" "00000004"  # 2 slots in use, 3 entries and one that is never used
    "00000003" "00000000" "00000002" "00000000"  # slot 0 -> entry 3, slot 2 -> entry 2
    "00000000" "0000000000000000" "00000000" "00000000"
    "0029e6a8" "0000000000000064" "00000000" "00000000"  # 1: k1 at 100; 2746024 % 4 = 0
    "00000006" "0000000000000064" "00000000" "00000000"  # 2: another key of the same record; slot 2
    "0029e6a8" "00000000000000fa" "00000005" "00000001"  # 3: k1 at 250, 5 s later, before it in the slot: 1
    "00000000" "0000000000000000" "00000000" "00000000"
    "00000000" "0000000000000000" "00000000" "00000000"
)  # fmt: skip
BEGIN = 1_700_000_000_000


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    numbers = itertools.count()
    descriptors: list[int] = []

    def make(image: bytes, slots: int, entries: int) -> IndexView:
        path = tmp_path / str(next(numbers))
        path.write_bytes(image)
        descriptors.append(FILES.open(path, writable=False))
        return IndexView(path, descriptors[-1], slots, entries, FILES)

    yield make
    for fd in descriptors:
        FILES.close(fd)


def found(view: IndexView, key: int, count_max: int = 64, begin_ms: int = 0, end_ms: int = FOREVER) -> list[int]:
    search = Search(key, count_max, begin_ms, end_ms)
    header = view.header()
    if search.wants(header):
        search.walk(view, header.begin_ms, view.slot(key), view.entries_max)
    return search.found


class TestGolden:
    def test_header(self, opened: Open) -> None:
        view = opened(GOLDEN, 4, 6)
        view.check_size()
        assert view.header() == IndexHeader(BEGIN, BEGIN + 5496, 100, 250, 2, 4)
        assert view.header().encode() == GOLDEN[:40]

    def test_entries(self, opened: Open) -> None:
        view = opened(GOLDEN, 4, 6)
        assert [view.entry(number) for number in range(-1, 8)] == [
            None, None, (K1, 100, 0, 0), (6, 100, 0, 0), (K1, 250, 5, 1), None, None, None, None,
        ]  # fmt: skip
        assert [view.end(limit) for limit in (0, 100, 101, 250, 251)] == [1, 1, 3, 3, 4]

    def test_search(self, opened: Open) -> None:
        view = opened(GOLDEN, 4, 6)
        assert found(view, K1) == [250, 100]
        assert found(view, 6) == [100]
        assert found(view, K1 + 4) == []  # the same slot, another hash
        assert found(view, 1) == []
        assert found(view, K1, count_max=1) == [250]

    @pytest.mark.parametrize(
        ("begin", "end", "expected"),
        [
            (0, 5496, [250, 100]),
            (0, 4999, [100]),
            (1000, 9999, [250]),
            (5999, 9999, [250]),
            (6496, 9999, []),
            (-9, -1, []),
        ],
    )
    def test_search_by_time(self, opened: Open, begin: int, end: int, expected: list[int]) -> None:
        assert found(opened(GOLDEN, 4, 6), K1, 64, BEGIN + begin, BEGIN + end) == expected

    def test_slots_follow_from_entries(self, opened: Open) -> None:
        table, used, stop = rebuild_slots(opened(GOLDEN, 4, 6), 4)
        assert (bytes(table), used, stop) == (GOLDEN[40:56], 2, 4)


def test_wrong_size_says_what_to_do(opened: Open) -> None:
    with pytest.raises(
        StoreFormatError, match=r"176 bytes, but .* 5 slots \(maxHashSlotNum\) and 6 entries .* have 180"
    ):
        opened(GOLDEN, 5, 6).check_size()


def test_count_of_a_file_that_was_never_flushed(opened: Open) -> None:
    assert opened(bytes(200), 4, 6).header() == IndexHeader()


class TestNames:
    def test_local_time_of_the_first_record(self) -> None:
        moment = datetime.datetime(2026, 1, 1, 12, 30, 45, 678000)
        assert file_name(int(moment.timestamp() * 1000)) == "20260101123045678"

    def test_later_than_the_file_before(self) -> None:
        moment = int(datetime.datetime(2026, 1, 1, 12, 30, 45).timestamp() * 1000)
        assert file_name(moment, "20260101123044999") == "20260101123045000"
        assert file_name(moment, "20260101123045000") == "20260101123045001"
        assert file_name(moment, "20261231235959999") == "20270101000000000"

    @given(st.integers(-(1 << 63), (1 << 63) - 1))
    def test_any_store_time_gives_a_name(self, store_ms: int) -> None:
        name = file_name(store_ms)
        assert is_file_name(name)
        after = file_name(store_ms, name)
        assert is_file_name(after)
        assert after > name

    @pytest.mark.parametrize(
        "name",
        ["", "2026010112304567", "202601011230456789", "20261301123045678", "2026010112304567a", "٢" * 17, ".tmp"],
    )
    def test_foreign(self, name: str) -> None:
        assert not is_file_name(name)


KEYS = st.lists(
    st.tuples(st.sampled_from([0, 1, 2, 5, 9, 13, 2746024, (1 << 31) - 1]), st.integers(1, 3), st.integers(0, 3000)),
    max_size=40,
).map(
    lambda steps: [
        (key, 1 + sum(step[1] for step in steps[:number]), BEGIN + sum(step[2] for step in steps[: number + 1]))
        for number, (key, _, _) in enumerate(steps)
    ]
)


@given(keys=KEYS, slots=st.integers(1, 7), data=st.data())
def test_search_finds_what_the_list_says(
    tmp_path_factory: pytest.TempPathFactory, keys: list[tuple[int, int, int]], slots: int, data: st.DataObject
) -> None:
    file = build(keys, slots, 64)[0] if keys else JavaIndexFile(slots, 64)
    path = tmp_path_factory.getbasetemp() / "index"
    path.write_bytes(file.image(counters=data.draw(st.booleans())))
    fd = FILES.open(path, writable=False)
    try:
        view = IndexView(path, fd, slots, 64, FILES)
        assert view.end(FOREVER) == file.count
        assert view.unslotted(view.header()) == range(file.count, file.count)
        wanted = data.draw(st.sampled_from([0, 1, 5, 2746024, 77]))
        begin = BEGIN + data.draw(st.integers(-1000, 60_000))
        end = begin + data.draw(st.integers(0, 30_000))
        offsets = found(view, wanted, 64, begin, end)
        sure = [o for k, o, ms in reversed(keys) if k == wanted and begin <= ms <= end - 1000]
        possible = [o for k, o, ms in reversed(keys) if k == wanted and begin - 1000 < ms <= end + 999]
        assert set(sure) <= set(offsets) <= set(possible)
        assert offsets == sorted(offsets, reverse=True)
        assert found(view, wanted, 3) == [o for k, o, _ in reversed(keys) if k == wanted][:3]
        table, used, stop = rebuild_slots(view, file.count)
        assert (bytes(table), used, stop) == (file.image()[40 : 40 + slots * 4], file.used_slots, file.count)
        # With stale slots the same is found by looking through what they do not know.
        known = data.draw(st.integers(1, file.count))
        search = Search(wanted, 64, 0, FOREVER)
        search.scan(view, file.begin_ms, range(known, file.count))
        assert search.found == [o for k, o, _ in reversed(keys[known - 1 :]) if k == wanted]
    finally:
        FILES.close(fd)


@pytest.mark.parametrize("broken", [None, 1, 8192, 8193, 9999])
def test_slots_of_many_entries(opened: Open, broken: int | None) -> None:
    """More than one chunk; with an entry out of order at its edges and in the middle."""
    keys = [(number * 7919 % 1_000_003, number * 10, BEGIN) for number in range(1, 20_001)]
    image = bytearray(build(keys, 101, 30_000)[0].image())
    if broken is not None:
        at = 40 + 101 * 4 + broken * 20
        image[at : at + 20] = ENTRY.pack(1, -5, 0, 0)
        keys = keys[: broken - 1]
    file = build(keys, 101, 30_000)[0] if keys else JavaIndexFile(101, 30_000)
    table, used, stop = rebuild_slots(opened(bytes(image), 101, 30_000), 20_001)
    assert (bytes(table), used, stop) == (file.image()[40 : 40 + 404], file.used_slots, file.count)


class TestBrokenFiles:
    def test_a_chain_that_bites_its_tail(self, opened: Open) -> None:
        image = bytearray(build([(4, 10, BEGIN), (4, 20, BEGIN), (4, 30, BEGIN)], 4, 6)[0].image())
        image[56 + 20 : 56 + 40] = ENTRY.pack(4, 10, 0, 3)  # the first entry points to the last
        assert found(opened(bytes(image), 4, 6), 4) == [30, 20, 10]

    def test_a_slot_that_points_nowhere(self, opened: Open) -> None:
        image = bytearray(GOLDEN)
        for number in (5, 6, -1, 1 << 30):
            image[40:44] = number.to_bytes(4, "big", signed=True)
            assert found(opened(bytes(image), 4, 6), K1) == []

    def test_a_link_to_nothing(self, opened: Open) -> None:
        image = bytearray(build([(4, 10, BEGIN), (4, 20, BEGIN), (4, 30, BEGIN)], 4, 6)[0].image())
        image[56 + 40 : 56 + 60] = bytes(20)  # the one in the middle is lost, and the way to the first with it
        assert found(opened(bytes(image), 4, 6), 4) == [30]

    @pytest.mark.parametrize(
        "entry", [bytes(20), ENTRY.pack(6, 99, 0, 0), ENTRY.pack(-6, 100, 0, 0), ENTRY.pack(6, 100, 0, 2)]
    )
    def test_entries_that_cannot_be_end_the_count(self, opened: Open, entry: bytes) -> None:
        image = bytearray(GOLDEN)
        image[56 + 40 : 56 + 60] = entry
        table, used, stop = rebuild_slots(opened(bytes(image), 4, 6), 4)
        assert (bytes(table[:4]), used, stop) == (b"\0\0\0\1", 1, 2)

    @given(st.binary(min_size=176, max_size=176), st.integers(0, 1 << 31))
    def test_garbage_ends(self, tmp_path_factory: pytest.TempPathFactory, image: bytes, key: int) -> None:
        path = tmp_path_factory.getbasetemp() / "garbage"
        path.write_bytes(image)
        fd = FILES.open(path, writable=False)
        view = IndexView(path, fd, 4, 6, FILES)
        assert len(found(view, key, 64, -FOREVER)) <= 5
        rebuild_slots(view, view.end(FOREVER))
        FILES.close(fd)


def test_the_first_entry_of_a_file_that_follows_a_full_one(opened: Open) -> None:
    """Java counts its seconds from the end of the file before: after a quiet night, hours too many."""
    quiet_ms = 5 * 3_600_000
    files = build([(4, 10, BEGIN), (4, 20, BEGIN), (4, 30, BEGIN + quiet_ms), (4, 40, BEGIN + quiet_ms + 3000)], 4, 3)
    assert len(files) == 2
    view = opened(files[1].image(), 4, 3)
    entry = view.entry(1)
    assert entry is not None
    assert entry[2] == quiet_ms // 1000
    assert found(view, 4, 64, BEGIN + quiet_ms - 500, BEGIN + quiet_ms + 500) == [30]
    assert found(view, 4, 64, BEGIN + quiet_ms + 2000, BEGIN + quiet_ms + 9000) == [40]


def test_a_walk_is_bounded(opened: Open) -> None:
    keys = [(4, number, BEGIN) for number in range(1, 101)]
    view = opened(build(keys, 2, 128)[0].image(), 2, 128)
    search = Search(4, 64, 0, FOREVER, walk_max=10)
    search.walk(view, BEGIN, view.slot(4), 128)
    assert search.found == list(range(100, 90, -1))
    assert search.done
