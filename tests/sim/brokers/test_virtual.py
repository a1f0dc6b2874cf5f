import random
import time

from kappamq.sim.brokers.virtual import START_MS, WorldClock, virtual
from kappamq.sim.world import World


def test_time_and_dice_are_the_worlds() -> None:
    world = World(4)
    with virtual(world):
        first = random.random()
        assert time.time_ns() == START_MS * 1_000_000
        before = time.monotonic()
        world.run_until(2_000)
        assert time.monotonic() == before + 2
        assert time.time() * 1000 == START_MS + 2_000
    with virtual(World(4)):
        assert random.random() == first
    assert abs(time.time() * 1000 - START_MS) > 1e9, "outside it is the time that it is"


def test_a_machine_may_have_a_clock_that_is_wrong() -> None:
    world = World(1)
    right, wrong = WorldClock(world), WorldClock(world, skew_ms=-400)
    world.run_until(1_000)
    assert right.message_ms() - wrong.message_ms() == 400
    assert (right.liveness(), right.uptime_ms()) == (wrong.liveness(), wrong.uptime_ms())
