"""A group of simulated brokers, the faults it is exposed to, and whether it recovers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kappamq.raft import MemberId, Members, Message, Refused, TermRecord
from kappamq.sim.broker import Broker
from kappamq.sim.checkers import Checker, Violation
from kappamq.sim.disk import Disk, Piece
from kappamq.sim.network import Network
from kappamq.sim.settings import Faults
from kappamq.sim.world import World

NAMES = "ABCDEFG"
MEMBERS_MAX = 5
HEALING_MS = 30_000.0
LOOK_EVERY_MS = 250.0


class Cluster:
    def __init__(self, world: World, faults: Faults, make_broker: type[Broker] = Broker) -> None:
        self.world, self.faults = world, faults
        self.checker = Checker()
        self.network = Network(world, faults, self._deliver)
        self.leader: Broker | None = None  # the last one elected
        self.healing = False
        self._make_broker = make_broker
        self._incarnations = 1
        voters = frozenset(MemberId(name, 1) for name in NAMES[: faults.voters])
        self.brokers = {
            member.name: make_broker(self, member, Disk(TermRecord(0, 0, Members(voters)))) for member in sorted(voters)
        }
        for broker in self.brokers.values():
            broker.start()
        self._plan()

    def elected(self, broker: Broker) -> None:
        if self.leader is None or broker.node.term >= self.leader.node.term:
            self.leader = broker
        if not self.healing and self.faults.dies_young and self.world.happens(self.faults.dies_young):
            delay = self.world.between(0, 2 * (self.faults.fsync_ms + self.faults.delay_ms))
            self.world.after(delay, self._crash_leader_of, broker.node.term, broker)

    def _crash_leader_of(self, term: int, broker: Broker) -> None:
        if broker.alive and broker.node.term == term and not self.healing:
            self._crash(broker)

    # Faults

    def _plan(self) -> None:
        faults = self.faults
        for rate, action in (
            (faults.appends, self._client_sends),
            (faults.crashes, self._crash_one),
            (faults.crash_of_all, self._crash_all),
            (faults.partitions, self._partition),
            (faults.pauses, self._pause),
            (faults.resets, self._reset_connection),
            (faults.wipes, self._wipe),
            (faults.changes, self._change_members),
            (faults.transfers, self._transfer),
            (faults.trims, self._trim),
        ):
            if rate:
                self._repeat(rate, action)

    def _repeat(self, rate: float, action: Callable[[], None]) -> None:
        def again() -> None:
            if not self.healing:
                action()
                self._repeat(rate, action)

        self.world.after(self.world.dice.expovariate(rate / 1000), again)

    def _one(self) -> Broker:
        return self.world.dice.choice(list(self.brokers.values()))

    def _deliver(self, target: str, message: Message, pieces: tuple[Piece, ...]) -> None:
        broker = self.brokers.get(target)
        if broker is not None:
            broker.hear(message, pieces)

    def _client_sends(self) -> None:
        dice = self.world.dice
        sizes = [dice.choice((1, 2, 3, 3)) for _ in range(dice.randint(1, self.faults.pieces_max))]
        for broker in self.brokers.values():  # clients may still ask a deposed leader
            broker.append(sizes)

    def _crash_one(self) -> None:
        broker = self._one()
        if self.leader is not None and self.world.happens(0.4):
            broker = self.leader
        if broker.alive:
            self._crash(broker)

    def _crash_all(self) -> None:
        for broker in list(self.brokers.values()):
            if broker.alive:
                self._crash(broker)

    def _crash(self, broker: Broker) -> None:
        broker.crash()
        for other in self.brokers.values():
            if self.world.happens(0.7):  # the others see their connections closed, or notice nothing
                self.world.after(self.world.between(0, 50), other.connection_lost, broker.me)
        longest = self.world.dice.choice((100, 2_000))
        self.world.after(self.world.between(1, longest), self._restart, broker)

    def _restart(self, broker: Broker) -> None:
        if not broker.alive and self.brokers.get(broker.name) is broker:
            broker.start()

    def _partition(self) -> None:
        if len(self.brokers) > 1:
            one = self.leader if self.leader is not None and self.world.happens(0.5) else self._one()
            links = self.network.partition(one.name, list(self.brokers))
            self.world.after(self.world.between(50, 3_000), self.network.cut.difference_update, links)

    def _pause(self) -> None:
        broker = self._one()
        broker.pause()
        self.world.after(self.world.between(100, 3_000), broker.go_on)

    def _reset_connection(self) -> None:
        one, other = self._one(), self._one()
        if one is not other:
            one.connection_lost(other.me)
            other.connection_lost(one.me)

    def _wipe(self) -> None:
        """A member loses its disk. Never two at a time: a group that has lost a majority of its disks stops by design."""
        broker = self._one()
        if broker is not self.leader and self._is_whole() and self._is_settled() and len(self._members().voters) >= 3:
            broker.crash()
            self.checker.gone[broker.me] = broker.disk
            self._incarnations += 1
            self._replace(broker, self.returning(broker), Disk(TermRecord(0, 0, Members())))

    def returning(self, broker: Broker) -> MemberId:
        """The member id with which a broker comes back after a wipe."""
        return MemberId(broker.name, self._incarnations)

    def _replace(self, old: Broker, me: MemberId, disk: Disk) -> None:
        old.crash()
        self.brokers[me.name] = self._make_broker(self, me, disk)
        self.world.after(self.world.between(1, 500), self._restart, self.brokers[me.name])

    def seed(self, leader: Broker, member: MemberId) -> None:
        """A member that needs deleted bytes gets a log that begins where the leader's does."""
        self.world.after(self.world.between(1, 50), self._seeded, leader, member)

    def _seeded(self, leader: Broker, member: MemberId) -> None:
        broker = self.brokers.get(member.name)
        source = leader.disk
        if broker is None or broker.me != member or not leader.alive or broker.disk.end >= source.end:
            return
        if broker.node is not None and broker.node.log.confirmed >= source.base.start:
            return
        broker.crash()
        disk = Disk(source.base, source.base_chain)
        disk.ballot = broker.disk.ballot
        self._replace(broker, member, disk)

    def _members(self) -> Members:
        return self.leader.node.members if self.leader is not None else Members()

    def _is_whole(self) -> bool:
        """Whether every member that the last leader knows exists in that incarnation."""
        if self.leader is None or not self.leader.serving:
            return False
        return self._members().all <= {broker.me for broker in self.brokers.values()}

    def _is_settled(self) -> bool:
        assert self.leader is not None
        log = self.leader.node.log
        return log.terms.last.start < log.confirmed

    def _change_members(self) -> None:
        """Change members; sometimes several requests follow each other quickly."""
        for wish in range(self.world.dice.choice((1, 1, 2, 3))):
            self.world.after(10 * wish, self._change_member)

    def _change_member(self) -> None:
        if self.leader is None or not self._is_whole() or self.healing:
            return
        members, dice = self._members(), self.world.dice
        if len(members.all) >= 4 and dice.random() < 0.5:
            member = dice.choice(sorted(members.all))
            self._order(self.leader, lambda node: node.remove(member, self.world.now))
        elif len(members.all) < MEMBERS_MAX:
            name = dice.choice([name for name in NAMES[: MEMBERS_MAX + 1] if members.named(name) is None])
            if name not in self.brokers:
                self._incarnations += 1
                me = MemberId(name, self._incarnations)
                self.brokers[name] = self._make_broker(self, me, Disk(TermRecord(0, 0, Members())))
                self.brokers[name].start()
            member = self.brokers[name].me
            self._order(self.leader, lambda node: node.add(member))

    def _transfer(self) -> None:
        members = self._members()
        if self.leader is not None and members.voters:
            member = self.world.dice.choice(sorted(members.voters))
            self._order(self.leader, lambda node: node.transfer(member, self.world.now))

    @staticmethod
    def _order(broker: Broker, wish: Callable[..., list]) -> None:  # type: ignore[type-arg]
        try:
            broker.order(wish)
        except Refused:
            pass

    def _trim(self) -> None:
        self._one().trim()

    # Healing

    def heal(self) -> None:
        """End all faults; then the group must recover. Raises Violation if it does not."""
        self.healing = self.network.healed = True
        self.network.cut.clear()
        for broker in self.brokers.values():
            broker.go_on()
            if not broker.alive:
                broker.start()
        end = self.world.now + HEALING_MS
        trouble = "nothing was looked at"
        while trouble and self.world.now < end:
            self.world.run_until(self.world.now + LOOK_EVERY_MS)
            trouble = self.checker.is_healed(self.leader, list(self.brokers.values()))
        if trouble:
            raise Violation(f"not well {HEALING_MS / 1000:.0f} s after the last fault: {trouble}")


def run(seed: int, make_broker: type[Broker] = Broker, make_cluster: type[Cluster] = Cluster) -> Cluster:
    """Run one history. Raises Violation, or AssertionError if the core has detected a bug itself."""
    world = World(seed)
    faults = Faults.drawn(world.dice)
    cluster = make_cluster(world, faults, make_broker)
    world.run_until(faults.duration_ms)
    cluster.heal()
    return cluster


def quiet(voters: int = 3) -> Faults:
    """No faults."""
    return replace(Faults(), voters=voters)
