"""kill -9, again and again: a real broker process, clients over real sockets, a random end, a restart, the checker.

Besides producers and a consumer there are an operator who resets offsets, a member that never hears of it, a topic that is
deleted and made again, and messages that are sent back to come again.

The page cache survives a killed process, so nothing acknowledged may be lost in either flush mode. Files are small, so that a
round meets the edges of log, queue and index files; modes, intervals and kernels change from start to start, and some starts
are killed before they are done. `python -m benchmarks crash --rounds 1000`.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bench import native_is_built
from benchmarks.process import CORES, Child, ProcessFailed
from benchmarks.servers import Broker, nameserver
from benchmarks.wire import Wire
from tests.crash.checker import Violation
from tests.crash.remade import Remade
from tests.crash.resets import Resets
from tests.crash.retries import Retries
from tests.crash.session import Session, keep, rebuild
from tests.crash.traffic import Traffic

PRODUCERS = 4
QUEUES = 4
ROUNDS_OF_A_STORE = 50
LIFE_S = (0.0, 1.2)  # behind readiness
EARLY_PART = 0.2
EARLY_S = (0.0, 1.0)  # behind the start of the process
KEYS_EVERY = 5
PRINTED_MAX = 20


@dataclass(slots=True)
class Summary:
    rounds: int = 0
    early: int = 0  # killed while starting
    acked: int = 0
    unknown: int = 0
    resets: int = 0
    remade: int = 0
    retries: int = 0
    wrong: list[str] = field(default_factory=list)
    ready_s_max: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.rounds} rounds ({self.early} killed while starting), {self.acked:,} messages acknowledged, "
            f"{self.unknown:,} without an answer, {self.resets:,} offset resets, {self.remade:,} topics made again, "
            f"{self.retries:,} retries, slowest restart {self.ready_s_max:.1f} s, {len(self.wrong)} violations"
        )


def sizes(dice: random.Random) -> dict[str, object]:
    """Sizes of files are part of a store: drawn once for each."""
    return {
        "mappedFileSizeCommitLog": dice.choice([256 << 10, 1 << 20, 4 << 20]),
        "mappedFileSizeConsumeQueue": 20 * dice.choice([64, 500, 5000]),
        "maxHashSlotNum": 1000,
        "maxIndexNum": dice.choice([500, 5000]),
        "maxMessageSize": 64 << 10,
        "defaultTopicQueueNums": QUEUES,
    }


def mood(dice: random.Random) -> dict[str, object]:
    """What may change from start to start."""
    return {
        "flushDiskType": dice.choice(["SYNC_FLUSH", "ASYNC_FLUSH"]),
        "flushIntervalCommitLog": dice.choice([10, 100, 500]),
        "flushIntervalConsumeQueue": dice.choice([20, 200, 1000]),
    }


class KillRounds:
    """One store and its series of deaths."""

    def __init__(
        self, folder: Path, names: str, dice: random.Random, kernels: tuple[str, ...], flush: str = ""
    ) -> None:
        self._dice, self._kernels, self._flush = dice, kernels, flush
        self.session = Session(QUEUES)
        self.resets, self.remade, self.retries = Resets(QUEUES), Remade(), Retries()
        self.server = Broker(folder, names, properties=sizes(dice), cores=set(CORES))
        self._sizes = dict(self.server.properties)
        self._died = time.monotonic()

    def run(self, rounds: int, summary: Summary) -> list[Violation]:
        for number in range(rounds):
            wrong = self._start_and_check(summary, whole=number % 10 == 9, keys=number % KEYS_EVERY == KEYS_EVERY - 1)
            if wrong:
                return wrong
            self._live_and_die(f"r{summary.rounds}")
            summary.rounds += 1
        return self._end(summary)

    def complaint(self) -> str:
        return self.server.process.complaint() if hasattr(self.server, "process") else ""

    def _start_and_check(self, summary: Summary, *, whole: bool, keys: bool) -> list[Violation]:
        self._choose_mood()
        while self._dice.random() < EARLY_PART:
            self._start_and_kill_early()
            summary.early += 1
            self._choose_mood()
        self.server.start()
        summary.ready_s_max = max(summary.ready_s_max, self.server.ready_s)
        return self._check(whole=whole, keys=keys)

    def _check(self, *, whole: bool, keys: bool, last: bool = False) -> list[Violation]:
        address = self.server.address
        wrong = self.session.check(address, self._died, whole=whole, keys=self._dice if keys else None)
        if whole:
            self.retries.read_anew()
        with Wire(address, timeout=30) as wire:
            return wrong + self.resets.check(wire) + self.remade.check(wire) + self.retries.check(wire, last=last)

    def _choose_mood(self) -> None:
        chosen = mood(self._dice)
        if self._flush:
            chosen["flushDiskType"] = self._flush
        self.server.properties = {**self._sizes, **chosen}
        self.server.env = {"KAPPAMQ_KERNEL": self._dice.choice(self._kernels)}

    def _start_and_kill_early(self) -> None:
        process: Child = self.server.launch()
        time.sleep(self._dice.uniform(*EARLY_S))
        if not process.running and "is in use" not in process.complaint():
            raise ProcessFailed(f"the broker ended by itself:\n{process.complaint()}")
        process.kill()

    def _live_and_die(self, name: str) -> None:
        address, books, dice = self.server.address, self.session.books, self._dice
        more = [actor for part in (self.resets, self.remade, self.retries) for actor in part.actors(address, dice)]
        traffic = Traffic(address, books, name, QUEUES, PRODUCERS, dice, more)
        time.sleep(self._dice.uniform(*LIFE_S))
        alive = self.server.process.running
        self.server.kill()
        self._died = time.monotonic()
        traffic.join()
        if not alive:
            raise ProcessFailed(f"the broker ended by itself:\n{self.server.process.complaint()}")
        if traffic.problems:
            raise AssertionError(f"a client met something odd: {traffic.problems[:3]}")

    def _end(self, summary: Summary) -> list[Violation]:
        """Once more from the start; then a clean stop; then without anything that is derived from the log."""
        for step in ("after the last kill", "after a clean stop", "rebuilt from the log"):
            self._choose_mood()
            if step == "rebuilt from the log":
                rebuild(self.server)
            else:
                self.server.start()
            wrong = self._check(whole=True, keys=True, last=True)
            if wrong:
                return [Violation(one.kind, f"{one.text} ({step})") for one in wrong]
            self.server.stop()
            self._died = time.monotonic()
        summary.acked += len(self.session.books.acked())
        summary.unknown += len(self.session.books.attempts) - len(self.session.books.acked())
        summary.resets += self.resets.count
        summary.remade += self.remade.count
        summary.retries += self.retries.count
        return []


def run(
    folder: Path,
    rounds: int,
    seed: int,
    *,
    flush: str = "",
    kernels: tuple[str, ...] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Summary:
    """`rounds` deaths in all, spread over stores of up to ROUNDS_OF_A_STORE each. Stops at the first violation."""
    summary = Summary()
    kernels = kernels or (("native", "twin") if native_is_built() else ("twin",))
    with nameserver(folder / "names") as names:
        store = 0
        while summary.rounds < rounds and not summary.wrong:
            dice = random.Random(f"{seed}/{store}")
            place = folder / f"store-{store}"
            killing = KillRounds(place, names, dice, kernels, flush)
            try:
                wrong = [str(one) for one in killing.run(min(ROUNDS_OF_A_STORE, rounds - summary.rounds), summary)]
            except (ProcessFailed, AssertionError, OSError) as error:
                wrong = [
                    f"failed: {error}"
                    if isinstance(error, ProcessFailed)
                    else f"failed: {error}\n{killing.complaint()}"
                ]
            finally:
                if hasattr(killing.server, "process"):
                    killing.server.kill()
            if wrong:
                kept = keep(place, Path(tempfile.gettempdir()) / f"kappamq-crash-{seed}-{store}")
                summary.wrong = [
                    *wrong,
                    f"seed {seed}, store {store}, round {summary.rounds}; the store is kept in {kept}",
                ]
            for text in summary.wrong[:PRINTED_MAX]:
                say(f"  {text}")
            say(f"store {store} ({killing.server.properties['mappedFileSizeCommitLog']} byte files): {summary}")
            shutil.rmtree(place, ignore_errors=True)
            store += 1
    return summary


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--flush", choices=["SYNC_FLUSH", "ASYNC_FLUSH"], default="", help="default: both, at random")
    parser.add_argument("--kernel", choices=["native", "twin"], help="default: both, at random")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="kappamq-crash-", dir=options.folder))
    kernels = (options.kernel,) if options.kernel else None
    try:
        summary = run(
            folder,
            options.rounds,
            options.seed,
            flush=options.flush,
            kernels=kernels,
            say=lambda text: print(text, flush=True),
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(summary)
    return 1 if summary.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
