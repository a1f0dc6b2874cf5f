from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kappamq.local import Local
from tests.cli.conftest import run_kappamq


def test_a_healthy_cluster(kappamq: Any, cluster: Local) -> None:
    ran = kappamq("doctor", "--data", str(cluster.data), "-o", "json")
    found = {
        row["what"]: row for row in reversed(ran.json)
    }  # the first of each: what a broker says of itself comes behind
    assert found[f"name server {cluster.nameserver}"]["health"] == "ok"
    assert found["broker broker-a (master)"]["health"] == "ok"
    assert found["data directory"]["health"] == "ok"
    assert ran.exit_code == (1 if any(row["health"] == "bad" for row in ran.json) else 0)


def test_nobody_at_home(tmp_path: Path) -> None:
    ran = run_kappamq("doctor", "--data", str(tmp_path), "-n", "127.0.0.1:1", "--timeout", "1")
    assert ran.exit_code == 1
    assert "bad  name server 127.0.0.1:1" in ran.out
    assert "is it running" in ran.out


def test_it_says_which_directory_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAPPAMQ_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    shown = run_kappamq("doctor", "--offline").out.replace("\n", " ")
    assert str(tmp_path / ".kappamq") in shown
    assert "neither --data nor $KAPPAMQ_HOME is set" in shown
    monkeypatch.setenv("KAPPAMQ_HOME", str(tmp_path / "here"))
    assert "given by $KAPPAMQ_HOME" in run_kappamq("doctor", "--offline").out.replace("\n", " ")


def test_offline_asks_nobody(tmp_path: Path) -> None:
    ran = run_kappamq("doctor", "--offline", "--data", str(tmp_path), "-o", "json")
    assert not [row for row in ran.json if "server" in row["what"]]
