"""A group of whole brokers, the faults it is exposed to, and whether it recovers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kappamq.native.layout import QueueState
from kappamq.raft import Role
from kappamq.sim.brokers.checkers import Checker
from kappamq.sim.brokers.client import Clients
from kappamq.sim.brokers.loop import Loop
from kappamq.sim.brokers.machine import Machine
from kappamq.sim.brokers.settings import Faults
from kappamq.sim.brokers.streams import Streams
from kappamq.sim.brokers.virtual import virtual
from kappamq.sim.checkers import Violation, demand
from kappamq.sim.world import World

HEALING_MS = 60_000.0
LOOK_EVERY_MS = 250.0
SERVED_MS = 15_000.0  # messages sent before the end of all faults may take half of it
REPAIR_MS = 400.0
WARM_UP_MS = 3_000.0
OF_THE_MACHINE = {"kappamq.clock.json"}  # files about the machine itself, which differ between members


class Cluster:
    def __init__(self, world: World, faults: Faults) -> None:
        self.world, self.faults = world, faults
        self.streams = Streams(world, faults)
        self.checker = Checker(faults.segment_bytes)
        self.healing = False
        names = "ABCDE"[: faults.voters]
        self.machines = {name: Machine(world, faults, self.streams, name, names, self._turned) for name in names}
        self.checker.machines = self.machines
        self.clients = Clients(
            world, faults, self.streams, self.checker, {name: machine.host for name, machine in self.machines.items()}
        )
        self._led: dict[str, int] = {}
        for machine in self.machines.values():
            self._start(machine)

    def _start(self, machine: Machine) -> None:
        self.checker.watch(machine)
        machine.start()

    def _turned(self, machine: Machine) -> None:
        self.checker.turned(machine)
        broker = machine.broker
        if machine.refused is not None:
            self._ended(machine, machine.refused)
        elif broker is not None and machine.is_up and broker.copies.group is not None:
            if broker.copies.group.why_stopped is not None:
                self._ended(machine, broker.copies.group.why_stopped)
                return
            node = broker.copies.group.node
            if node is not None and node.role is Role.LEADER and self._led.get(machine.name) != node.term:
                self._led[machine.name] = node.term
                self.clients.hear_of(machine.name)
                if not self.healing and self.faults.dies_young and self.world.happens(self.faults.dies_young):
                    self.world.after(
                        self.world.between(0, 4 * self.faults.delay_ms + 50), self._crash, machine, machine.loop
                    )

    def _ended(self, machine: Machine, why: str) -> None:
        """The broker has ended by itself and is started again, as a supervisor would do it."""
        loop = machine.loop
        machine.refused = f"is ending: {why}"
        self.world.after(self.world.between(1, REPAIR_MS), self._again, machine, loop, why)

    def _again(self, machine: Machine, loop: Loop, why: str) -> None:
        if machine.loop is not loop or not machine.alive:
            return
        machine.kill(power=False)
        expected = ("asks to be started again", "was stopped", "No space left", "read-only", "room", "disk is full")
        demand(any(text in why for text in expected), f"{machine.name} does not start or go on: {why}")
        self._start(machine)

    # -- faults ------------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let the group form, then begin with the faults."""
        end = self.world.now + WARM_UP_MS
        while self.world.now < end and self.leader() is None:
            self.world.run_until(self.world.now + 50)
        faults = self.faults
        for rate, action in (
            (faults.appends, self._act),
            (faults.crashes, lambda: self._crash_one(power=True)),
            (faults.kills, lambda: self._crash_one(power=False)),
            (faults.crash_of_all, self._crash_all),
            (faults.partitions, self._partition),
            (faults.pauses, self._pause),
            (faults.wipes, self._wipe),
            (faults.stops, self._stop),
            (faults.full, self._fill),
            (faults.transfers, self._transfer),
        ):
            if rate:
                self._repeat(rate, action)

    def _repeat(self, rate: float, action: Callable[[], None]) -> None:
        def again() -> None:
            if not self.healing:
                action()
                self._repeat(rate, action)

        self.world.after(self.world.dice.expovariate(rate / 1000), again)

    def leader(self) -> Machine | None:
        """The member that serves as the leader; if there are several, the newest."""
        leading = [
            (node.term, machine)
            for machine in self.machines.values()
            if machine.alive
            and machine.is_up
            and (node := self._node(machine)) is not None
            and node.role is Role.LEADER
        ]
        return max(leading, key=lambda found: found[0], default=(0, None))[1]

    @staticmethod
    def _node(machine: Machine) -> Any:
        group = machine.broker.copies.group if machine.broker is not None else None
        return group.node if group is not None else None

    def _one(self) -> Machine:
        leader = self.leader()
        if leader is not None and self.world.happens(0.4):
            return leader
        return self.world.dice.choice(list(self.machines.values()))

    def _act(self) -> None:
        leader = self.leader()
        name = leader.name if leader is not None and self.world.happens(0.8) else self._one().name
        self.clients.act(name)

    def _crash_one(self, *, power: bool) -> None:
        machine = self._one()
        if self.world.happens(self.faults.in_the_middle) and machine.alive:
            machine.kill_within(self.world.dice.choice((1, 2, 3, 5, 8, 20, 60)), power=power)
            # If it does not get so far, it crashes between two turns.
            self.world.after(self.world.between(1, 300), self._crash, machine, machine.loop, power)
        else:
            self._crash(machine, machine.loop, power)

    def _crash_all(self) -> None:
        for machine in self.machines.values():
            self._crash(machine, machine.loop)

    def _crash(self, machine: Machine, loop: Loop | None, power: bool = True) -> None:
        if machine.loop is not loop or self.healing:
            return
        machine.kill(power=power)
        self.world.after(self.world.between(1, self.world.dice.choice((100, 2_000))), self._restart, machine)

    def _restart(self, machine: Machine) -> None:
        if not machine.alive:
            self._start(machine)

    def _partition(self) -> None:
        dice, hosts = self.world.dice, [machine.host for machine in self.machines.values()]
        one = self._one().host
        others = [host for host in hosts if host != one]
        match dice.randrange(4):
            case 0:
                links = {(one, other) for other in others} | {(other, one) for other in others}
            case 1:
                links = {(one, other) if dice.random() < 0.5 else (other, one) for other in others}
            case 2:
                other = dice.choice(others)
                links = {(one, other), (other, one)}
            case _:
                links = {(one, dice.choice(others))}
        self.streams.cut |= links
        self.world.after(self.world.between(50, 3_000), self.streams.cut.difference_update, links)

    def _pause(self) -> None:
        machine = self._one()
        if machine.loop is not None:
            machine.loop.pause()
            self.world.after(self.world.between(100, 3_000), machine.loop.go_on)

    def _wipe(self) -> None:
        """A disk is lost. Never two at a time: a group that has lost a majority of its disks stops by design."""
        leader, machine = self.leader(), self._one()
        if (
            leader is None
            or machine is leader
            or machine.me is None
            or machine.me not in self._node(leader).members.voters
        ):
            return
        members = self._node(leader).members
        if members.learners or len(members.voters) < len(self.machines) or self.checker.gone.get(machine.me):
            return
        if {each.me for each in self.machines.values()} != set(members.voters):
            return
        if not all(self._can_go_on(each, leader) for each in self.machines.values() if each is not machine):
            return  # a member that is too far behind begins again, which is as if its disk were lost, too
        machine.kill(power=True)
        self.checker.gone[machine.me] = machine.disk
        machine.wipe()
        self.world.after(self.world.between(1, 1_000), self._restart, machine)

    def _can_go_on(self, machine: Machine, leader: Machine) -> bool:
        node = self._node(machine) if machine.alive and machine.is_up else None
        return node is not None and node.log.end >= leader.broker.store.log.min  # type: ignore[union-attr]

    def _stop(self) -> None:
        machine = self._one()
        if machine.alive and machine.is_up and machine.loop is not None:
            machine.loop.run(lambda: machine.loop.create_task(machine.stop()))  # type: ignore[union-attr]

    def _fill(self) -> None:
        machine = self._one()
        machine.disk.full = True
        self.world.after(self.world.between(100, 2_000), self._make_room, machine)

    def _make_room(self, machine: Machine) -> None:
        machine.disk.full = False

    def _transfer(self) -> None:
        leader = self.leader()
        if leader is None:
            return
        self.clients.transfer(leader.name, self.world.dice.choice(list(self.machines)))

    # -- healing -----------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """End all faults; then the group must recover, and its members must agree. Raises Violation."""
        self.healing = self.streams.healed = True
        self.streams.cut.clear()
        for machine in self.machines.values():
            machine.disk.full = False
            machine.disk.call_before_each()
            if machine.loop is not None:
                machine.loop.go_on()
            if not machine.alive:
                self._start(machine)
        end = self.world.now + HEALING_MS
        trouble = "nothing was looked at"
        while trouble and self.world.now < end:
            self.world.run_until(self.world.now + LOOK_EVERY_MS)
            trouble = self._trouble()
        if trouble:
            raise Violation(f"not well {HEALING_MS / 1000:.0f} s after the last fault: {trouble}")
        self._is_served()
        self._are_the_same()
        self.checker.all_is_there()

    def _trouble(self) -> str:
        """What is wrong; empty if nothing is."""
        leader = self.leader()
        if leader is None or leader.broker is None or not leader.broker.node_role.is_master:
            return "no leader is ready"
        store = leader.broker.store
        members = self._node(leader).members
        if members.voters != {machine.me for machine in self.machines.values()}:
            return f"the voters are {sorted(map(str, members.voters))}"
        for machine in self.machines.values():
            if not machine.alive or not machine.is_up or machine.broker is None:
                return f"{machine.name} is not up: {machine.refused}"
            marks = machine.broker.store.marks
            if not marks.dispatched.offset == machine.broker.store.log.end == store.log.end == self.checker.end:
                return (
                    f"{machine.name} shows {marks.dispatched.offset} of {machine.broker.store.log.end}; the leader "
                    f"{leader.name} has {store.log.end}, confirmed is {self.checker.end}"
                )
            if machine.broker.seeding.is_pending:
                return f"{machine.name} is not whole yet"
        return ""

    def _is_served(self) -> None:
        """Check that sends are answered."""
        end, before = self.world.now + SERVED_MS, self.checker.count
        while self.checker.count == before:
            demand(self.world.now < end, "nobody is answered, though all is well")
            leader = self.leader()
            if leader is not None:
                self.clients._send(leader.name, "tea")
            self.world.run_until(self.world.now + 200)
        while trouble := self._trouble():
            demand(self.world.now < end + 10_000, f"after the last answer: {trouble}")
            self.world.run_until(self.world.now + LOOK_EVERY_MS)

    def _are_the_same(self) -> None:
        brokers = {name: machine.broker for name, machine in self.machines.items() if machine.broker is not None}
        tables: dict[str, tuple[str, Any]] = {}
        for name, broker in brokers.items():
            store = broker.store
            demand(
                self.checker._same(broker, store.log.min, store.log.end), f"the log of {name} is not what was confirmed"
            )
            for (topic, queue_id), records in self.checker.queues.items():
                self._has_queue(name, broker, topic, queue_id, records)
            for table in broker.metadata._tables:
                if table.file in OF_THE_MACHINE:
                    continue
                content = _plain(table.to_snapshot())
                other, theirs = tables.setdefault(table.file, (name, content))
                if content != theirs:
                    mine, his = _difference(content, theirs)
                    raise Violation(f"{table.file}: {other} has {his}, {name} has {mine}")

    def _has_queue(self, name: str, broker: Any, topic: str, queue_id: int, records: dict[int, Any]) -> None:
        store = broker.store
        state: QueueState = store.queue_state(topic, queue_id)
        if topic.startswith("gone"):
            return
        shown = [number for number in sorted(records) if records[number].log_offset >= store.log.min]
        demand(
            state.end == max(records) + 1 == state.next,
            f"{topic}/{queue_id} of {name} ends at {state.end}, next {state.next}; confirmed is up to {max(records)}",
        )
        demand(
            not shown or state.first <= shown[0],
            f"{topic}/{queue_id} of {name} begins at {state.first}; what it has of the log, at {shown[:1]}",
        )
        for number in shown:
            found = store.entry(topic, queue_id, number)
            demand(
                found is not None and found[0] == records[number].log_offset,
                f"{topic}/{queue_id} of {name} has at {number} the record {found}, confirmed is {records[number].log_offset}",
            )


def _difference(one: Any, other: Any) -> tuple[Any, Any]:
    """Where two tables differ, as deep inside as possible."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *other]:
            if one.get(key) != other.get(key):
                mine, theirs = _difference(one.get(key), other.get(key))
                return {key: mine}, {key: theirs}
    return one, other


def _plain(content: Any) -> Any:
    """Leave out what differs from node to node: the time of writing, and the order of unordered things."""
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items() if key != "dataVersion"}
    if isinstance(content, list):
        return sorted((_plain(value) for value in content), key=str)
    return content


def run(seed: int, make_cluster: type[Cluster] = Cluster) -> Cluster:
    """Run one history. Raises Violation."""
    world = World(seed)
    faults = Faults.drawn(world.dice)
    with virtual(world):
        cluster = make_cluster(world, faults)
        cluster.begin()
        world.run_until(world.now + faults.duration_ms)
        cluster.heal()
        for machine in cluster.machines.values():
            if machine.loop is not None:
                machine.loop.kill()
        cluster.clients.loop.kill()
    return cluster
