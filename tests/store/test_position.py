from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.store.checkpoint import Checkpoint
from kappamq.store.files import Files, NotAFile
from kappamq.store.position import Position

OFFSETS = st.integers(0, (1 << 63) - 1)
POSITIONS = st.builds(
    Position,
    dispatched=OFFSETS,
    synced=OFFSETS,
    flushed=OFFSETS,
    index=OFFSETS,
    queues=OFFSETS,
    entries=OFFSETS,
    checkpoint=st.binary(min_size=40, max_size=40),
    checkpoint_before=st.binary(min_size=40, max_size=40),
    last_crc=st.integers(0, (1 << 32) - 1),
    boot_id=st.text(max_size=40),
)


def a_position(**changes: Any) -> Position:
    values: dict[str, Any] = {
        "dispatched": 1000, "synced": 900, "flushed": 950, "index": 980, "queues": 3, "entries": 12,
        "checkpoint": bytes(range(40)), "last_crc": 77, "boot_id": "b-1",
    }  # fmt: skip
    return Position(**values | changes)


@given(POSITIONS)
def test_round_trip(position: Position) -> None:
    assert Position.decode(position.encode()) == position


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "kappamq.position"
    assert Position.load(path) == (None, "")
    for sync in (False, True):
        a_position(index=990).save(path, sync=sync)
        assert Position.load(path) == (a_position(index=990), "")
    assert os.listdir(tmp_path) == ["kappamq.position"]


@given(data=st.data())
def test_any_damage_is_noticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "kappamq.position"
    good = data.draw(POSITIONS)
    text = good.encode()
    if data.draw(st.booleans()):
        text = text[: data.draw(st.integers(0, len(text) - 2))]  # without the last line feed it is still whole
    else:
        at = data.draw(st.integers(0, len(text) - 1))
        text = text[:at] + bytes([text[at] ^ data.draw(st.integers(1, 255))]) + text[at + 1 :]
    path.write_bytes(text)
    position, why = Position.load(path)
    # White space may change (it carries nothing); whatever is accepted must be what was written.
    assert position == good or (position is None and str(path) in why)


@given(st.binary(max_size=200))
def test_garbage_is_refused_with_a_reason(garbage: bytes) -> None:
    with pytest.raises(ValueError, match="it"):
        Position.decode(garbage)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": 2}, "has format 2, this version knows 1"),
        ({"dispatched": -1}, "dispatched is missing or not an integer"),
        ({"dispatched": True}, "dispatched is missing"),
        ({"synced": "12"}, "synced is missing"),
        ({"boot_id": None}, "boot_id is missing or not a string"),
        ({"checkpoint": "00"}, "checkpoint has 1 bytes"),
        ({"checkpoint": "xy"}, "fromhex"),
    ],
)
def test_wrong_values_are_named(change: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kappamq.store.position._crc", lambda values: 0)
    text = json.dumps(json.loads(a_position().encode()) | change)
    with pytest.raises(ValueError, match=why):
        Position.decode(text.encode())


def test_a_failing_disk_leaves_the_old_one(tmp_path: Path) -> None:
    class Full(Files):
        def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
            os.pwrite(fd, bytes(data)[:20], at)
            raise OSError(28, "No space left on device")

    path = tmp_path / "kappamq.position"
    a_position().save(path)
    with pytest.raises(OSError, match="No space"):
        a_position(index=5000).save(path, Full())
    assert Position.load(path) == (a_position(), "")
    a_position(index=5000).save(path)
    assert Position.load(path) == (a_position(index=5000), "")


def test_a_file_without_rights_gives_a_reason(tmp_path: Path) -> None:
    (tmp_path / "kappamq.position").symlink_to(tmp_path / "elsewhere")
    position, why = Position.load(tmp_path / "kappamq.position")
    assert position is None
    assert "cannot be opened" in why


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_who_will_replace_it_hears_at_once_that_it_is_no_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "kappamq.position"
    make(path)
    position, why = Position.load(path)
    assert position is None
    assert "not a plain file" in why
    with pytest.raises(NotAFile, match=r"kappamq\.position"):
        Position.load(path, to_replace=True)


def test_knows_the_checkpoints_it_wrote() -> None:
    position = a_position(checkpoint=b"n" * 40, checkpoint_before=b"o" * 40)
    assert position.wrote(b"n" * 40)
    assert position.wrote(b"o" * 40 + bytes(4056))
    assert not position.wrote(b"j" * 40)


def test_damage_explains_a_checkpoint_that_is_not_ours() -> None:
    now = 1_700_000_000_000
    ours = Checkpoint(now, now, now)
    position = a_position(checkpoint=ours.encode())
    assert position.is_damaged(Checkpoint(now ^ 4, now, now), lambda: now), "one bit"
    assert position.is_damaged(Checkpoint(), lambda: now), "no file"
    assert position.is_damaged(Checkpoint(now * 9, now * 9, now), lambda: now), "times of records that cannot be"
    assert not position.is_damaged(Checkpoint(now + 5000, now + 4000, now), lambda: now), "another broker"
    assert not position.is_damaged(Checkpoint(now * 2, now * 2, now), lambda: now * 2), "with newer records"
