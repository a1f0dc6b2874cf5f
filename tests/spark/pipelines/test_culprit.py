"""Halving, and what a checkpoint says of the batch that failed; the rest is tested with a project that fails (test_resident)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kappamq.errors import ConfigError
from kappamq.spark.pipelines.culprit import Pending, Rows, narrowed, refuse_rows

QUEUES = [Rows("t", "b", 0, 0, 100), Rows("t", "b", 1, 40, 1040), Rows("t", "b", 2, 0, 7)]


def fails_at(queue: int, *offsets: int) -> Any:
    return lambda rows: rows.queue == queue and any(rows.start <= offset < rows.stop for offset in offsets)


@pytest.mark.parametrize("offset", [40, 41, 539, 540, 1038, 1039])
def test_one_row_is_found(offset: int) -> None:
    tries: list[Rows] = []

    def fails(rows: Rows) -> bool:
        tries.append(rows)
        return bool(fails_at(1, offset)(rows))

    assert narrowed(QUEUES, fails) == Rows("t", "b", 1, offset, offset + 1)
    assert len(tries) <= 2 + 10


def test_the_first_of_several_rows_is_found() -> None:
    assert narrowed(QUEUES, fails_at(1, 700, 90, 80)) == Rows("t", "b", 1, 80, 81)


def test_no_row_by_itself() -> None:
    assert narrowed(QUEUES, lambda _rows: False) is None
    assert narrowed([], fails_at(0, 1)) is None


def test_time_is_limited() -> None:
    now = iter(range(1000))
    found = narrowed(QUEUES, fails_at(1, 700), patience_s=6, clock=lambda: float(next(now)))
    assert found is not None
    assert 1 < found.stop - found.start < 1000
    assert found.start <= 700 < found.stop


def test_rows_in_words() -> None:
    assert str(Rows("t", "b", 1, 7, 8)) == "the row of topic t, broker b, queue 1, offset 7"
    assert str(Rows(None, None, 1, 7, 9)) == "a row of queue 1, offsets 7 to 8"


def checkpoint(root: Path, *batches: list[Any]) -> Path:
    (root / "offsets").mkdir()
    for number, sources in enumerate(batches):
        lines = ["v1", "{}", *(json.dumps(source) if source is not None else "-" for source in sources)]
        (root / "offsets" / str(number)).write_text("\n".join(lines))
    return root


def queues(**ends: int) -> dict[str, Any]:
    return {"version": 1, "queues": {f"t/b/{name[1:]}": {"next": end} for name, end in ends.items()}}


def test_the_pending_batch_of_a_topic(tmp_path: Path) -> None:
    after = queues(q0=10, q1=5, q2=4)
    after["queues"]["t/b/2"]["begin"] = 2
    found = Pending.of(checkpoint(tmp_path, [queues(q0=3, q1=5)], [after]))
    assert found.ranges == (Rows("t", "b", 0, 3, 10), Rows("t", "b", 2, 2, 4))


def test_the_pending_batch_of_a_table(tmp_path: Path) -> None:
    log = tmp_path / "sources" / "0"
    log.mkdir(parents=True)
    entries = [{"path": f"file:///w/{number}.parquet", "timestamp": 1, "batchId": number} for number in range(4)]
    (log / "2.compact").write_text("\n".join(["v1", *map(json.dumps, entries[:3])]))
    (log / "3").write_text("\n".join(["v1", json.dumps(entries[3])]))
    (log / ".3.crc").write_text("x")
    found = Pending.of(checkpoint(tmp_path, [{"logOffset": 0}], [{"logOffset": 3}]))
    assert sorted(found.files) == [f"file:///w/{number}.parquet" for number in (1, 2, 3)]
    assert found.ranges == ()


@pytest.mark.parametrize("lines", [["v1"], ["v1", "{}", "x{"], ["v1", "{}", '{"queues": 5}'], ["v1", "{}", "[5]"]])
def test_other_checkpoints_tell_nothing(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("\n".join(lines))
    assert Pending.of(tmp_path) == Pending()


def test_no_checkpoint(tmp_path: Path) -> None:
    assert Pending.of(None) == Pending.of(tmp_path / "none") == Pending()


def test_rows_that_a_sink_refuses() -> None:
    good = pa.RecordBatch.from_pydict({"body": pa.array([b"x", b"y"])})
    assert list(refuse_rows(iter([good]))) == []
    with pytest.raises(ConfigError, match="row 1 cannot be a message: its body is empty"):
        list(refuse_rows(iter([good, pa.RecordBatch.from_pydict({"body": pa.array([b"x", b""])})])))
