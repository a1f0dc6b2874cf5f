from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from kappamq.local import LocalThread
from tests.cli.conftest import Ran, run_kappamq, small_local

SIZES = ["--set", "maxHashSlotNum=1000", "--set", "maxIndexNum=4000"]  # as in conftest.SMALL


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with five messages in one queue, two of them with keys, stopped in good order."""
    with LocalThread(small_local(tmp_path)) as local:
        for number in range(5):
            key = ["--key", f"k{number}"] if number < 2 else []
            ran = run_kappamq(
                "send", "-n", local.nameserver, "-t", "tea", "-b", f"cup {number}", "--order-key", "x", *key
            )
            assert ran.exit_code == 0, ran.err
    return tmp_path


def kappamq_store(command: str, data: Path, *arguments: str) -> Ran:
    return run_kappamq("store", command, "--data", str(data), *SIZES, *arguments)


def test_inspect_tells_what_is_there(store: Path) -> None:
    (told, *records) = kappamq_store("inspect", store, "-o", "json", "--log", "1000").json
    (tea,) = [row for row in told["topics"] if row["topic"] == "tea"]
    assert tea == {"topic": "tea", "queues": 1, "messages": 5}
    assert told["state"] == "stopped"
    assert told["log_max_offset"] > told["log_min_offset"] == 0
    assert sum(found["entries"] for found in told["index"]) == told["index_entries"] == 7  # five ids and two keys
    assert [record["body"] for record in records if record["topic"] == "tea"] == [f"cup {n}" for n in range(5)]


def test_inspect_for_people(store: Path) -> None:
    ran = kappamq_store("inspect", store, "--topic", "tea", "--log", "100")
    assert ran.exit_code == 0, ran.err
    for text in (str(store), "stopped cleanly", "16.0 MiB", "cup 4", "7 entries in 1 file"):
        assert text in ran.out
    assert "queue" in kappamq_store("inspect", store, "--queues").out
    assert kappamq_store("inspect", store, "--topic", "no_such").exit_code == 5


def test_a_good_store_is_verified(store: Path) -> None:
    ran = kappamq_store("verify", store)
    assert ran.exit_code == 0, ran
    assert "no problems found" in ran.out
    (told,) = kappamq_store("verify", store, "-o", "json").json
    assert told["ok"] is True
    assert told["records"] >= 5


def test_damage_is_found_and_nothing_is_changed(store: Path) -> None:
    log = store / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    place = data.index(b"cup 1")
    data[place] ^= 0xFF
    log.write_bytes(data)
    before = contents(store)
    ran = kappamq_store("verify", store)
    assert ran.exit_code == 1
    assert "problem" in ran.out
    assert "(s)" not in ran.out
    (told,) = kappamq_store("verify", store, "-o", "json", "--problems", "1").json
    assert told["ok"] is False
    assert len(told["problems"]) == 1
    assert told["problem_count"] >= 1
    shown = kappamq_store("inspect", store, "--log", "100")
    assert "are not records" in shown.err
    assert contents(store) == before


def contents(store: Path) -> dict[str, Any]:
    return {str(path): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


def test_while_a_broker_runs(kappamq: Any, cluster: Any, topic: str) -> None:
    assert kappamq("send", "-t", topic, "-b", "x").exit_code == 0
    (told,) = kappamq_store("inspect", cluster.data, "-o", "json").json
    assert (told["state"], told["process"]) == ("running", os.getpid())
    assert kappamq_store("verify", cluster.data).exit_code == 0


def test_after_a_crash(store: Path) -> None:
    (store / "abort").write_text("4711")
    (told,) = kappamq_store("inspect", store, "-o", "json").json
    assert (told["state"], told["process"]) == ("crashed", 4711)
    assert "(process 4711) did not stop cleanly" in kappamq_store("inspect", store).out


@pytest.fixture
def killed(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, as if the broker had been killed before it wrote any queue."""
    shutil.copytree(store, copy := tmp_path_factory.mktemp("killed") / "data")
    for name in ("consumequeue", "index"):
        shutil.rmtree(copy / name)
    (copy / "kappamq.position").unlink()
    (copy / "abort").write_text("4711")
    return copy


