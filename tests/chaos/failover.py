"""kill -9 of a Raft group's leader under load, again and again: how long producers wait, and whether everything is still there.

Rounds during which the machine was taken away from us (over 10 % stolen, or waited for a core by a member that lives) are marked
and repeated, as often as there are rounds at most. `python -m benchmarks failover --rounds 100`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks.process import ProcessFailed
from benchmarks.servers import nameserver
from tests.chaos.backlog import FULL, Backlog, part_of_full
from tests.chaos.members import Machine
from tests.chaos.running import Run
from tests.crash.checker import Violation

STARVED = 0.10
CHECK_EVERY = 10
LIFE_S = (1.0, 1.5)
GOALS_S = {"p50": 1.5, "p95": 3.0, "worst": 6.0}
PRINTED_MAX = 20


@dataclass(frozen=True, slots=True)
class Round:
    gap_s: float  # between two answers, as producers see it
    elected_s: float  # from the kill to the election, the term record confirmed
    first_ack_s: float  # from the election to the first answer
    starved: float
    timers_s: float = 0.0  # from the election until all timers are in the new leader's files

    @property
    def counts(self) -> bool:
        return self.starved <= STARVED


@dataclass(slots=True)
class Summary:
    rounds: list[Round] = field(default_factory=list)
    acked: int = 0
    unanswered: int = 0
    compared_bytes: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    wrong: list[Violation] = field(default_factory=list)

    @property
    def counted(self) -> list[Round]:
        return [one for one in self.rounds if one.counts]

    def text(self) -> str:
        lines = [
            f"{len(self.rounds)} kills of the leader, {len(self.rounds) - len(self.counted)} of them on a starved machine; "
            f"{self.acked:,} messages acknowledged, {self.unanswered:,} without an answer, "
            f"logs of {self.compared_bytes >> 20} MiB compared, {len(self.wrong)} violations"
        ]
        for name, rounds in (("all", self.rounds), ("not starved", self.counted)):
            if rounds:
                lines.append(f"{name} ({len(rounds)}): {_quantiles([one.gap_s for one in rounds], 'gap')}")
                lines.append(f"  {_quantiles([one.elected_s for one in rounds], 'kill to election')}")
                lines.append(f"  {_quantiles([one.first_ack_s for one in rounds], 'election to first answer')}")
                lines.append(f"  {_quantiles([one.timers_s for one in rounds], 'election to all timers at hand')}")
        lines.append("goals for the gap: " + ", ".join(f"{name} {limit} s" for name, limit in GOALS_S.items()))
        lines += [f"  errors of clients: {count} x {name}" for name, count in sorted(self.errors.items())]
        return "\n".join(lines + [f"  {one}" for one in self.wrong[:PRINTED_MAX]])


def quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def _quantiles(values: Sequence[float], what: str) -> str:
    return f"{what} p50 {quantile(values, 0.5):.2f} s, p95 {quantile(values, 0.95):.2f} s, worst {max(values):.2f} s"


async def _kill(run: Run) -> Round:
    reign = await run.leads()
    leader = run.group.members[reign.member]
    machine = Machine([member for member in run.group.members.values() if member is not leader])
    await run.answered(time.time())
    run.breaks()
    leader.kill()
    killed = time.time()
    new = await run.leads(reign.term)
    first = await run.answered(max(new.since, killed))
    starved = machine.starved()
    before = max((ack for ack in run.history.acks if ack <= killed), default=killed)
    around = [before, *(ack for ack in run.history.acks if before < ack <= first)]
    gap = max(later - earlier for earlier, later in pairwise(around))
    timers_s = await run.timers_entered() - new.since
    await run.restart(leader)
    run.heals()
    return Round(gap, new.since - killed, first - new.since, starved, timers_s)


async def run(
    folder: Path,
    names: str,
    rounds: int,
    seed: int,
    say: Callable[[str], None] = lambda text: None,
    life_s: tuple[float, float] = LIFE_S,
    backlog: Backlog | None = None,
) -> Summary:
    summary = Summary()
    async with Run(folder, names, seed, backlog=backlog, say=say) as running:
        try:
            while len(summary.counted) < rounds and len(summary.rounds) < 2 * rounds and not running.wrong:
                await asyncio.sleep(running.dice.uniform(*life_s))
                done = await _kill(running)
                summary.rounds.append(done)
                say(
                    f"round {len(summary.rounds)}: gap {done.gap_s:.2f} s, elected after {done.elected_s:.2f} s, "
                    f"first answer {done.first_ack_s:.2f} s later, "
                    f"timers at hand {done.timers_s:.2f} s later{'' if done.counts else f', starved {done.starved:.0%}'}"
                )
                if len(summary.rounds) % CHECK_EVERY == 0:
                    await running.check()
            summary.wrong = await running.finish() if not running.wrong else running.wrong
        except (ProcessFailed, AssertionError, OSError) as error:
            summary.wrong = [*running.wrong, Violation("failed", f"{type(error).__name__}: {error}")]
        summary.acked = running.history.count_acked
        summary.unanswered = len(running.history.sent) - summary.acked
        summary.compared_bytes = running.group.bytes_compared()
        summary.errors = running.traffic.errors
    return summary


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks failover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument(
        "--life",
        type=float,
        default=LIFE_S[0],
        metavar="SECONDS",
        help="a leader lives so long before it is killed, or half as long again",
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--keep", action="store_true", help="leave stores and logs where they are")
    parser.add_argument(
        "--backlog",
        type=float,
        default=0.0,
        metavar="PART",
        help=f"the group holds this part of {FULL.queues:,} queues, {FULL.transactions:,} open transactions, {FULL.timers:,} timers",
    )
    options = parser.parse_args(arguments)
    backlog = part_of_full(options.backlog) if options.backlog else None
    life_s = options.life, options.life * 1.5
    return program("failover", partial(run, backlog=backlog, life_s=life_s), options)


def program(name: str, what: Callable[..., object], options: argparse.Namespace) -> int:
    """Run it in a folder of its own, which stays if something was wrong."""
    folder = Path(tempfile.mkdtemp(prefix=f"kappamq-{name}-", dir=options.folder))
    print(f"seed {options.seed}, load average {os.getloadavg()[0]:.1f}, {folder}", flush=True)
    with nameserver(folder / "names") as names:
        summary = asyncio.run(
            what(folder, names, options.rounds, options.seed, lambda text: print(text, flush=True))  # type: ignore[arg-type]
        )
    print(summary.text(), flush=True)  # type: ignore[attr-defined]
    print(f"load average {os.getloadavg()[0]:.1f}")
    if summary.wrong or options.keep:  # type: ignore[attr-defined]
        print(f"kept in {folder}")
        return 1 if summary.wrong else 0  # type: ignore[attr-defined]
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
