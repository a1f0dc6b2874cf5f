from kappamq.sim.brokers.cluster import Cluster
from kappamq.sim.brokers.settings import Faults
from kappamq.sim.brokers.virtual import virtual
from kappamq.sim.world import World


def test_what_a_leader_acknowledges_and_a_follower_refuses() -> None:
    world = World(2)
    with virtual(world):
        cluster = Cluster(world, Faults(appends=0))
        cluster.begin()
        leader = cluster.leader()
        assert leader is not None
        follower = next(machine for machine in cluster.machines.values() if machine is not leader)
        clients, checker = cluster.clients, cluster.checker
        for name in (leader.name, follower.name):
            clients._send(name, "tea")  # the first one only connects
        world.run_until(world.now + 500)
        clients._send(follower.name, "tea")
        world.run_until(world.now + 500)
        assert checker.count == 0
        clients._send(leader.name, "tea")
        clients._send(leader.name, "tea", together=4)
        clients._lock(leader.name, "x")
        world.run_until(world.now + 500)
        assert checker.count == 2
        assert len(checker.bodies) == 5
        assert next(iter(checker._leases.values())).keys() == {"x"}
        cluster.heal()
