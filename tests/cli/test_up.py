"""`kappamq up` with several processes, as a user starts it; with one: test_serve.py."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SMALL, run_kappamq
from tests.cli.test_serve import started
from tests.processes.test_child import is_running
from tests.waiting import eventually

SET = [part for name, value in SMALL.items() if name != "brokerName" for part in ("--set", f"{name}={value}")]
COMMAND = [sys.executable, "-m", "kappamq"]
UP = ["up", "--nameserver-port", "0", "--broker-port", "0", *SET, "--json"]


def test_one_line_when_all_are_ready(tmp_path: Path) -> None:
    with started(*UP, "--data", str(tmp_path), "--brokers", "2", "--slaves", "1") as (told, process):
        assert set(told) == {"nameserver", "data", "brokers"}
        assert told["data"] == str(tmp_path)
        rows = told["brokers"]
        assert [(row["name"], row["id"], row["role"]) for row in rows] == [
            ("broker-a", 0, "master"),
            ("broker-a", 1, "slave"),
            ("broker-b", 0, "master"),
            ("broker-b", 1, "slave"),
        ]
        assert all(set(row) == {"name", "id", "address", "pid", "role", "member"} for row in rows)
        assert all(is_running(row["pid"]) for row in rows)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, ""), err
    assert not any(is_running(row["pid"]) for row in rows)


def test_ctrl_c_stops_all(tmp_path: Path) -> None:
    with started(*UP, "--data", str(tmp_path), "--brokers", "2") as (told, process):
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert not any(is_running(row["pid"]) for row in told["brokers"])


def test_no_broker_outlives_a_killed_parent(tmp_path: Path) -> None:
    pids: list[int] = []
    with pytest.raises(AssertionError), started(*UP, "--data", str(tmp_path), "--brokers", "2") as (told, process):
        pids += [row["pid"] for row in told["brokers"]]
        process.kill()
    assert len(pids) == 2
    eventually(lambda: not any(map(is_running, pids)), text="the brokers stop, too")
    # And they stopped in good order: the next start has nothing to recover.
    with started(*UP, "--data", str(tmp_path), "--brokers", "2") as (_, process):
        process.send_signal(signal.SIGTERM)
        assert "did not stop cleanly" not in process.communicate(timeout=60)[1]


def test_people_get_a_line_for_each(tmp_path: Path) -> None:
    arguments = [part for part in UP if part != "--json"]
    with subprocess.Popen(
        [*COMMAND, *arguments, "--data", str(tmp_path), "--slaves", "1", "--async"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(5)]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert "is ready" in said[0]
    assert "2 brokers" in said[0]
    assert [word for line in said[2:4] for word in ("master", "slave 1") if f"  {word}, process " in line] == [
        *("master", "slave 1"),
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--raft", "2"], 2, "a group has 3 or 5 members"),
        (["--raft", "3", "--slaves", "1"], 2, "choose --raft or --slaves"),
        (["--async"], 2, "give --slaves, too"),
        (["--set", "nameserver.port=3"], 3, "use --nameserver-port"),
        (["--set", "store.flush_intervall_ms=3"], 3, "did you mean store.flush_interval_ms?"),
        (["--brokers", "0"], 2, "--brokers"),
        (["--slaves", "1", "--set", "brokerRole=SLAVE"], 3, "is decided by --slaves"),
        (["--slaves", "1", "--set", "inSyncReplicas=3"], 3, "more copies than there are brokers"),
        (["--brokers", "2", "--set", "aclEnable=true"], 3, "the broker would be open"),
        (["--brokers", "2", "--broker-port", "65530"], 3, "65540"),
    ],
)
def test_wrong_shapes_start_nothing(tmp_path: Path, arguments: list[str], code: int, text: str) -> None:
    ran = run_kappamq(*UP, "--data", str(tmp_path / "d"), *arguments)
    assert ran.exit_code == code, ran
    assert text in ran.err
    assert not (tmp_path / "d" / "brokers").exists()


def test_the_folder_of_one_shape_is_not_taken_for_that_of_another(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    ran = run_kappamq(*UP, "--data", str(tmp_path), "--brokers", "2")
    assert ran.exit_code == 7
    assert "holds the store of a single broker" in ran.problem["error"]
    (tmp_path / "commitlog").rmdir()
    (tmp_path / "brokers" / "a-0").mkdir(parents=True)
    (tmp_path / "brokers" / "a-1").mkdir()
    ran = run_kappamq(*UP, "--data", str(tmp_path))
    assert ran.exit_code == 7, ran
    assert f"start them with `kappamq up --data {tmp_path} --slaves 1`" in ran.problem["error"]
    assert not (tmp_path / "commitlog").exists(), "nothing was begun beside them"


def test_a_broker_stops_when_standard_input_ends(tmp_path: Path) -> None:
    command = [
        *COMMAND,
        "broker",
        "-n",
        "none",
        "--port",
        "0",
        "--listen",
        "127.0.0.1",
        "--json",
        *SET,
        "--stop-at-eof",
    ]
    with subprocess.Popen(
        [*command, "--data", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "ready"
        _, err = process.communicate("this is not the end", timeout=60)
        assert process.returncode == 0, err
    done = subprocess.run(
        [*command, "--data", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert "--stop-at-eof needs a pipe" in done.stderr


def _one_view_of_its_members(nameserver: str, leader: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    at = {row["member"]: row["address"] for row in rows}
    group = ("-n", nameserver, "-o", "json")

    def shown() -> dict[str, tuple[str, str]]:
        return {row["member"]: (row["address"], row["standing"]) for row in run_kappamq("cluster", *group).json}

    eventually(lambda: shown() == {name: (address, "voter") for name, address in at.items()}, text="all are voters")
    wrong = run_kappamq("member", "replace", "broker-a", _other(at, leader), at[leader["member"]], *group)
    assert f"is where clients reach {leader['member']}: give the port of copies" in wrong.problem["error"]
    moved = run_kappamq("transfer-leader", "broker-a", *group).json[0]
    assert moved["leader"] != leader["member"]
    assert (moved["address"], moved["term"] > 0) == (at[moved["leader"]], True)
    eventually(lambda: run_kappamq("cluster", *group).json[0]["member"] == moved["leader"], text="all know it")
    again = run_kappamq("transfer-leader", "broker-a", "--to", moved["leader"], *group)
    assert f"{moved['leader']} leads broker-a already" in again.problem["error"]
    removed = _other(at, {"member": moved["leader"]})
    ran = run_kappamq("member", "remove", "broker-a", removed, *group)
    assert (ran.exit_code, "2 voters" in ran.err, "the loss of one stops the group" in ran.err) == (0, True, True), ran
    assert shown()[removed] == (at[removed], "removed")
    ran = run_kappamq("doctor", *group)
    assert f"broker broker-a ({removed})" in ran.out


def _other(at: dict[str, str], leader: dict[str, Any]) -> str:
    return next(name for name in sorted(at) if name != leader["member"])


def test_a_refused_shape_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    with started(*UP, "--data", str(tmp_path), "--slaves", "1") as (told, process):
        ran = run_kappamq("send", "-n", told["nameserver"], "--topic", "tea", "--body", "x")
        assert ran.exit_code == 0, ran
        before = _files(tmp_path)
        ran = run_kappamq(*UP, "--data", str(tmp_path), "--raft", "3")
        assert (ran.exit_code, "is in use by process" in ran.problem["error"]) == (7, True)
        assert _files(tmp_path) == before
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    for wrong in ("--raft 3", "--raft 5"):
        ran = run_kappamq(*UP, "--data", str(tmp_path), *wrong.split())
        assert (ran.exit_code, f"kappamq up --data {tmp_path} --slaves 1`" in ran.problem["error"]) == (7, True), ran
        assert _files(tmp_path) == before


def _files(root: Path) -> dict[str, str]:
    folder = root / "brokers"
    return {path.name: path.read_text() if path.is_file() else "" for path in sorted(folder.iterdir())}


def test_a_raft_group_is_ready_with_a_leader(tmp_path: Path) -> None:
    with started(*UP, "--data", str(tmp_path), "--raft", "3") as (told, process):
        roles = sorted(row["role"] for row in told["brokers"])
        assert roles == ["follower", "follower", "leader"]
        (leader,) = (row for row in told["brokers"] if row["role"] == "leader")
        assert leader["id"] == 0
        assert {row["name"] for row in told["brokers"]} == {"broker-a"}
        assert sorted(row["member"] for row in told["brokers"]) == ["n0", "n1", "n2"]
        _one_view_of_its_members(told["nameserver"], leader, told["brokers"])
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
        assert (out, "leads group" in err) == ("", False), "that somebody leads is no warning"
    assert not any(is_running(row["pid"]) for row in told["brokers"])
