"""Histories of whole brokers, for the command line."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import nullcontext

from kappamq.sim.brokers.cluster import run
from kappamq.sim.brokers.mutants import MUTANTS, planted
from kappamq.sim.running import Failure, failure_of


def names() -> Collection[str]:
    return MUTANTS.keys()


def what(name: str) -> str:
    return MUTANTS[name].what


def failures(seeds: range, mutant: str | None = None) -> Iterator[Failure]:
    with nullcontext() if mutant is None else planted(MUTANTS[mutant]):
        for seed in seeds:
            found = failure_of(seed, lambda seed=seed: run(seed))  # type: ignore[misc]
            if found is not None:
                yield found
