"""Rebuilds consume queues and key index from the commit log, in parallel, to the same bytes as the broker's.

Tasks read ranges of the log and save the result in files beside the store (`store.log_ranges`). The driver combines these in
log order, while further tasks run, and swaps the finished folders with the old ones (`store.rebuilding`). It holds the store's
lock, so no broker can run. The log itself is only read.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kappamq import native
from kappamq.config.broker import BrokerConfig
from kappamq.errors import ConfigError, DiskFull, StoreDamaged, StoreError, StoreLocked
from kappamq.spark.engine import check_installed, told
from kappamq.store.files import Files
from kappamq.store.lock import StoreLock
from kappamq.store.log.log_end import LogEnd, check_files, find_end
from kappamq.store.log.log_ranges import Part, RangeReader, cut
from kappamq.store.log.log_reader import LogReader
from kappamq.store.log.stretches import Stretch
from kappamq.store.queues.deleted_topics import TopicTable
from kappamq.store.reader import check_is_store
from kappamq.store.rebuilding import NewFiles, Sizes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

STRETCH_BYTES: Final = 128 << 20
"""What one task reads; a task costs Spark some 60 ms."""
_TASKS_PER_CORE: Final = 2
_ALONE: Final = "Its queues can only be rebuilt while no broker runs"

Progress = Callable[[int, int], None]
"""Called with the bytes of the log that are done, and the total."""
Run = Callable[["Work", Sequence["Task"]], list[float]]
"""Runs the tasks; returns the CPU time of each in seconds."""


@dataclass(frozen=True, slots=True)
class Task:
    """A range of the log, and the file for its result."""

    stretch: Stretch
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What all tasks have in common; pickled."""

    root: str
    segment_bytes: int
    end: LogEnd
    skip_damage: bool
    delays_ms: tuple[int, ...]
    keys: bool
    kernel: str

    def do(self, task: Task) -> float:
        """Read one range and save its result; returns the processor time in seconds. Running it twice, even at once, is harmless."""
        began = time.process_time()
        files = Files()
        log = LogReader(Path(self.root) / "commitlog", files, self.segment_bytes)
        try:
            reader = RangeReader(
                log, self.end, native.load(self.kernel), skip_damage=self.skip_damage, delays_ms=self.delays_ms, keys=self.keys
            )  # fmt: skip
            part = reader.read(task.stretch)
            path = Path(task.path)
            try:
                part.save(path, path.with_name(f"{path.name}.{os.uname().nodename}-{os.getpid()}"), files)
            except OSError as error:
                raise _no_room(path, error) from error
        finally:
            log.close()
        return time.process_time() - began


@dataclass(slots=True, kw_only=True)
class Rebuilt:
    """The result of a run."""

    root: Path
    log_min: int = 0
    log_end: int = 0
    records: int = 0
    queues: int = 0
    queue_entries: int = 0
    index_files: int = 0
    index_entries: int = 0
    damage: list[tuple[int, int]] = field(default_factory=list)  # bytes [from, to) of the log that were skipped
    deleted_topics: list[str] = field(default_factory=list)  # in the log, and without queue files, as it should be
    kept_queues: list[tuple[str, int]] = field(default_factory=list)  # which only the old files know
    left_out: list[str] = field(default_factory=list)  # topics whose names cannot be folders
    ranges: int = 0
    read_again: int = 0  # ranges that did not begin where the one before ended
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of this process and of the tasks, without Spark itself


