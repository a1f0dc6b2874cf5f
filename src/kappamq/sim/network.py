"""A network that loses, duplicates, delays and reorders messages, and whose links can be cut in one direction."""

from __future__ import annotations

from collections.abc import Callable

from kappamq.raft.messages import Message
from kappamq.sim.checkers import demand
from kappamq.sim.disk import Piece
from kappamq.sim.settings import Faults
from kappamq.sim.world import World

STORM = 10_000  # messages in a virtual second; a busy group of five has some hundreds

Deliver = Callable[[str, Message, tuple[Piece, ...]], object]


class Network:
    def __init__(self, world: World, faults: Faults, deliver: Deliver) -> None:
        self.cut: set[tuple[str, str]] = set()
        self.healed = False
        self._world, self._faults, self._deliver = world, faults, deliver
        self._last: dict[tuple[str, str], float] = {}  # number of the present virtual second, and messages sent in it
        self._second = self._sent = 0  # of the present virtual second

    def send(self, message: Message, pieces: tuple[Piece, ...] = ()) -> None:
        world, faults = self._world, self._faults
        self._count(message)
        source, target = message.source.name, message.target.name
        if self.healed:
            delay = self._in_order(source, target, faults.delay_ms * world.dice.random())
            world.after(delay, self._deliver, target, message, pieces)
            return
        if (source, target) in self.cut or (faults.loss and world.happens(faults.loss)):
            return
        copies = 2 if faults.duplicated and world.happens(faults.duplicated) else 1
        for _ in range(copies):
            delay = faults.delay_ms * world.dice.random()
            if faults.delay_tail and world.happens(faults.delay_tail):
                delay *= 100
            if faults.ordered:
                delay = self._in_order(source, target, delay)
            world.after(delay, self._arrive, source, target, message, pieces)

    def _count(self, message: Message) -> None:
        """Detect a storm: messages that cause messages faster than they are answered would stop a real group."""
        second = int(self._world.now) // 1000
        if second != self._second:
            self._second, self._sent = second, 0
        self._sent += 1
        demand(self._sent < STORM, f"a storm: {STORM} messages within a second, the last one from {message.source}")

    def _in_order(self, source: str, target: str, delay: float) -> float:
        """A delay such that the message does not overtake an earlier one on this link."""
        arrival = max(self._last.get((source, target), 0.0), self._world.now + delay)
        self._last[source, target] = arrival
        return arrival - self._world.now

    def _arrive(self, source: str, target: str, message: Message, pieces: tuple[Piece, ...]) -> None:
        if (source, target) not in self.cut:
            self._deliver(target, message, pieces)

    def partition(self, one: str, names: list[str]) -> set[tuple[str, str]]:
        """Cut some links, in one of four ways, most of them around `one`; returns the cut links."""
        dice = self._world.dice
        others = [name for name in names if name != one]
        match dice.randrange(4):
            case 0:  # one from all others
                links = {(one, other) for other in others} | {(other, one) for other in others}
            case 1:  # it can hear, but not be heard, or the other way round
                links = {(one, other) if dice.random() < 0.5 else (other, one) for other in others}
            case 2:  # two halves
                half = set(dice.sample(names, len(names) // 2))
                links = {(a, b) for a in names for b in names if (a in half) != (b in half)}
            case _:  # one link
                other = dice.choice(others)
                links = {(one, other), (other, one)} if dice.random() < 0.5 else {(one, other)}
        self.cut |= links
        return links
