"""`python -m kappamq.sim`: histories of the Raft core, or of whole brokers, many or one."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from kappamq.sim.mutants import MUTANTS, Mutant
from kappamq.sim.running import Failure, failure_of, failures

SEEDS = 200
BROKER_SEEDS = 20
FAILURES_MAX = 5


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m kappamq.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, help=f"how many histories (default: {SEEDS}, or 1 with --seed)")
    parser.add_argument("--seed", type=int, help="the first one (default: 0)")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="with this bug planted, which is to be found")
    parser.add_argument(
        "--mutants", action="store_true", help="each mutant until it is found, at most --seeds histories"
    )
    parser.add_argument(
        "--brokers", action="store_true", help="whole brokers with their stores, and not the core alone"
    )
    options = parser.parse_args(arguments)
    if options.seeds is not None and options.seeds < 1:
        parser.error(f"--seeds must be 1 or more, not {options.seeds}")
    if options.brokers and (options.mutant or options.mutants):
        parser.error("--brokers knows no mutants yet: those of the core are planted without it")
    first = options.seed or 0
    if options.mutants:
        sys.exit(_all_mutants(first, options.seeds or SEEDS))
    count = options.seeds or ((BROKER_SEEDS if options.brokers else SEEDS) if options.seed is None else 1)
    if options.brokers:
        sys.exit(_histories(first, count, _of_brokers(range(first, first + count)), " --brokers"))
    mutant = MUTANTS[options.mutant] if options.mutant else Mutant("the code as it is")
    found = failures(range(first, first + count), mutant.broker, mutant.cluster)
    sys.exit(_histories(first, count, found, f" --mutant {options.mutant}" if options.mutant else ""))


def _of_brokers(seeds: range) -> Iterator[Failure]:
    from kappamq.sim.brokers.cluster import run  # a whole broker to load, which the core can do without

    for seed in seeds:
        found = failure_of(seed, lambda seed=seed: run(seed))  # type: ignore[misc]
        if found is not None:
            yield found


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


def _all_mutants(first: int, count: int) -> int:
    missed = 0
    for name, mutant in MUTANTS.items():
        found = next(failures(range(first, first + count), mutant.broker, mutant.cluster), None)
        missed += found is None
        said = f"seed {found.seed}: {found.what}" if found else f"NOT FOUND in {count} histories"
        print(f"{name:22} {mutant.what}\n{'':22}   {said}", flush=True)
    print(f"{len(MUTANTS) - missed} of {len(MUTANTS)} found")
    return 1 if missed else 0
