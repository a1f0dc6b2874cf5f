from kappamq.sim.brokers.cluster import Cluster
from kappamq.sim.brokers.machine import ROOT
from kappamq.sim.brokers.settings import Faults
from kappamq.sim.brokers.virtual import virtual
from kappamq.sim.world import World


def test_a_machine_runs_broker_after_broker_on_its_disk() -> None:
    world = World(5)
    with virtual(world):
        cluster = Cluster(world, Faults())
        cluster.begin()
        machine = cluster.machines["A"]
        assert machine.is_up
        me = machine.me
        machine.kill(power=False)
        assert (machine.alive, machine.boots) == (False, 0)
        cluster._start(machine)
        world.run_until(world.now + 1_000)
        assert machine.is_up
        assert (machine.lives, machine.me) == (2, me), "it is the same member, with the same disk"
        machine.kill_within(1, power=True)
        world.run_until(world.now + 5_000)
        assert not machine.alive
        assert machine.boots == 1
        machine.wipe()
        assert (machine.me, machine.disk.tree(ROOT)) == (None, {})
        cluster._start(machine)
        cluster.heal()
        assert machine.me is not None
        assert machine.me != me, "without its disk it is somebody else"
