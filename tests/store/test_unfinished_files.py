"""Files that a crash left half made: each is finished or made anew, and costs nothing but time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kappamq.native.layout import ENTRY, FILLER_BYTES
from tests.store.faulty import FaultyFiles
from tests.store.stores import Writer, check, config, drop_oldest, kernels, opened


def fill(writer: Writer, count: int) -> None:
    for number in range(count):
        writer.send(b"%d" % number + bytes(900), queue_id=number % 2)
    writer.write()


@pytest.mark.parametrize("kind", kernels())
def test_a_queue_file_without_its_size(tmp_path: Path, kind: str) -> None:
    with opened(config(tmp_path), kind, clean=False) as store:
        writer = Writer(store)
        fill(writer, 20)
    for queue_id in (0, 1):
        folder = tmp_path / "consumequeue" / "t" / str(queue_id)
        folder.mkdir(parents=True)
        (folder / f"{0:020d}").write_bytes(b"")
    with opened(config(tmp_path), kind) as store:
        check(store, writer)
        writer.store = store
        fill(writer, 200)
        check(store, writer)
    with opened(config(tmp_path), kind) as store:
        assert (store.recovered.clean, store.recovered.records) == (True, 0)  # type: ignore[attr-defined]
        check(store, writer)


@pytest.mark.parametrize("left", ["nothing", "empty", "zeros"])
def test_a_queue_that_begins_in_the_middle_of_a_file(tmp_path: Path, left: str) -> None:
    """Its log was deleted up to there. Before it lies filler, whatever a crash while making the file left behind."""
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        fill(writer, 350)
        drop_oldest(store, len(list(store.log.segments())) - 1)
    shutil.rmtree(tmp_path / "consumequeue")
    with opened(config(tmp_path), clean=False) as store:
        low, end, _next, _stored = store.kernel.queue_state("t", 0)
        assert low % 64, "in the middle"
        assert end == 175
    path = tmp_path / "consumequeue" / "t" / "0" / f"{low // 64 * 64 * ENTRY.size:020d}"
    if left != "nothing":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(64 * ENTRY.size if left == "zeros" else 0))
    (tmp_path / "kappamq.position").unlink()
    with opened(config(tmp_path)) as store:
        assert store.kernel.queue_state("t", 0)[:2] == (low, 175)
        Writer(store).write_derived()
        before = list(ENTRY.iter_unpack(path.read_bytes()[: low % 64 * ENTRY.size]))
        assert {size for _offset, size, _code in before} == {FILLER_BYTES}
    with opened(config(tmp_path)) as store:
        assert (store.recovered.rebuilt, store.recovered.records) == (False, 0)  # type: ignore[attr-defined]
        assert store.kernel.queue_state("t", 0)[:2] == (low, 175)


def test_a_queue_file_that_could_not_get_its_size_gets_it_later(tmp_path: Path) -> None:
    from tests.store.stores import BOOT, make

    files = FaultyFiles()
    store = make(config(tmp_path), files=files)
    store.open(BOOT)
    writer = Writer(store)
    fill(writer, 4)
    files.fail("truncate", on="consumequeue", times=1)
    with pytest.raises(OSError):
        store.write_derived(store.collect())
    writer.write_derived()
    sizes = {path.stat().st_size for path in (tmp_path / "consumequeue").rglob("0*0")}
    assert sizes == {64 * ENTRY.size}
    store.close()
