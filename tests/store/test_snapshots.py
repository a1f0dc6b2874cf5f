from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.errors import ProtocolError, StoreError
from kappamq.store import snapshots
from kappamq.store.files import Files
from kappamq.store.snapshots import Snapshot, Snapshots, decode, encode

VALUES = st.recursive(
    st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
TABLES = st.dictionaries(st.text(max_size=8).filter(lambda name: name != "kappamq"), VALUES, max_size=4)
OFFSETS = st.integers(0, (1 << 63) - 1)

# As a Java broker writes it (reference/store.md, section 5).
JAVAS = b"""{
\t"dataVersion":{
\t\t"counter":2,
\t\t"stateVersion":0,
\t\t"timestamp":1794770777972
\t},
\t"offsetTable":{
\t\t"T@g":{0:7,3:8
\t\t}
\t}
}"""
JAVAS_TABLE = {
    "dataVersion": {"counter": 2, "stateVersion": 0, "timestamp": 1794770777972},
    "offsetTable": {"T@g": {"0": 7, "3": 8}},
}


@contextmanager
def folder() -> Iterator[Path]:
    with TemporaryDirectory() as name:
        yield Path(name)


@given(TABLES, OFFSETS)
def test_round_trip(table: dict[str, Any], offset: int) -> None:
    assert decode(encode(table, offset)) == Snapshot(table, offset)


def test_a_table_that_looks_like_our_stamp_is_kept_as_it_is() -> None:
    table = {"topic": {"textCrc": "00000000", "logOffset": 5}}
    assert decode(encode(table, 7)) == Snapshot(table, 7)


def test_layout_is_javas() -> None:
    text = encode(JAVAS_TABLE, 4711).decode()
    assert text.startswith('{\n\t"dataVersion":{\n\t\t"counter":2,\n\t\t"stateVersion":0,\n\t\t"timestamp":')
    assert '\n\t"kappamq":{\n' in text
    assert '\n\t\t"logOffset":4711' in text


def test_reads_what_java_wrote(tmp_path: Path) -> None:
    (tmp_path / "consumerOffset.json").write_bytes(JAVAS)
    assert Snapshots(tmp_path).load("consumerOffset.json") == Snapshot(JAVAS_TABLE, None)


def test_nothing_there(tmp_path: Path) -> None:
    store = Snapshots(tmp_path / "config")
    assert store.load("topics.json") is None
    assert store.notes == []
    assert store.needed_from() is None
    assert not (tmp_path / "config").exists()


def test_save_keeps_the_one_before(tmp_path: Path) -> None:
    store = Snapshots(tmp_path / "config")
    store.save("topics.json", {"n": 1}, 100)
    assert os.listdir(tmp_path / "config") == ["topics.json"]
    store.save("topics.json", {"n": 2}, 200)
    store.save("topics.json", {"n": 3}, 300)
    assert sorted(os.listdir(tmp_path / "config")) == ["topics.json", "topics.json.bak"]
    assert Snapshots(tmp_path / "config").load("topics.json") == Snapshot({"n": 3}, 300)
    assert decode((tmp_path / "config" / "topics.json.bak").read_bytes()) == Snapshot({"n": 2}, 200)


def test_java_rewriting_a_file_is_noticed(tmp_path: Path) -> None:
    Snapshots(tmp_path).save("consumerOffset.json", {"x": 1}, 100)
    (tmp_path / "consumerOffset.json").rename(tmp_path / "consumerOffset.json.bak")
    (tmp_path / "consumerOffset.json").write_bytes(JAVAS)
    assert Snapshots(tmp_path).load("consumerOffset.json") == Snapshot(JAVAS_TABLE, None)


def test_a_hand_that_edits_a_file_is_noticed(tmp_path: Path) -> None:
    store = Snapshots(tmp_path)
    store.save("topics.json", {"perm": 6}, 100)
    path = tmp_path / "topics.json"
    path.write_bytes(path.read_bytes().replace(b'"perm":6', b'"perm":4'))
    edited = path.read_bytes()
    assert store.load("topics.json", log_is_whole=True) is None, "the log knows it all"
    assert "damaged or was changed by hand" in store.notes[0]
    assert 'remove the key "kappamq"' in store.notes[0]
    assert (tmp_path / "topics.json.broken-1").read_bytes() == edited
    path.write_bytes(edited)
    found = store.load("topics.json")
    assert found is not None
    assert (found.table, found.log_offset) == ({"perm": 4}, 0), "better than nothing, but the log has the last word"


def test_without_the_stamp_an_edit_counts(tmp_path: Path) -> None:
    Snapshots(tmp_path).save("topics.json", {"perm": 6}, 100)
    (tmp_path / "topics.json").write_bytes(b'{"perm": 4}')
    assert Snapshots(tmp_path).load("topics.json") == Snapshot({"perm": 4}, None)


def test_a_flipped_bit_anywhere_is_never_believed(tmp_path: Path) -> None:
    """Not even in the name of the stamp, without which it would look like a file of a Java broker."""
    store = Snapshots(tmp_path)
    store.save("t.json", {"offsetTable": {"t@g": {"0": 30}}}, 100)
    store.save("t.json", {"offsetTable": {"t@g": {"0": 40}}}, 200)
    whole, backup = (tmp_path / "t.json").read_bytes(), (tmp_path / "t.json.bak").read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            (tmp_path / "t.json").write_bytes(flipped)
            (tmp_path / "t.json.bak").write_bytes(backup)
            found = Snapshots(tmp_path).load("t.json")
            assert found is not None
            # JSON leaves room for changes that mean the same: a line break may become another blank.
            kept = tmp_path / "t.json.broken-1"
            assert (found.log_offset, found.table["offsetTable"]["t@g"]["0"]) == (100, 30), (at, bit)
            assert ".bak and the log are used instead" in found.note
            assert kept.read_bytes() == flipped
            kept.unlink()


def test_a_backup_of_java_is_older_than_a_damaged_file_of_ours(tmp_path: Path) -> None:
    (tmp_path / "consumerOffset.json").write_bytes(JAVAS)
    store = Snapshots(tmp_path)
    store.save("consumerOffset.json", {"x": 1}, 100)
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(path.read_bytes().replace(b'"x":1', b'"x":3'))
    found = Snapshots(tmp_path).load("consumerOffset.json")
    assert found is not None
    assert (found.table, found.log_offset) == (JAVAS_TABLE, 0), "records of the log are applied on top"


@settings(max_examples=40)  # each example syncs a dozen times
@given(table=TABLES, offset=OFFSETS, data=st.data())
def test_every_truncation_falls_back(table: dict[str, Any], offset: int, data: st.DataObject) -> None:
    with folder() as place:
        store = Snapshots(place)
        store.save("t.json", {"old": True}, 1)
        store.save("t.json", table, offset)
        whole = (place / "t.json").read_bytes()
        cut = data.draw(st.integers(0, len(whole) - 1))
        (place / "t.json").write_bytes(whole[:cut])
        found = store.load("t.json")
        assert found is not None
        assert (found.table, found.log_offset) == ({"old": True}, 1)
        assert "t.json is broken" in found.note
        assert "t.json.bak and the log are used instead" in found.note
        assert (place / "t.json.broken-1").read_bytes() == whole[:cut]
        assert not (place / "t.json").exists()
        # And again: what was kept stays.
        store.save("t.json", table, offset)
        (place / "t.json").write_bytes(b"")
        store.load("t.json")
        assert (place / "t.json.broken-1").read_bytes() == whole[:cut]
        assert (place / "t.json.broken-2").read_bytes() == b""


@given(table=TABLES, offset=OFFSETS, data=st.data())
def test_a_changed_byte_never_passes_for_ours(table: dict[str, Any], offset: int, data: st.DataObject) -> None:
    whole = encode(table, offset)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    try:
        found = decode(changed)
    except ProtocolError:
        return
    assert found.log_offset is None


@settings(max_examples=50)
@given(st.binary(max_size=64) | st.text(max_size=64).map(str.encode))
def test_garbage_is_kept_and_never_raises(garbage: bytes) -> None:
    with folder() as place:
        (place / "t.json").write_bytes(garbage)
        store = Snapshots(place)
        found = store.load("t.json")
        if found is None:
            assert (place / "t.json.broken-1").read_bytes() == garbage
            assert "kept as t.json.broken-1" in store.notes[0]
            assert store.notes[-1] == "t.json is rebuilt from the log alone"
        else:
            assert isinstance(found.table, dict)
            assert found.log_offset is None


def test_both_broken(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(b'{"a":')
    (tmp_path / "t.json.bak").write_bytes(b"[1]")
    store = Snapshots(tmp_path)
    assert store.load("t.json") is None
    assert sorted(os.listdir(tmp_path)) == ["t.json.bak.broken-1", "t.json.broken-1"]
    assert "expected a JSON object, found list" in store.notes[1]


class Trouble(Files):
    """Fails at the n-th call that changes something."""

    def __init__(self, fail_at: int) -> None:
        self.left = fail_at

    def _step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(5, "Input/output error")

    def truncate(self, fd: int, size: int) -> None:
        self._step()
        super().truncate(fd, size)

    def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
        super().pwrite(fd, bytes(data)[: len(data) // 2], at)
        self._step()
        super().pwrite(fd, data, at)

    def sync(self, fd: int) -> None:
        self._step()
        super().sync(fd)

    def rename(self, old: Path, new: Path) -> None:
        self._step()
        super().rename(old, new)

    def sync_folder(self, path: Path) -> None:
        self._step()
        super().sync_folder(path)


@pytest.mark.parametrize("fail_at", range(1, 8))
def test_a_crash_at_any_step_leaves_a_whole_snapshot(tmp_path: Path, fail_at: int) -> None:
    Snapshots(tmp_path).save("t.json", {"n": 1}, 100)
    Snapshots(tmp_path).save("t.json", {"n": 2}, 200)
    files = Trouble(fail_at)
    try:
        Snapshots(tmp_path, files).save("t.json", {"n": 3}, 300)
        assert files.left > 0, "seven steps are more than there are"
    except OSError:
        pass
    for _ in range(2):  # reading changes nothing
        found = Snapshots(tmp_path).load("t.json")
        assert found is not None
        assert (found.table["n"], found.log_offset) in ((2, 200), (3, 300))
    assert not [name for name in os.listdir(tmp_path) if "broken" in name]
    Snapshots(tmp_path).save("t.json", {"n": 4}, 400)
    assert Snapshots(tmp_path).load("t.json") == Snapshot({"n": 4}, 400)


def test_the_log_is_needed_from_the_oldest_backup_on(tmp_path: Path) -> None:
    store = Snapshots(tmp_path)
    store.save("a.json", {}, 500)
    store.save("b.json", {}, 300)
    assert store.needed_from() == 300
    store.save("b.json", {}, 700)
    assert store.needed_from() == 300  # b.json.bak may be all that survives
    store.save("b.json", {}, 900)
    assert store.needed_from() == 500
    again = Snapshots(tmp_path)
    again.load("b.json")
    assert again.needed_from() == 700
    again.load("a.json")
    assert again.needed_from() == 500


def test_a_file_that_cannot_be_read_is_not_taken_for_a_broken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"t\.json cannot be read"):
        Snapshots(tmp_path).load("t.json")
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(StoreError, match=r"pipe\.json cannot be read: Is a named pipe, .* move it away"):
        Snapshots(tmp_path).load("pipe.json")
    shutil.copy(__file__, tmp_path / "big.json")
    monkeypatch.setattr(snapshots, "FILE_BYTES_MAX", 10)
    with pytest.raises(StoreError, match="more than any file of this kind"):
        Snapshots(tmp_path).load("big.json")


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "FILE_BYTES_MAX", 1000)
    store = Snapshots(tmp_path)
    store.save("t.json", {"n": "small"}, 100)
    for _ in range(2):  # not even the backup goes
        with pytest.raises(
            OSError, match=r"it would have \d+ bytes, and could not be read again: the limit is 1000.*t.json"
        ):
            store.save("t.json", {"n": "x" * 1000}, 200)
    assert store.oldest("t.json") == 100, "the log must keep the rest"
    assert Snapshots(tmp_path).load("t.json") == Snapshot({"n": "small"}, 100)