def rebuild(
    spark: SparkSession,
    root: str | Path,
    *,
    skip_damage: bool = False,
    sizes: Sizes | None = None,
    delays_ms: Sequence[int] | None = None,
    keys: bool = True,
    stretch_bytes: int = STRETCH_BYTES,
    kernel: str = "auto",
    progress: Progress | None = None,
) -> Rebuilt:
    """Rebuild the queue files and (with `keys`) the index files of the stopped store in `root` from its log.

    `root` is a directory that the driver and all executors see. `sizes` and `delays_ms` (of the delay levels) are as the broker is
    configured. With `skip_damage`, bytes in the middle of the log that are not records are skipped and listed.
    Raises StoreLocked (a broker runs), StoreDamaged, StoreFormatError, StoreError (the store is as it was), SparkFailed."""
    check_installed()

    def run(work: Work, tasks: Sequence[Task]) -> list[float]:
        return _on_spark(spark, work, tasks)

    cores = _cores(spark)
    return rebuild_with(
        run, root, cores=cores, skip_damage=skip_damage, sizes=sizes, delays_ms=delays_ms, keys=keys,
        stretch_bytes=stretch_bytes, kernel=kernel, progress=progress,
    )  # fmt: skip


def rebuild_with(
    run: Run,
    root: str | Path,
    *,
    cores: int = 1,
    skip_damage: bool = False,
    sizes: Sizes | None = None,
    delays_ms: Sequence[int] | None = None,
    keys: bool = True,
    stretch_bytes: int = STRETCH_BYTES,
    kernel: str = "auto",
    progress: Progress | None = None,
) -> Rebuilt:
    """The same, with a function that runs the tasks."""
    if stretch_bytes < 1:
        raise ConfigError(f"stretch_bytes={stretch_bytes} must be at least 1")
    began, cpu_began = time.perf_counter(), time.process_time()
    directory = Path(root).expanduser().absolute()
    check_stopped(directory)
    delays = BrokerConfig().delays_ms if delays_ms is None else tuple(delays_ms)
    files, lock = Files(), StoreLock(directory)
    try:
        lock.acquire()
    except StoreLocked as error:
        raise StoreLocked(f"{error}. {_ALONE}") from error
    log: LogReader | None = None
    try:
        log = LogReader(directory / "commitlog", files)
        check_files(log, files, skip_damage)
        done = _Run(directory, log, files, sizes or Sizes(), keys, native.load(kernel)).run(
            run, cores, stretch_bytes, delays, skip_damage, kernel, progress or (lambda _done, _total: None)
        )
    except OSError as error:
        raise _no_room(directory, error) from error
    finally:
        if log is not None:
            log.close()
        lock.release()
    done.seconds = time.perf_counter() - began
    done.cpu_seconds += time.process_time() - cpu_began
    return done


def check_stopped(root: Path) -> None:
    """Raise StoreError if this is not a store, StoreLocked if a broker has it open. Changes nothing."""
    check_is_store(root)
    holder = StoreLock.holder(root)
    if holder is not None:
        who = f"process {holder}" if holder else "another process"
        raise StoreLocked(f"{root} is in use by {who}: stop the broker first. {_ALONE}")


