"""Power cuts: the broker's disk is a loop-mounted ext4 whose power fails at a random moment; another start recovers from it.

With sync flush nothing acknowledged may be lost. With async flush the end of the log is lost, and nothing else: if this harness
finds no loss there, it proves nothing about sync flush either. `python -m benchmarks power --rounds 100`; needs root.
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

from benchmarks.bench import MEMORY, native_is_built
from benchmarks.process import CORES, ProcessFailed
from benchmarks.servers import Broker, nameserver
from tests.crash.checker import Violation
from tests.crash.image import Disk, ImageError, Smeared
from tests.crash.kill import KEYS_EVERY, PRINTED_MAX, PRODUCERS, QUEUES, mood, sizes
from tests.crash.session import Session, keep
from tests.crash.traffic import Traffic
from tests.needs import require

SYNC, ASYNC = "SYNC_FLUSH", "ASYNC_FLUSH"
METHODS = ("copy", "shutdown")
ROUNDS_OF_A_DISK = 10
LIFE_S = (0.3, 1.5)
SETTLE_S = 0.03  # a write that was under way gets to the disk


@dataclass(slots=True)
class Summary:
    flush: str
    cuts: int = 0
    smeared: int = 0  # copies that were no power cuts
    acked: int = 0
    lost: int = 0
    lost_age_s: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lost = (
            f"{self.lost:,} of them lost, the oldest {self.lost_age_s:.2f} s before its cut"
            if self.lost
            else "none lost"
        )
        smeared = f" ({self.smeared} copies were smeared and do not count)" if self.smeared else ""
        return (
            f"{self.flush}: {self.cuts} power cuts{smeared}, {self.acked:,} messages acknowledged, {lost}, "
            f"{len(self.wrong)} violations"
        )

    @property
    def proves_something(self) -> bool:
        """Sync must lose nothing; async must lose something, or the cuts are no cuts."""
        return not self.wrong and (self.flush == SYNC or self.lost > 0)


class PowerCuts:
    """One disk and its series of power cuts."""

    def __init__(
        self,
        folder: Path,
        names: str,
        dice: random.Random,
        flush: str,
        kernels: tuple[str, ...],
        methods: tuple[str, ...],
    ) -> None:
        self._dice, self._flush, self._kernels, self._methods = dice, flush, kernels, methods
        self.disk = Disk(folder / "disk")
        self.session = Session(QUEUES)
        self.server = Broker(folder, names, properties=sizes(dice), data=self.disk.root / "store", cores=set(CORES))
        self._sizes = dict(self.server.properties)
        self._boots = 0
        self._died = time.monotonic()

    def run(self, rounds: int, summary: Summary) -> list[Violation]:
        self.disk.mount()
        for number in range(rounds):
            wrong = self._start_and_check(keys=number % KEYS_EVERY == 0)
            if wrong:
                return wrong
            self._live_and_cut(summary)
        wrong = self._start_and_check(keys=True)
        self.server.stop()
        summary.acked += len(self.session.books.acked())
        summary.lost += self.session.lost
        summary.lost_age_s = max(summary.lost_age_s, self.session.lost_age_s)
        return wrong

    def run_and_tell(self, rounds: int, summary: Summary) -> list[str]:
        """As `run`; a broker or a client that fails is a violation, too."""
        try:
            return [str(one) for one in self.run(rounds, summary)]
        except (ProcessFailed, AssertionError, OSError, ImageError) as error:
            return [f"failed: {type(error).__name__} {error}"]
        finally:
            if hasattr(self.server, "process"):
                self.server.kill()

    def end(self) -> None:
        self.disk.destroy()

    def _start_and_check(self, *, keys: bool) -> list[Violation]:
        self._boots += 1
        self.server.properties = {**self._sizes, **mood(self._dice), "flushDiskType": self._flush}
        self.server.env = {
            "KAPPAMQ_KERNEL": self._dice.choice(self._kernels),
            "KAPPAMQ_BOOT_ID": f"boot-{self._boots}",
        }
        self.server.start()
        return self.session.check(
            self.server.address,
            self._died,
            whole=True,
            may_lose=self._flush == ASYNC,
            keys=self._dice if keys else None,
        )

    def _live_and_cut(self, summary: Summary) -> None:
        traffic = Traffic(self.server.address, self.session.books, f"c{summary.cuts}", QUEUES, PRODUCERS, self._dice)
        time.sleep(self._dice.uniform(*LIFE_S))
        method = self._dice.choice(self._methods)
        self._died = time.monotonic()
        if method == "copy":
            # The broker holds still while its disk is copied: else the blocks would come from many moments, which no power
            # cut does. What it has not synced stays in the page cache meanwhile. Answers that are still on their way count.
            self.server.process.pause()
            time.sleep(SETTLE_S)
            self.disk.copy()
        else:
            self.disk.shut_down()
        self.server.kill()
        traffic.join()
        if traffic.problems:
            raise AssertionError(f"a client met something odd: {traffic.problems[:3]}")
        if method == "shutdown":
            # An fdatasync that is under way when ext4 shuts down may return without an error though nothing was written; after
            # a real power cut nobody would be there to tell a client. Only what was answered before is a promise.
            self.session.books.forget_what_came_after(self._died)
        try:
            self.disk.power_on() if method == "shutdown" else self.disk.become_copy()
        except Smeared:
            summary.smeared += 1
            return
        summary.cuts += 1


def run(
    folder: Path,
    cuts: int,
    seed: int,
    flush: str,
    *,
    kernels: tuple[str, ...] | None = None,
    methods: tuple[str, ...] = METHODS,
    say: Callable[[str], None] = lambda text: None,
) -> Summary:
    """`cuts` power cuts in all, over disks of up to ROUNDS_OF_A_DISK each. Stops at the first violation."""
    summary = Summary(flush)
    kernels = kernels or (("native", "twin") if native_is_built() else ("twin",))
    with nameserver(folder / "names") as names:
        number = 0
        while summary.cuts < cuts and not summary.wrong:
            dice = random.Random(f"{seed}/{flush}/{number}")
            place = folder / f"{flush}-{number}"
            place.mkdir(parents=True)
            cutting = PowerCuts(place, names, dice, flush, kernels, methods)
            try:
                wrong = cutting.run_and_tell(min(ROUNDS_OF_A_DISK, cuts - summary.cuts), summary)
                if wrong:
                    kept = Path(tempfile.gettempdir()) / f"kappamq-power-{seed}-{flush}-{number}"
                    keep(cutting.server.data, kept)
                    where = f"seed {seed}, disk {number}, cut {summary.cuts}; the store is kept in {kept}"
                    summary.wrong = [*wrong, where]
            finally:
                cutting.end()
                shutil.rmtree(place, ignore_errors=True)
            for text in summary.wrong[:PRINTED_MAX]:
                say(f"  {text}")
            say(f"disk {number}: {summary}")
            number += 1
    return summary


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks power", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=100, help="power cuts with sync flush; a fifth as many with async"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--flush", choices=[SYNC, ASYNC], help="default: both, one after the other")
    parser.add_argument("--kernel", choices=["native", "twin"], help="default: both, at random")
    parser.add_argument("--method", choices=METHODS, help="default: both, at random")
    parser.add_argument("--folder", type=Path, default=MEMORY, help="where the disk images go")
    options = parser.parse_args(arguments)
    require("root", "loop")
    print(f"seed {options.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="kappamq-power-", dir=options.folder))
    summaries: list[Summary] = []
    try:
        for flush in [options.flush] if options.flush else [SYNC, ASYNC]:
            summary = run(
                folder,
                options.rounds if flush == SYNC or options.flush else max(1, options.rounds // 5),
                options.seed,
                flush,
                kernels=(options.kernel,) if options.kernel else None,
                methods=(options.method,) if options.method else METHODS,
                say=lambda text: print(text, flush=True),
            )
            summaries.append(summary)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for summary in summaries:
        print(summary)
        if not summary.wrong and not summary.proves_something:
            print("  nothing was lost with async flush: these cuts prove nothing")
    return 0 if all(summary.proves_something for summary in summaries) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
