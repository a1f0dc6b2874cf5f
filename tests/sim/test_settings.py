from random import Random

from kappamq.sim.settings import Faults


def test_seeds_differ_and_every_fault_comes_up() -> None:
    drawn = [Faults.drawn(Random(seed)) for seed in range(300)]
    assert Faults.drawn(Random(7)) == drawn[7]
    assert {faults.voters for faults in drawn} == {1, 2, 3, 4, 5}
    for name in Faults.__slots__:
        assert len({getattr(faults, name) for faults in drawn}) > 1, f"{name} is always the same"
    calm = [faults for faults in drawn if not faults.loss and not faults.crashes and not faults.partitions]
    assert calm, "a bug that needs quiet is never found"
