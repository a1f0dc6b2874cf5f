"""`python -m kappamq.sim`: histories of the Raft core, or of whole brokers, many or one."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from kappamq.sim.mutants import MUTANTS, Mutant
from kappamq.sim.running import Failure, failures

SEEDS = 200
BROKER_SEEDS = 20
FAILURES_MAX = 5


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m kappamq.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, help=f"how many histories (default: {SEEDS}, or 1 with --seed)")
    parser.add_argument("--seed", type=int, help="the first one (default: 0)")
    parser.add_argument("--mutant", help="with this bug planted, which is to be found")
    parser.add_argument(
        "--mutants", action="store_true", help="each mutant until it is found, at most --seeds histories"
    )
    parser.add_argument(
        "--brokers", action="store_true", help="whole brokers with their stores, and not the core alone"
    )
    options = parser.parse_args(arguments)
    if options.seeds is not None and options.seeds < 1:
        parser.error(f"--seeds must be 1 or more, not {options.seeds}")
    if options.brokers:
        from kappamq.sim.brokers import command  # loads a whole broker, which histories of the core do not need

        kind = Kind(command.names(), command.what, command.failures, " --brokers", BROKER_SEEDS)
    else:
        kind = Kind(MUTANTS, lambda name: MUTANTS[name].what, _of_the_core, "", SEEDS)
    if options.mutant is not None and options.mutant not in kind.mutants:
        parser.error(f"--mutant{kind.how} knows {', '.join(sorted(kind.mutants))}; not {options.mutant}")
    first = options.seed or 0
    if options.mutants:
        sys.exit(_all_mutants(kind, first, options.seeds or SEEDS))
    count = options.seeds or (kind.seeds if options.seed is None else 1)
    how = kind.how + (f" --mutant {options.mutant}" if options.mutant else "")
    sys.exit(_histories(first, count, kind.failures(range(first, first + count), options.mutant), how))


class Kind(NamedTuple):
    """What is simulated: the core, or whole brokers."""

    mutants: Collection[str]
    what: Callable[[str], str]
    failures: Callable[[range, str | None], Iterator[Failure]]
    how: str
    seeds: int


def _of_the_core(seeds: range, name: str | None) -> Iterator[Failure]:
    mutant = MUTANTS[name] if name is not None else Mutant("the code as it is")
    return failures(seeds, mutant.broker, mutant.cluster)


def _histories(first: int, count: int, failing: Iterator[Failure], how: str) -> int:
    began, found = time.process_time(), 0
    for failure in failing:
        found += 1
        print(f"seed {failure.seed}: {failure.what}")
        print(failure.where, end="")
        print(f"  again: python -m kappamq.sim --seed {failure.seed}{how}")
        if found == FAILURES_MAX:
            print(f"stopped after {found} failures")
            break
    else:
        used = time.process_time() - began
        print(
            f"{count} histories from seed {first}: {found or 'no'} failures; {used:.1f} s of CPU, {1000 * used / count:.0f} ms each"
        )
    return 1 if found else 0


def _all_mutants(kind: Kind, first: int, count: int) -> int:
    missed = 0
    for name in kind.mutants:
        found = next(kind.failures(range(first, first + count), name), None)
        missed += found is None
        said = f"seed {found.seed}: {found.what}" if found else f"NOT FOUND in {count} histories"
        print(f"{name:22} {kind.what(name)}\n{'':22}   {said}", flush=True)
    print(f"{len(kind.mutants) - missed} of {len(kind.mutants)} found")
    return 1 if missed else 0
