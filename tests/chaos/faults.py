"""Random faults in a Raft group under load: kill -9 of any member or of all, pauses, cuts between members, one-way cuts, combinations.

`python -m benchmarks chaos --rounds 100`, or `make chaos ROUNDS=100`. After each round everything is whole again; the history and the
logs are checked as in `failover`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.process import ProcessFailed
from tests.chaos.failover import PRINTED_MAX, program
from tests.chaos.members import Member
from tests.chaos.running import Run
from tests.crash.checker import Violation

CHECK_EVERY = 5
LIFE_S = (0.2, 1.5)
LASTS_S = (0.1, 4.0)


@dataclass(slots=True)
class Summary:
    faults: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0  # from the end of a fault to the next answer
    slowest: str = ""
    acked: int = 0
    unanswered: int = 0
    terms: int = 0
    compared_bytes: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    wrong: list[Violation] = field(default_factory=list)

    def text(self) -> str:
        lines = [
            f"{self.faults.total()} rounds of faults, {self.terms} terms, {self.acked:,} messages acknowledged, {self.unanswered:,} "
            f"without an answer, longest time from the end of a fault to an answer {self.longest_s:.2f} s ({self.slowest}), logs of "
            f"{self.compared_bytes >> 20} MiB compared, {len(self.wrong)} violations",
            "  " + ", ".join(f"{count} x {name}" for name, count in sorted(self.faults.items())),
        ]
        lines += [f"  errors of clients: {count} x {name}" for name, count in sorted(self.errors.items())]
        return "\n".join(lines + [f"  {one}" for one in self.wrong[:PRINTED_MAX]])


class Faults:
    """Each fault breaks something, lets it last, and makes everything whole again."""

    def __init__(self, run: Run) -> None:
        assert run.network is not None
        self._run, self._group, self._network, self._dice = run, run.group, run.network, run.dice

    def all(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "leader killed": self._kill_leader,
            "member killed": self._kill_any,
            "majority killed": self._kill_majority,
            "all killed": self._kill_all,
            "leader paused": self._pause_leader,
            "member paused": self._pause_any,
            "leader cut off": self._cut_off_leader,
            "leader unheard": self._unheard_leader,
            "leader deaf": self._deaf_leader,
            "pair cut": self._cut_pair,
            "one way cut": self._cut_one_way,
            "all cut": self._cut_all,
            "leader cut off and another killed": self._cut_off_and_kill,
            "leader killed while another is paused": self._kill_while_paused,
        }

    def _leader(self) -> Member:
        return self._group.leader() or self._any()

    def _any(self) -> Member:
        return self._dice.choice(list(self._group.members.values()))

    def _others(self, member: Member) -> list[Member]:
        return [other for other in self._group.members.values() if other is not member]

    async def _lasts(self) -> None:
        await asyncio.sleep(self._dice.uniform(*LASTS_S))

    async def _kill(self, *members: Member) -> None:
        for member in members:
            member.kill()
        await self._lasts()
        await self._run.restart(*members)

    async def _kill_leader(self) -> None:
        await self._kill(self._leader())

    async def _kill_any(self) -> None:
        await self._kill(self._any())

    async def _kill_majority(self) -> None:
        await self._kill(*self._dice.sample(list(self._group.members.values()), 2))

    async def _kill_all(self) -> None:
        await self._kill(*self._group.members.values())

    async def _pause(self, member: Member) -> None:
        member.pause()
        await self._lasts()
        member.go_on()

    async def _pause_leader(self) -> None:
        await self._pause(self._leader())

    async def _pause_any(self) -> None:
        await self._pause(self._any())

    async def _cut(self, *ways: tuple[Member, Member]) -> None:
        for source, target in ways:
            self._network.cut(source.name, target.name)
        await self._lasts()
        self._network.heal()

    async def _cut_off_leader(self) -> None:
        leader = self._leader()
        await self._cut(*[way for other in self._others(leader) for way in ((leader, other), (other, leader))])

    async def _unheard_leader(self) -> None:
        leader = self._leader()
        await self._cut(*[(leader, other) for other in self._others(leader)])

    async def _deaf_leader(self) -> None:
        leader = self._leader()
        await self._cut(*[(other, leader) for other in self._others(leader)])

    async def _cut_pair(self) -> None:
        one, other = self._dice.sample(list(self._group.members.values()), 2)
        await self._cut((one, other), (other, one))

    async def _cut_one_way(self) -> None:
        one, other = self._dice.sample(list(self._group.members.values()), 2)
        await self._cut((one, other))

    async def _cut_all(self) -> None:
        members = list(self._group.members.values())
        await self._cut(*[(one, other) for one in members for other in members if one is not other])

    async def _cut_off_and_kill(self) -> None:
        leader = self._leader()
        victim = self._dice.choice(self._others(leader))
        for other in self._others(leader):
            self._network.cut(leader.name, other.name)
            self._network.cut(other.name, leader.name)
        await self._lasts()
        victim.kill()
        self._network.heal()
        await self._lasts()
        await self._run.restart(victim)

    async def _kill_while_paused(self) -> None:
        leader = self._leader()
        paused = self._dice.choice(self._others(leader))
        paused.pause()
        leader.kill()
        await self._lasts()
        paused.go_on()
        await self._run.restart(leader)


async def run(
    folder: Path, names: str, rounds: int, seed: int, say: Callable[[str], None] = lambda text: None, only: str = ""
) -> Summary:
    """`only`: part of the names of the faults."""
    summary = Summary()
    async with Run(folder, names, seed, relays=True) as running:
        faults = {name: fault for name, fault in Faults(running).all().items() if only in name}
        bag: list[str] = []
        try:
            for number in range(1, rounds + 1):
                await asyncio.sleep(running.dice.uniform(*LIFE_S))
                if not bag:  # each of them once before any comes again
                    bag = running.dice.sample(sorted(faults), len(faults))
                name = bag.pop()
                running.breaks()
                await faults[name]()
                whole = time.time()
                await running.answered(whole)
                taken = time.time() - whole
                running.heals()
                summary.faults[name] += 1
                if taken > summary.longest_s:
                    summary.longest_s, summary.slowest = taken, name
                say(f"round {number}: {name}, an answer {taken:.2f} s after its end")
                if number % CHECK_EVERY == 0 and await running.check():
                    break
            summary.wrong = await running.finish() if not running.wrong else running.wrong
        except (ProcessFailed, AssertionError, OSError) as error:
            summary.wrong = [*running.wrong, Violation("failed", f"{type(error).__name__}: {error}")]
        summary.acked = running.history.count_acked
        summary.unanswered = len(running.history.sent) - summary.acked
        summary.compared_bytes = running.group.bytes_compared()
        summary.errors = running.traffic.errors
        reign = running.group.reign()
        summary.terms = reign.term if reign is not None else 0
    return summary


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--only", default="", help="part of the names of the faults")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--keep", action="store_true", help="leave stores and logs where they are")
    options = parser.parse_args(arguments)
    return program("chaos", lambda *given: run(*given, only=options.only), options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
