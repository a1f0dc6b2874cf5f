from __future__ import annotations

from array import array

from kappamq.cli.load import Sent, percentile


def test_percentiles() -> None:
    hundred = [float(number) for number in range(100)]
    assert (percentile(hundred, 0.5), percentile(hundred, 0.99), percentile([], 0.5)) == (50.0, 99.0, 0.0)
    assert percentile([7.0], 0.99) == 7.0


def test_figures() -> None:
    sent = Sent(messages=2048, requests=2, failures=["x"], latencies_ms=array("f", [2.0, 1.0, 4.0]))
    assert sent.figures(2.0, 1024) == {
        "sent": 2048,
        "failed": 1,
        "seconds": 2.0,
        "messages_per_s": 1024,
        "mib_per_s": 1.0,
        "p50_ms": 2.0,
        "p99_ms": 4.0,
        "max_ms": 4.0,
    }
    assert Sent().figures(0.0, 1)["messages_per_s"] == 0