class _Run:
    def __init__(self, root: Path, log: LogReader, files: Files, sizes: Sizes, keys: bool, module: Any) -> None:
        self._root = root
        self._log = log
        self._files = files
        self._keys = keys
        self._module = module
        self._sizes = sizes.checked(root, files)
        self._done = Rebuilt(root=root, log_min=log.min)

    def run(
        self, run: Run, cores: int, stretch_bytes: int, delays_ms: tuple[int, ...], skip_damage: bool, kernel: str, progress: Progress
    ) -> Rebuilt:  # fmt: skip
        log, done = self._log, self._done
        end, position = find_end(self._root, log, self._module.scan, self._files)
        work = Work(
            root=str(self._root), segment_bytes=log.segment_bytes, end=end, skip_damage=skip_damage, delays_ms=delays_ms,
            keys=self._keys, kernel=kernel,
        )  # fmt: skip
        # Old files are half of the disk space that this needs, but they must stay until the new ones are complete.
        new = NewFiles(self._root, self._sizes, self._module, self._files, keys=self._keys)
        try:
            tasks = [Task(one, str(new.part_path(one.start))) for one in cut(log, stretch_bytes)] if log.starts else []
            done.ranges = len(tasks)
            self._build(new, work, run, tasks, cores, progress, max(end.flushed, 0) or log.limit)
            table = TopicTable(self._root / "config", log.min, done.log_end, self._files)
            table.apply(new.metadata(log, table.stamp))
            done.deleted_topics = new.drop_topics(table.deleted)
            done.kept_queues = new.keep_queues(log.min, table.deleted)
            done.left_out = sorted(new.left_out)
            infos = new.index.infos()
            done.index_files, done.index_entries = len(infos), sum(info.entries for info in infos)
            done.queues, done.queue_entries = len(new.ends), new.entries
            new.sync()
            new.swap(log, done.log_end, position)
        finally:
            new.remove()
        return done

    def _build(
        self, new: NewFiles, work: Work, run: Run, tasks: Sequence[Task], cores: int, progress: Progress, expected: int
    ) -> None:
        """Enter every range in log order, one round of tasks while the next one is read."""
        log, done = self._log, self._done
        done.log_end = at = log.min
        progress(0, max(expected - log.min, 1))
        # Closed before the folder is removed: tasks of the next round may still be writing to it.
        with closing(self._rounds(work, run, tasks, max(1, cores * _TASKS_PER_CORE))) as ready:
            for task in ready:
                path = Path(task.path)
                if task.stretch.stop <= at:
                    self._files.remove(path)
                    continue
                part = Part.load(path, self._files) if task.stretch.start == at else None
                if part is None or part.start != at:
                    # The bytes looked like a record but were not one, or lay within a batch.
                    done.read_again += 1
                    part = self._read_again(work, Stretch(at, task.stretch.stop), path)
                self._files.remove(path)
                if part.refused:
                    raise StoreDamaged(part.refused)
                new.add(part)
                done.records += part.records
                done.damage += part.damage
                done.log_end = at = part.reached
                progress(min(at, expected) - log.min, max(expected - log.min, 1))
                if part.is_end:
                    break
        progress(max(done.log_end - log.min, 1), max(done.log_end - log.min, 1))

    def _read_again(self, work: Work, stretch: Stretch, path: Path) -> Part:
        """Write under a unique name: a second attempt of the task (speculation, an executor assumed dead) may still write to `path`."""
        own = path.with_name(f"{path.name}-again")
        work.do(Task(stretch, str(own)))
        part = Part.load(own, self._files)
        self._files.remove(own)
        return part

    def _rounds(self, work: Work, run: Run, tasks: Sequence[Task], size: int) -> Generator[Task]:
        """Yield the tasks in order, each when its part is complete."""
        rounds = [tasks[at : at + size] for at in range(0, len(tasks), size)]
        if not rounds:
            return
        with ThreadPoolExecutor(1, "kappamq-rebuild") as thread:
            ahead = thread.submit(run, work, rounds[0])
            for number, ready in enumerate(rounds):
                self._done.cpu_seconds += sum(ahead.result())
                if number + 1 < len(rounds):
                    ahead = thread.submit(run, work, rounds[number + 1])
                yield from ready


def _on_spark(spark: SparkSession, work: Work, tasks: Sequence[Task]) -> list[float]:
    """One task of Spark's for each."""
    import pyarrow

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            seconds = [work.do(tasks[number]) for number in batch.column(0).to_pylist()]
            yield pyarrow.RecordBatch.from_arrays([pyarrow.array(seconds, pyarrow.float64())], ["seconds"])

    with told():
        count = len(tasks)
        rows = spark.range(0, count, 1, count).mapInArrow(read, "seconds double").collect()
    return [row.seconds for row in rows]


def _cores(spark: SparkSession) -> int:
    from pyspark.errors import PySparkException

    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkException:
        return 1  # not available in a session of Spark Connect


def _no_room(place: Path, error: OSError) -> StoreError:
    """Return the error to raise if the system does not let us write. The store is as it was."""
    where = error.filename or place
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"{where} cannot be written: the disk is full. New queue and index files need as much space as the old ones, which are kept "
            f"until the new ones are complete. The store is unchanged: free some space and run it again"
        )
    return StoreError(
        f"{where} cannot be used: {error.strerror or error}. The store is unchanged; check owner, permissions and the disk"
    )
