"""What the scenarios share: the session, a broker full of messages, and what a query takes in time and in CPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from benchmarks.bench import Bench, Figure
from benchmarks.process import CORES
from benchmarks.servers import Broker, broker, settle
from benchmarks.spark import messages
from kappamq.store.position import Position
from kappamq.store.reader import StoreReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

BODIES: Final = (100, 1024)
QUEUES: Final = 8
SHOWN_S_MAX: Final = 60.0
BODY, ID, MAP = ("body", "queueId", "queueOffset"), "msgId", "properties"
KINDS: Final[dict[str, tuple[str, ...]]] = {
    "body, queue, offset": BODY,
    "with msgId": (*BODY, ID),
    "with properties": (*BODY, MAP),
}
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Took:
    """What a query took: seconds, and the CPU seconds of the processes that were watched."""

    seconds: float
    cpu_s: float


class Lab:
    """Handed to every scenario."""

    def __init__(self, bench: Bench, spark: SparkSession, *, toy: bool = False) -> None:
        self.bench = bench
        self.spark = spark
        self.toy = toy  # the test run: each scenario once, with one kind of rows
        self.spark_pid = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]

    @property
    def bodies(self) -> tuple[int, ...]:
        return BODIES[:1] if self.toy else BODIES

    @property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """The columns that are read, by the name of the figure."""
        return dict(list(KINDS.items())[-1:]) if self.toy else KINDS

    def rounds(self, what: Sequence[str], measure: Callable[[str], T]) -> list[dict[str, T]]:
        """Measure each in turn; the first round does not count, for the virtual machine compiles what it finds busy."""
        if not self.toy:
            self.bench.rounds(what, measure, 1)
        return self.bench.rounds(what, measure)

    def rows(self, body: int) -> int:
        """How many rows of this size: about as many bytes of each."""
        rows = self.bench.size.table_rows
        return rows if body == BODIES[0] else rows // 4

    def table(self, form: str, options: Mapping[str, str], columns: Sequence[str]) -> DataFrame:
        return self.spark.read.format(form).options(**options).option("columns", ",".join(columns)).load()

    def take(self, action: Callable[[], object], *others: int) -> Took:
        """Run `action`; CPU is that of Spark, its Python workers, and the processes `others`."""
        pids = (self.spark_pid, *others)
        before, start = cpu_of(*pids), time.monotonic()
        action()
        return Took(time.monotonic() - start, used_s(before, cpu_of(*pids)))

    def read(self, frame: DataFrame, *others: int) -> Took:
        return self.take(lambda: frame.write.format("noop").mode("overwrite").save(), *others)

    @contextmanager
    def filled(self, body: int, *, cores: set[int] | None = None) -> Iterator[Filled]:
        """A broker that holds `rows(body)` messages in one topic, at rest."""
        count = self.rows(body)
        with (
            self.bench.nameserver() as names,
            self.bench.folder(on_disk=True) as home,
            broker(home, names, cores=set(CORES) if cores is None else cores) as server,
        ):
            topic = f"table-{body}"
            self.bench.say(f"writing {count:,} messages of {body} bytes")
            messages.send(names, topic, body, count, QUEUES)
            settle(server.process)
            _wait_until_shown(server.data)
            yield Filled(server, names, topic, count)


@dataclass(frozen=True, slots=True)
class Filled:
    """A broker, and the topic that was filled."""

    broker: Broker
    nameservers: str
    topic: str
    count: int

    @property
    def source(self) -> dict[str, str]:
        """The options of the format `kappamq`."""
        return {"nameservers": self.nameservers, "topic": self.topic}

    @property
    def store(self) -> dict[str, str]:
        """The options of the format `kappamq.store`."""
        return {"path": str(self.broker.data), "topic": self.topic}


def _wait_until_shown(data: Path) -> None:
    """A running store is read as far as its position says, which is behind the log while the disk is busy."""
    deadline = time.monotonic() + SHOWN_S_MAX
    while time.monotonic() < deadline:
        position, _why = Position.load(data / "kappamq.position")
        if position is not None:
            with StoreReader(data) as store:
                if store.log.end(position.dispatched) == position.dispatched:
                    return
        time.sleep(0.1)
    raise AssertionError(f"the position of {data} does not reach the end of its log in {SHOWN_S_MAX:.0f} s")


def digest(frame: DataFrame) -> tuple[int, int, int]:
    """Rows, bytes of bodies and sum of offsets: two tables that are compared must agree in it."""
    from pyspark.sql import functions as f

    row = frame.agg(f.count("*"), f.sum(f.length("body")), f.sum("queueOffset")).first()
    assert row is not None
    return row[0], row[1] or 0, row[2] or 0


def compared(
    scenario: str,
    what: str,
    rounds: list[dict[str, Took]],
    ours: str,
    theirs: str,
    count: int,
    at_least: float | None = None,
) -> list[Figure]:
    """Rows a second of both, and the ratio with its goal if there is one; the ratio of CPU in its remarks."""
    rates = {name: [count / took[name].seconds for took in rounds] for name in (ours, theirs)}
    ratios = [took[theirs].seconds / took[ours].seconds for took in rounds]
    cpu = sorted(took[theirs].cpu_s / max(took[ours].cpu_s, 0.01) for took in rounds)[len(rounds) // 2]
    return [
        *(Figure.median(scenario, f"{what}: {name}", rates[name], "rows/s") for name in (ours, theirs)),
        Figure.median(
            scenario, f"{what}: {ours} / {theirs}", ratios, "x", at_least=at_least, note=f"by CPU {cpu:.2f}; {load()}"
        ),
    ]


def load() -> str:
    """Who else used the machine: read next to each figure."""
    return f"load average {os.getloadavg()[0]:.1f}"


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    below: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and (fields := _stat(int(place.name))):
            below.setdefault(int(fields[1]), []).append(int(place.name))
    found = [pid]
    for one in found:
        found += below.get(one, [])
    return found


def cpu_of(*pids: int) -> dict[int, float]:
    """CPU seconds of these processes and of all below them, each by itself."""
    found: dict[int, float] = {}
    for one in {below for pid in pids for below in tree(pid)}:
        if fields := _stat(one):
            found[one] = (int(fields[11]) + int(fields[12])) / _TICKS
    return found


def used_s(before: dict[int, float], after: dict[int, float]) -> float:
    """What they used in between. Of a worker that has ended meanwhile (Spark ends idle ones) nothing is known."""
    return sum(cpu - before.get(pid, 0.0) for pid, cpu in after.items())


def _stat(pid: int) -> list[str]:
    """The fields behind the name of a process; empty if it has just ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