def test_inspect_counts_records_that_are_not_in_their_queues(
    store: Path, killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as `verify` does; at a good stop there are none."""
    (told,) = kappamq_store("inspect", store, "-o", "json").json
    assert told["not_in_queues"] == 0
    assert "not in their queues yet" not in kappamq_store("inspect", store).out + kappamq_store("inspect", store).err
    (told,) = kappamq_store("inspect", killed, "-o", "json").json
    (report,) = kappamq_store("verify", killed, "-o", "json").json
    assert told["not_in_queues"] == report["undispatched"] >= 5
    ran = kappamq_store("inspect", killed)
    count = report["undispatched"]
    assert f"not in their queues yet: {count} records of the log; the next start adds them" in ran.out + ran.err
    monkeypatch.setattr("kappamq.cli.store._LOOKED_AT_MAX", 3)
    ran = kappamq_store("inspect", killed)
    assert "not in their queues yet: at least 3 records" in ran.out + ran.err


def test_inspect_counts_from_where_the_queues_end(store: Path) -> None:
    """Without our position, as in a Java broker's store: what was stored behind the third message has not got into any queue."""
    (store / "kappamq.position").unlink()
    (store / "abort").write_text("4711")
    for folder in (store / "consumequeue").iterdir():
        if folder.name != "tea":
            shutil.rmtree(folder)
    path = next((store / "consumequeue" / "tea").iterdir()) / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data[:60] + bytes(len(data) - 60))
    (told, *records) = kappamq_store("inspect", store, "-o", "json", "--log", "1000").json
    (third,) = [record for record in records if record["body"] == "cup 2"]
    assert told["not_in_queues"] == sum(record["log_offset"] > third["log_offset"] for record in records) >= 2


def test_no_store(tmp_path: Path) -> None:
    for command in ("inspect", "verify"):
        ran = kappamq_store(command, tmp_path)
        assert ran.exit_code == 7
        assert "is not a data directory" in ran.err


def test_cut_takes_the_end_off_and_keeps_it_aside(store: Path) -> None:
    (told, *records) = kappamq_store("inspect", store, "-o", "json", "--log", "1000").json
    cups = [record["log_offset"] for record in records if record["topic"] == "tea"]
    wrong = kappamq_store("cut", store, "--to", str(cups[3] + 1))
    assert wrong.exit_code == 7
    assert f"The nearest places are {cups[3]} or" in wrong.err
    ran = kappamq_store("cut", store, "--to", str(cups[3]))
    assert ran.exit_code == 0, ran.err
    assert f"ends at {cups[3]} now" in ran.out + ran.err
    (kept,) = store.glob("cut-*.bin")
    assert b"cup 3" in kept.read_bytes()
    (after,) = kappamq_store("inspect", store, "-o", "json").json
    assert (after["log_max_offset"], after["state"]) == (cups[3], "stopped")
    assert [row["messages"] for row in after["topics"] if row["topic"] == "tea"] == [3]
    assert kappamq_store("verify", store).exit_code == 0
    (again,) = kappamq_store("cut", store, "--to", str(cups[3]), "-o", "json").json
    assert (again["records"], again["kept"]) == (0, None)
    with LocalThread(small_local(store)) as local:
        refused = kappamq_store("cut", store, "--to", "0")
        assert refused.exit_code == 7
        assert "open in this process already" in refused.err
        ran = run_kappamq("send", "-n", local.nameserver, "-t", "tea", "-b", "cup 5", "--order-key", "x")
        assert ran.exit_code == 0, ran.err
    assert told["log_max_offset"] > cups[3]
    assert kappamq_store("verify", store).exit_code == 0
