"""Run many histories and report on them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kappamq.sim.broker import Broker
from kappamq.sim.checkers import Violation
from kappamq.sim.cluster import Cluster, run

FRAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Failure:
    seed: int
    what: str
    where: str  # empty if a checker found it: then a state is wrong, and no single place in the code


def failure(seed: int, broker: type[Broker] = Broker, cluster: type[Cluster] = Cluster) -> Failure | None:
    """Run one history and return what went wrong. Any exception is a failure, including the core's own assertions."""
    return failure_of(seed, lambda: run(seed, broker, cluster))


def failure_of(seed: int, history: Callable[[], object]) -> Failure | None:
    try:
        history()
    except Violation as violation:
        return Failure(seed, str(violation), "")
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-FRAMES_SHOWN:])
        return Failure(seed, f"{type(error).__name__}: {error}", where)
    return None


def failures(
    seeds: Iterable[int], broker: type[Broker] = Broker, cluster: type[Cluster] = Cluster
) -> Iterator[Failure]:
    for seed in seeds:
        if (found := failure(seed, broker, cluster)) is not None:
            yield found
