from __future__ import annotations

from typing import Any

from tests.cli.conftest import run_kappamq


def test_a_small_bench(kappamq: Any, topic: str) -> None:
    ran = kappamq(*("bench", "--topic", topic, "--messages", "300", "--connections", "2", "-o", "json"))
    assert ran.exit_code == 0, ran.err
    send, receive = ran.json
    assert (send["what"], send["sent"], send["failed"]) == ("send", 300, 0)
    assert 0 < send["p50_ms"] <= send["p99_ms"] <= send["max_ms"]
    assert receive["received"] == 300
    assert receive["messages_per_s"] > 0


def test_batches_and_text(kappamq: Any, topic: str) -> None:
    ran = kappamq(*("bench", "--topic", topic, "--messages", "100", "--batch", "32", "--no-consume"))
    assert ran.exit_code == 0, ran.err
    assert "messages per s" in ran.out


def test_work_that_cannot_be_done() -> None:
    assert run_kappamq("bench", "--size", str(1 << 20), "--batch", "100").exit_code == 2
    assert run_kappamq("bench", "-n", "127.0.0.1:1", "--messages", "10").exit_code == 4
