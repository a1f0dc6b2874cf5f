"""Reading a stretch of a log: records longer than a read, and files that retention takes away meanwhile."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from kappamq import Message
from kappamq.errors import StoreDamaged
from kappamq.protocol.records import compression
from kappamq.spark.store import reading as store_reading
from kappamq.spark.store.options import OnDamage, StoreOptions
from kappamq.spark.store.reading import StretchReader
from kappamq.store.log.stretches import Stretch, Stretches
from kappamq.store.reader import StoreReader
from kappamq.testing import BrokerKit

FILE = 256 << 10


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    sizes = {"mappedFileSizeCommitLog": FILE, "maxMessageSize": 64 << 10}
    with BrokerKit(data=folder, properties=sizes) as broker, broker.producer() as producer:
        for number in range(12):
            producer.send(Message("tea", b"%02d" % number + os.urandom(50_000)))
    return folder


def bodies(store: Path, stretch: Stretch, policy: OnDamage = OnDamage.FAIL) -> list[bytes]:
    reader = StretchReader(StoreOptions(path=str(store), on_damage=policy), ("body",))
    return [body[:2] for batch in reader.read([stretch]) for body in batch.column("body").to_pylist() if body]


def test_records_longer_than_a_read(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bodies(store, Stretch(0, 2 * FILE))
    assert len(whole) > 5
    monkeypatch.setattr(store_reading, "READ_BYTES", 4096)
    assert bodies(store, Stretch(0, 2 * FILE)) == whole


def test_files_that_are_gone_are_a_gap(store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Retention is no damage: whatever onDamage says, reading goes on behind it, and it is told."""
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    (copy / "commitlog" / f"{0:020d}").unlink()
    left = bodies(store, Stretch(FILE, 2 * FILE))
    assert left
    for policy in OnDamage:
        caplog.clear()
        assert bodies(copy, Stretch(0, 2 * FILE), policy) == left
        told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len(told) == 1
        assert f"bytes 0 to {FILE} of the log in {copy} were deleted by retention while they were read" in told[0]
    reader = StretchReader(StoreOptions(path=str(copy), on_damage=OnDamage.ROWS), ("logOffset", "size", "damage"))
    (row,) = (row for batch in reader.read([Stretch(0, 2 * FILE)]) for row in batch.to_pylist() if row["damage"])
    assert row == {"logOffset": 0, "size": FILE, "damage": "deleted by retention while it was read"}


def test_a_file_that_is_missing_in_the_middle_is_damage(store: Path, tmp_path: Path) -> None:
    """Retention deletes from the beginning only."""
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    (copy / "commitlog" / f"{FILE:020d}").unlink()
    with pytest.raises(StoreDamaged, match=f"bytes {FILE} to "):
        bodies(copy, Stretch(0, 3 * FILE))


def test_damage_in_a_store_without_a_position_is_told(store: Path, tmp_path: Path) -> None:
    """A Java broker's store has none: there the damage itself would pass for the end of the log."""
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    (copy / "kappamq.position").unlink()
    with StoreReader(copy) as reader:
        end = Stretches(reader).end()
        begins = [record.log_offset for record in reader.read_log() if record.topic == "tea"]
    damaged = begins[-2]
    with (copy / "commitlog" / f"{damaged - damaged % FILE:020d}").open("r+b") as file:
        file.seek(damaged % FILE)
        file.write(b"\xff" * 30)
    with StoreReader(copy) as reader:
        stretch = Stretch(0, Stretches(reader).end())
    assert stretch.stop == end
    with pytest.raises(StoreDamaged, match=f"bytes {damaged} to .* these bytes are no record"):
        bodies(copy, stretch)
    whole = bodies(store, stretch)
    whole.pop(begins.index(damaged))
    assert bodies(copy, stretch, OnDamage.ROWS) == whole


def test_a_body_that_cannot_be_unpacked_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BrokerKit(data=tmp_path) as broker, broker.producer() as producer:
        producer.send(Message("tea", b"first"))
        with monkeypatch.context() as patched:
            patched.setattr(compression, "compress", lambda *_: b"x" * 6000)
            producer.send(Message("tea", bytes(20_000)))
        producer.send(Message("tea", b"last"))
    path, rows = str(tmp_path), OnDamage.ROWS
    with closing(StoreReader(tmp_path)) as store:
        stretch = Stretch(0, Stretches(store).end())
    with pytest.raises(StoreDamaged, match="cannot be decompressed"):
        list(StretchReader(StoreOptions(path=path, topics=("tea",)), ("body",)).read([stretch]))
    reader = StretchReader(StoreOptions(path=path, topics=("tea",), on_damage=rows), ("body", "size", "damage"))
    found = [row for batch in reader.read([stretch]) for row in batch.to_pylist()]
    assert [row["body"] for row in found if row["damage"] is None] == [b"first", b"last"]
    (damage,) = (row for row in found if row["damage"] is not None)
    assert "cannot be decompressed" in damage["damage"]
    assert damage["size"] > 6000
