from random import Random

from kappamq.sim.brokers.settings import Faults


def test_each_seed_has_its_own() -> None:
    drawn = [Faults.drawn(Random(seed)) for seed in range(50)]
    assert {faults.kernel for faults in drawn} == {"native", "twin"}
    assert any(faults.crashes for faults in drawn)
    assert any(faults.wipes for faults in drawn)
    assert Faults.drawn(Random(1)) == Faults.drawn(Random(1))
    assert Faults().crashes == Faults().loss == 0, "nothing goes wrong unless it is asked for"
