"""Whole brokers, whatever befalls them: a few histories, and those that have once shown a fault of the broker."""

from __future__ import annotations

import pytest

from kappamq.sim.brokers.cluster import Cluster, run
from kappamq.sim.checkers import Violation
from kappamq.sim.world import World

# What failed when they were drawn: a log that was deleted and not durably so, queues without their first file, offsets and tables that a
# restart changed, members that refused their own logs after a power cut, disks that were full at the start.
ONCE_FAILED = (31, 63, 330, 343, 710039, 710261, 710268, 720104, 740265, 750119)


@pytest.mark.parametrize("seed", [*range(6), *ONCE_FAILED])
def test_nothing_is_lost_and_members_are_the_same(seed: int) -> None:
    cluster = run(seed)
    assert cluster.checker.count > 0
    assert cluster.world.seed == seed


def test_a_seed_is_a_history() -> None:
    one, other = run(3), run(3)
    assert bytes(one.checker.log) == bytes(other.checker.log)
    assert (one.world.events, one.world.now) == (other.world.events, other.world.now)


def test_a_group_that_cannot_recover_is_noticed() -> None:
    class Left(Cluster):
        def heal(self) -> None:
            for machine in list(self.machines.values())[:2]:
                machine.start = lambda: None  # type: ignore[method-assign]
                machine.kill(power=True)
            super().heal()

    with pytest.raises(Violation, match="not well 60 s after the last fault"):
        run(1, Left)


def test_time_of_the_system_is_given_back() -> None:
    import time

    run(2)
    assert abs(time.time() - time.time_ns() / 1e9) < 60
    assert World(1).now == 0
