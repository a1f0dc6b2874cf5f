from __future__ import annotations

import pytest

from kappamq.client.producer.faults import Failing, LatencyFaults, avoided_ms
from kappamq.message import MessageQueue

QUEUES = [MessageQueue("tea", broker, n) for broker in "abc" for n in range(2)]


def brokers(faults: Failing | LatencyFaults, now: float, avoid: str | None = None) -> str:
    return "".join(sorted({queue.broker for queue in faults.usable(QUEUES, avoid, now)}))


@pytest.mark.parametrize(
    ("latency", "avoided"),
    [
        *((0, 0), (49, 0), (50, 0), (100, 0), (549, 0), (550, 2000), (1799.9, 2000), (1800, 5000), (2999, 5000)),
        *((3000, 6000), (4999, 6000), (5000, 10_000), (10_000, 10_000), (14_999, 10_000), (15_000, 30_000)),
        (10**9, 30_000),
    ],
)
def test_the_slower_the_longer(latency: float, avoided: int) -> None:
    assert avoided_ms(latency) == avoided


def test_a_slow_broker_is_left_alone_until_its_time_is_over() -> None:
    faults = LatencyFaults()
    faults.answered("a", 0.02, now=100)
    assert brokers(faults, 100) == "abc"
    faults.answered("a", 0.6, now=100)
    assert brokers(faults, 100) == "bc"
    assert brokers(faults, 101.99) == "bc"
    assert brokers(faults, 102) == "abc"


def test_a_quick_answer_makes_good_again() -> None:
    faults = LatencyFaults()
    faults.failed("a", 100, reachable=True)
    assert brokers(faults, 109.9) == "bc"
    faults.answered("a", 0.01, now=101)
    assert brokers(faults, 101) == "abc"


def test_available_ones_first_then_reachable_ones_then_all() -> None:
    faults = LatencyFaults()
    faults.failed("a", 0, reachable=False)
    assert brokers(faults, 1, avoid="b") == "c"
    faults.failed("b", 0, reachable=True)
    assert brokers(faults, 1, avoid="c") == "b"  # not available, but it can be reached, and is not the last
    faults.failed("b", 0, reachable=False)
    assert brokers(faults, 1, avoid="c") == "abc"


def test_nobody_is_passed_over_before_anything_went_wrong() -> None:
    for faults in (LatencyFaults(), Failing()):
        assert faults.usable(QUEUES, "a", 0) is QUEUES


def test_without_the_table_only_the_unreachable_are_passed_over_and_not_for_long() -> None:
    failing = Failing(2.0)
    failing.answered("a", 60, now=0)
    failing.failed("b", 0, reachable=True)
    assert brokers(failing, 0) == "abc"
    failing.failed("b", 0, reachable=False)
    assert brokers(failing, 1.9) == "ac"
    assert brokers(failing, 2.1) == "abc"
    for broker in "abc":
        failing.failed(broker, 10, reachable=False)
    assert brokers(failing, 10) == "abc"


def test_a_broker_that_fails_while_a_thread_looks_is_not_forgotten() -> None:
    class Meanwhile(float):
        """A time at whose comparison another broker fails, as the loop may tell between any two steps of a thread."""

        def __lt__(self, until: float) -> bool:
            failing.failed("c", 1, reachable=False)
            return float(self) < until

    failing = Failing(2.0)
    failing.failed("a", 0, reachable=False)
    failing.failed("b", 1, reachable=False)
    assert brokers(failing, Meanwhile(2.5)) == "ac"
    assert brokers(failing, 2.5) == "a"
    assert brokers(failing, 3.5) == "abc"
    assert not failing.any_failed
