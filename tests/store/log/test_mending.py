"""Damaged stretches of a log: found exactly, refilled only with what belongs there, durably."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq import native
from kappamq.errors import ForeignBytes
from kappamq.store.files import Files
from kappamq.store.log.log_reader import LogReader
from kappamq.store.log.mending import damage_in, put_back, require_whole, whole_records
from kappamq.store.message_store import MessageStore
from tests.store.stores import Writer, config, kernels, opened

SEGMENT_BYTES = 64 << 10


class Watched(Files):
    """Notes what is made durable."""

    def __init__(self) -> None:
        self.synced = 0

    def sync(self, fd: int) -> None:
        self.synced += 1
        super().sync(fd)


def whole(store: MessageStore) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((store.config.root / "commitlog").iterdir()))


def put(store: MessageStore, count: int) -> None:
    writer = Writer(store)
    for _ in range(count):
        writer.send(b"x" * 400)
    writer.write()


def spoil(store: MessageStore, at: int, data: bytes) -> None:
    with (store.config.root / "commitlog" / f"{at - at % SEGMENT_BYTES:020d}").open("r+b") as file:
        file.seek(at % SEGMENT_BYTES)
        file.write(data)


def places(store: MessageStore) -> list[tuple[int, int]]:
    reader = LogReader(store.log.folder, store.files, SEGMENT_BYTES)
    return [(found.offset, found.offset + found.size) for found in reader.scan()]  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", kernels())
def test_damage_is_found_where_it_is_and_nowhere_else(tmp_path: Path, mode: str) -> None:
    with opened(config(tmp_path), mode) as store:
        put(store, 300)
        records = places(store)
        assert store.log.end > 2 * SEGMENT_BYTES
        reader = LogReader(store.log.folder, store.files, SEGMENT_BYTES)
        assert list(damage_in(reader, 0, store.log.end)) == []
        spoil(store, records[10][0] + 100, b"\xff\xfe")
        spoil(store, records[200][0], bytes(records[202][1] - records[200][0]))
        found = [(damage.start, damage.stop) for damage in damage_in(reader, 0, store.log.end)]
        assert found == [records[10], (records[200][0], records[202][1])]
        assert [damage.start for damage in damage_in(reader, 0, records[201][0])] == [records[10][0], records[200][0]]


def test_the_end_of_what_is_looked_at_ends_damage(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        put(store, 20)
        records = places(store)
        spoil(store, records[19][0], bytes(records[19][1] - records[19][0]))
        reader = LogReader(store.log.folder, store.files, SEGMENT_BYTES)
        found = [(damage.start, damage.stop) for damage in damage_in(reader, 0, store.log.end)]
        assert found == [records[19]], "the last record, and not what was never written"


@pytest.mark.parametrize("mode", kernels())
def test_only_whole_records_of_that_place_fill_a_gap(tmp_path: Path, mode: str) -> None:
    module = native.load(mode)
    with opened(config(tmp_path), mode) as store:
        put(store, 300)
        data = memoryview(whole(store))
        records = places(store)
        start, stop = records[5][0], records[9][1]
        require_whole(module, data[start:stop], start, SEGMENT_BYTES)
        require_whole(
            module, data[records[100][0] : SEGMENT_BYTES], records[100][0], SEGMENT_BYTES
        )  # to the end of the file
        assert whole_records(module, data[start : stop - 1], start, SEGMENT_BYTES) == records[8][1] - start
        flipped = bytearray(data[start:stop])
        flipped[600] ^= 1
        for wrong, at in (
            (data[start : stop - 1], start),
            (data[start:stop], start + 1),
            (data[start:stop], start + SEGMENT_BYTES),
            (memoryview(flipped), start),
            (memoryview(bytes(stop - start)), start),
            (data[records[100][0] : SEGMENT_BYTES - 1], records[100][0]),
        ):
            with pytest.raises(ForeignBytes, match="is no good record among them"):
                require_whole(module, wrong, at, SEGMENT_BYTES)


def test_what_is_put_back_is_on_disk(tmp_path: Path) -> None:
    files = Watched()
    with opened(config(tmp_path)) as store:
        put(store, 300)
        before = whole(store)
        (start, stop), path = places(store)[7], store.log.folder / f"{0:020d}"
        spoil(store, start, bytes(stop - start))
        assert put_back(store.log, files, start, memoryview(before)[start:stop])
        assert files.synced == 1
        with path.open("r+b") as file:
            file.truncate(stop - 10)
        assert put_back(store.log, files, start, memoryview(before)[start:SEGMENT_BYTES])
        assert whole(store) == before, "also of a file that was cut"
        path.rename(tmp_path / "aside")
        assert not put_back(store.log, files, start, memoryview(before)[start:stop]), "retention was faster"
        (tmp_path / "aside").rename(path)
