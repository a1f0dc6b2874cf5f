"""The simulated driver keeps the contract that it is there to test the core with."""

from __future__ import annotations

from dataclasses import replace

from kappamq.raft import Ballot, Role
from kappamq.sim.broker import Broker
from kappamq.sim.cluster import Cluster
from kappamq.sim.settings import Faults
from kappamq.sim.world import World


def group(voters: int = 1, **faults: float) -> Cluster:
    quiet = replace(Faults(), voters=voters, appends=0.0)
    return Cluster(World(1), replace(quiet, **faults))  # type: ignore[arg-type]


def lone(**faults: float) -> Broker:
    return group(1, **faults).brokers["A"]


def test_nothing_is_told_or_done_while_the_ballot_is_being_saved() -> None:
    broker = lone(fsync_ms=1000.0)
    while not broker.is_blocked:
        broker.world.run_until(broker.world.now + 1)
    assert broker.node.role is Role.LEADER, "as far as the core knows"
    assert broker.disk.ballot == Ballot(0, None)
    assert broker.disk.end == 0, "the term record comes behind it"
    broker.append([1])
    assert broker.disk.end == 0
    broker.world.run_until(broker.world.now + 1000)
    assert broker.disk.ballot == Ballot(1, broker.me)
    assert broker.disk.end == 3


def test_a_crash_ends_what_was_under_way() -> None:
    broker = lone()
    broker.world.run_until(2000)
    assert broker.serving
    broker.append([3])
    broker.crash()
    end = broker.disk.end
    broker.world.run_until(4000)
    assert not broker.alive
    assert (broker.disk.end, broker.disk.synced) == (end, end)
    broker.start()
    broker.world.run_until(6000)
    assert broker.serving
    assert broker.node.log.confirmed == broker.disk.end


def test_what_comes_in_a_pause_is_heard_afterwards() -> None:
    cluster = group(3)
    cluster.world.run_until(3000)
    leader = cluster.leader
    assert leader is not None
    other = next(broker for broker in cluster.brokers.values() if broker is not leader)
    other.pause()
    leader.append([3])
    cluster.world.run_until(cluster.world.now + 400)
    assert other.disk.end < leader.disk.end
    other.go_on()
    cluster.world.run_until(cluster.world.now + 400)
    assert other.disk.end == leader.disk.end
    assert cluster.leader is leader, "its own pause made nobody stand"


def test_old_files_are_deleted_below_what_a_restart_finds_confirmed() -> None:
    broker = lone()
    broker.world.run_until(1500)
    for _ in range(20):
        broker.append([3, 2])
        broker.world.run_until(broker.world.now + 20)
    broker.trim()
    assert 0 < broker.disk.base.start <= broker.disk.confirmed
    assert broker.node.log.terms.base == broker.disk.base
