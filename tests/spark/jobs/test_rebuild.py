"""Queues and index built anew have the bytes that the broker builds; whatever goes wrong, the store stays usable."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kappamq.errors import ConfigError, DiskFull, StoreDamaged, StoreError, StoreFormatError, StoreLocked
from kappamq.protocol.headers.admin import DeleteTopic
from kappamq.protocol.records.record import BODY_AT, Record
from kappamq.spark.jobs import Rebuilt, rebuild
from kappamq.spark.jobs.rebuild import Task, Work, rebuild_with
from kappamq.store.files import Files
from kappamq.store.lock import StoreLock
from kappamq.store.log.stretches import Stretch
from kappamq.store.position import Position
from kappamq.store.rebuilding import ASIDE, Sizes
from tests.broker.operating import make_topic, ok
from tests.broker.running import running, speaking
from tests.broker.transacting import producing
from tests.store.derived_files import assert_same, derived, without_derived
from tests.store.stores import START_MS, Writer, bodies, check, config, drop_oldest, kernels, opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kappamq.store.message_store import MessageStore

SMALL = Sizes(queue_file_entries=64, index_slots=97, index_entries=1000)
"""As tests/store/stores.py has them."""
KERNELS = kernels()
NEWEST = KERNELS[-1]


def in_process(work: Work, tasks: Sequence[Task]) -> list[float]:
    return [work.do(task) * 0 for task in tasks]


def built(root: Path, **changes: Any) -> Rebuilt:
    options: dict[str, Any] = {"sizes": SMALL, "stretch_bytes": 9000, "kernel": NEWEST}
    return rebuild_with(in_process, root, **(options | changes))


def fill(store: MessageStore, count: int = 400, seed: int = 1) -> Writer:
    """Messages and batches of all sizes in fifteen queues."""
    dice = random.Random(seed)
    writer = Writer(store)
    for number in range(count):
        topic, queue_id = f"t{dice.randrange(5)}", dice.randrange(3)
        if dice.random() < 0.1:
            members = [b"member %d" % n * dice.randrange(1, 40) for n in range(dice.randrange(2, 20))]
            writer.batch(members, topic, queue_id)
        else:
            text = f"KEYS\x01k{number % 7} all\x02TAGS\x01tag{number % 3}\x02UNIQ_KEY\x01u{number}\x02"
            writer.send(dice.randbytes(dice.randrange(2000)), topic, queue_id, text.encode())
        if number % 50 == 0:
            writer.write()
            writer.now_ms += dice.randrange(3000)
    writer.write()
    return writer


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A store of ours that was stopped in good order."""
    with opened(config(tmp_path / "store"), NEWEST) as store:
        fill(store)
    return tmp_path / "store"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The same, with less in it."""
    with opened(config(tmp_path / "small"), NEWEST) as store:
        fill(store, 60)
    return tmp_path / "small"


# --- the same bytes ---


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("stretch_bytes", [3000, 20_000, 1 << 20])
def test_the_same_bytes_as_the_broker_builds(tmp_path: Path, kind: str, stretch_bytes: int) -> None:
    root = tmp_path / "store"
    with opened(config(root), kind) as store:
        writer = fill(store)
    one, other = without_derived(root, tmp_path / "one"), without_derived(root, tmp_path / "other")
    with opened(config(one), kind) as store:
        assert store.recovered.rebuilt  # type: ignore[attr-defined]
    done = built(other, stretch_bytes=stretch_bytes, kernel=kind)
    assert_same(derived(one), derived(other))
    assert done.records == done.queue_entries == sum(map(len, writer.expected.values()))
    assert (done.queues, done.damage, done.deleted_topics, done.kept_queues) == (15, [], [], [])
    assert not (other / ASIDE).exists()
    with opened(config(other), kind) as store:
        found = store.recovered  # type: ignore[attr-defined]
        assert (found.writer, found.rebuilt, found.records) == ("ours", False, 0), "the position fits the new files"
        check(store, writer)


def test_a_late_attempt_of_a_task_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that Spark has begun twice ends for the second time just when the driver has read its range again from elsewhere."""
    with opened(config(tmp_path / "store"), NEWEST) as store:
        writer = Writer(store)
        for _ in range(40):  # cuts fall into batches
            writer.batch([b"member %d" % number * 20 for number in range(20)], "t")
        writer.write()
    one, other = (without_derived(tmp_path / "store", tmp_path / name) for name in ("one", "other"))
    good = built(one, stretch_bytes=5000)
    assert good.read_again > 0
    real, first = Work.do, dict[int, Task]()

    def do(work: Work, task: Task) -> float:
        used = real(work, task)
        if (late := first.setdefault(task.stretch.stop, task)) is not task:
            real(work, late)
        return used

    monkeypatch.setattr(Work, "do", do)
    done = built(other, stretch_bytes=5000)
    assert (done.records, done.queue_entries) == (good.records, good.queue_entries)
    assert_same(derived(one), derived(other))


def test_a_part_that_begins_elsewhere_is_read_again(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (without_derived(small, tmp_path / name) for name in ("one", "other"))
    good = built(one)
    real, is_wrong = Work.do, iter([False, True])

    def do(work: Work, task: Task) -> float:
        begins = 0 if next(is_wrong, False) else task.stretch.start
        return real(work, Task(Stretch(begins, task.stretch.stop), task.path))

    monkeypatch.setattr(Work, "do", do)
    done = built(other)
    assert (done.records, done.read_again) == (good.records, good.read_again + 1)
    assert_same(derived(one), derived(other))


def test_in_the_place_of_good_files_and_of_damaged_ones(stopped: Path) -> None:
    right = derived(stopped)
    built(stopped)
    assert_same(derived(stopped), right)
    for path in sorted((stopped / "consumequeue").rglob("*0"))[:5]:
        if path.is_file():
            path.write_bytes(os.urandom(path.stat().st_size))
    next((stopped / "index").iterdir()).write_bytes(bytes(len(next(iter(right.values())))))
    shutil.rmtree(stopped / "index")
    built(stopped)
    assert_same(derived(stopped), right)


@pytest.mark.parametrize("kind", KERNELS)
def test_a_store_with_everything_in_it(tmp_path: Path, kind: str) -> None:
    """Batches, delays, transactions, metadata, a topic that was deleted and one that was also made again."""

    async def traffic(root: Path) -> None:
        async with running(root, kind) as broker, speaking(broker) as client, producing(broker) as producer:
            for topic in ("tea", "gone", "again"):
                await make_topic(client, topic, 2)
                for number in range(30):
                    keys = f"KEYS\x01order-{number} all\x02TAGS\x01tag{number % 3}"
                    assert (await client.send(topic, b"%d" % number, number % 2, keys)).code == 0
            for level in (1, 2, 18, 99):
                assert (await client.send("tea", b"later", 0, f"DELAY\x01{level}")).code == 0
            for decision in (8, 12):
                begun = await producer.begin("tea", b"half", 1)
                assert (await producer.end(begun, decision)).code in (0, 200), decision
            await producer.begin("tea", b"open", 1)
            await ok(client, DeleteTopic(topic="gone"))
            await ok(client, DeleteTopic(topic="again"))
            await make_topic(client, "again", 2)
            for number in range(5):
                assert (await client.send("again", b"new %d" % number, 1)).code == 0

    async def start_and_stop(root: Path) -> bool:
        async with running(root, kind) as broker:
            return broker.recovered.rebuilt

    first, second = tmp_path / "first", tmp_path / "second"
    asyncio.run(traffic(first))
    without_derived(first, second)
    assert asyncio.run(start_and_stop(second)), "the broker builds them anew"
    right = derived(second)
    third = without_derived(second, tmp_path / "third")
    sizes = Sizes(queue_file_entries=1000, index_slots=997, index_entries=10_000)
    done = built(third, sizes=sizes, kernel=kind)
    assert_same(derived(third), right)
    assert done.deleted_topics == ["gone"]
    topics = {path.name for path in (third / "consumequeue").iterdir()}
    assert {"tea", "again", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_kappamq_metadata"} <= topics
    assert not asyncio.run(start_and_stop(third)), "and is content with these"


@pytest.mark.parametrize("end", ["killed", "stopped"])
@pytest.mark.parametrize("kind", KERNELS)
def test_a_store_of_a_java_broker(tmp_path: Path, kind: str, end: str) -> None:
    root = tmp_path / "java"
    with tarfile.open(Path(__file__).parents[2] / "store" / "data" / f"java-5.3.3-{end}.tar.xz") as archive:
        archive.extractall(root, filter="data")
    javas = derived(root)
    sizes = {"queue_file_entries": 100, "index_slots": 100, "index_entries": 200}
    one, other = without_derived(root, tmp_path / "one"), without_derived(root, tmp_path / "other")
    with opened(config(one, **sizes), kind):
        pass
    done = built(other, sizes=Sizes(**sizes), kernel=kind)
    assert_same(derived(one), derived(other))
    assert (done.records, done.queues, done.index_files) == (310, 3, 5)
    assert not (other / "kappamq.position").exists(), "it is still Java's"
    queues = {name: data for name, data in javas.items() if name.startswith("consumequeue")}
    assert_same(queues, {name: data for name, data in derived(other).items() if name in queues})


def test_a_log_that_lost_its_beginning(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(config(root), NEWEST) as store:
        Writer(store).send(b"the only one", "expired", 3)
        fill(store)
        drop_oldest(store, 2)
    one, other = without_derived(root, tmp_path / "one"), without_derived(root, tmp_path / "other")
    with opened(config(one), NEWEST):
        pass
    assert built(other).log_min == 128 << 10
    assert_same(derived(one), derived(other))
    # With the old files there: where the numbering of an expired queue ended is not forgotten.
    done = built(root)
    assert done.kept_queues == [("expired", 3)]
    assert_same({name: data for name, data in derived(root).items() if "/expired/" not in name}, derived(other))
    with opened(config(root), NEWEST) as store:
        assert not store.recovered.rebuilt  # type: ignore[attr-defined]
        assert store.kernel.queue_state("expired", 3)[:2] == (1, 1)


def test_without_an_index(stopped: Path) -> None:
    shutil.rmtree(stopped / "consumequeue")
    shutil.rmtree(stopped / "index")
    done = built(stopped, keys=False)
    assert (done.index_files, done.index_entries) == (0, 0)
    assert not (stopped / "index").exists()
    assert done.queues == 15


def test_an_empty_log(tmp_path: Path) -> None:
    with opened(config(tmp_path), NEWEST):
        pass
    assert built(tmp_path).records == 0
    (tmp_path / "other" / "commitlog").mkdir(parents=True)
    assert built(tmp_path / "other").records == 0


# --- bodies that look like records ---


def test_a_body_that_looks_like_a_record_does_not_mislead(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(config(root), NEWEST) as store:
        writer = Writer(store)
        for number in range(400):
            # It lies behind the front of the record that holds it, and names the very offset at which it lies.
            liar = Record(topic="bad", body=b"x", log_offset=int(store.kernel.append_offset) + BODY_AT + 4)
            writer.send(liar.encode() + b"-" * (number % 90))
        writer.write()
    one, other = without_derived(root, tmp_path / "one"), without_derived(root, tmp_path / "other")
    with opened(config(one), NEWEST):
        pass
    done = built(other, stretch_bytes=1000)
    assert done.read_again > 0, "some ranges began in a body"
    assert_same(derived(one), derived(other))


# --- damage, and ends of the log ---


def flip(root: Path, offset: int, segment_bytes: int = 64 << 10) -> None:
    path = root / "commitlog" / f"{offset - offset % segment_bytes:020d}"
    with path.open("r+b") as file:
        file.seek(offset % segment_bytes)
        byte = file.read(1)[0]
        file.seek(offset % segment_bytes)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("kind", KERNELS)
def test_damage_is_told_by_place_and_passed_over_if_asked_for(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "store"
    with opened(config(root), kind) as store:
        writer = Writer(store)
        places = [writer.send(b"message %04d" % n * 20, properties=b"KEYS\x01k%d" % n) for n in range(700)]
        writer.write()
    for number in (100, 333, 334, 600):
        flip(root, places[number] + 95)
    flip(root, places[450] + 5)  # its magic
    before = derived(root)
    with pytest.raises(StoreDamaged, match=rf"damaged at {places[100]}: .*--skip-damage"):
        built(root, kernel=kind)
    assert_same(derived(root), before)
    assert not (root / ASIDE).exists()
    one, other = without_derived(root, tmp_path / "one"), without_derived(root, tmp_path / "other")
    with opened(config(one, skip_damage=True), kind) as store:
        damage = store.recovered.damage  # type: ignore[attr-defined]
    done = built(other, skip_damage=True, kernel=kind)
    assert (
        done.damage == damage == [(places[n], places[m]) for n, m in ((100, 101), (333, 335), (450, 451), (600, 601))]
    )
    assert_same(derived(one), derived(other))


@pytest.mark.parametrize("clean", [True, False])
def test_a_torn_tail_ends_it(tmp_path: Path, clean: bool) -> None:
    root = tmp_path / "store"
    with opened(config(root), NEWEST) as store:
        fill(store, 200)
    with opened(config(root), NEWEST, clean=clean) as store:
        writer = Writer(store, START_MS + 10_000_000)
        last = 0
        for number in range(50):
            last = writer.send(b"late %d" % number * 30)
        writer.write()
    if not clean:
        flip(root, last + 100)
    one, other = without_derived(root, tmp_path / "one"), without_derived(root, tmp_path / "other")
    with opened(config(one), NEWEST) as store:
        end = store.log.end
    done = built(other)
    assert done.log_end == end
    assert (end == last) is not clean
    if not clean:
        with opened(config(other), NEWEST) as store:
            assert not store.recovered.rebuilt  # type: ignore[attr-defined]
            assert store.log.end == end
            assert bodies(store)[-1] == b"late 48" * 30
    assert_same(derived(one), derived(other))


def test_bytes_that_were_flushed_and_are_gone(stopped: Path) -> None:
    position, _why = Position.load(stopped / "kappamq.position")
    assert position is not None
    start = position.flushed - position.flushed % (64 << 10)
    with (stopped / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.write(bytes(position.flushed - start - 64))  # not what tells that it is this log
    with pytest.raises(StoreDamaged, match=r"was flushed up to .* bytes are missing.*kappamq.position"):
        built(stopped)


def test_a_file_that_was_cut_and_one_that_is_missing(stopped: Path) -> None:
    files = sorted((stopped / "commitlog").iterdir())
    os.truncate(files[1], 40_000)
    with pytest.raises(StoreDamaged, match=r"is truncated: it has 40000 of 65536 bytes.*--skip-damage"):
        built(stopped)
    ((start, stop),) = built(stopped, skip_damage=True).damage
    assert 64 << 10 < start <= (64 << 10) + 40_000 < stop == 128 << 10
    files[1].unlink()
    with pytest.raises(StoreDamaged, match="expected a log file that starts at 65536"):
        built(stopped, skip_damage=True)


# --- refused ---


def test_a_running_store_is_refused(stopped: Path) -> None:
    before = derived(stopped)
    with opened(config(stopped), NEWEST), pytest.raises(StoreLocked, match="while no broker runs"):
        built(stopped)
    with StoreLock(stopped), pytest.raises(StoreLocked):
        built(stopped)
    built(stopped)
    assert_same(derived(stopped), before)


def test_what_is_no_store_or_not_ours(stopped: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a data directory: no commitlog folder"):
        built(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(ConfigError, match="stretch_bytes=0"):
        built(stopped, stretch_bytes=0)
    before = derived(stopped)
    with pytest.raises(StoreFormatError, match="maxHashSlotNum"):
        built(stopped, sizes=Sizes())
    for place in (
        "commitlog/notes.txt",
        "consumequeue/notes.txt",
        "consumequeue/t1/notes",
        "consumequeue/t1/0/n",
        "index/n",
    ):
        stranger = stopped / place
        stranger.write_text("mine")
        with pytest.raises(StoreFormatError, match=stranger.name):
            built(stopped)
        assert stranger.read_text() == "mine"
        stranger.unlink()
    assert_same(derived(stopped), before)


def test_a_full_disk(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = derived(stopped)
    write = Files.pwrite
    left = [0]

    def pwrite(self: Files, fd: int, data: Any, at: int) -> None:
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, fd, data, at)

    monkeypatch.setattr(Files, "pwrite", pwrite)
    for room in (10, 5000, 30_000, 60_000):
        left[0] = room
        with pytest.raises(DiskFull, match=r"disk is full.*The store is unchanged"):
            built(stopped)
        assert not (stopped / ASIDE).exists()
    monkeypatch.undo()
    assert_same(derived(stopped), before)


# --- killed ---


def changes_of_the_disk(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None]) -> None:
    """Call `before` with a running number before each call that changes the disk."""
    count = [0]
    for name in ("pwrite", "truncate", "rename", "exchange", "remove", "remove_tree", "sync", "sync_folder", "link"):
        real = getattr(Files, name)

        def counted(self: Files, *arguments: Any, real: Callable[..., Any] = real) -> Any:
            count[0] += 1
            before(count[0])
            return real(self, *arguments)

        monkeypatch.setattr(Files, name, counted)


class Killed(BaseException):
    """Nothing happens to the disk any more; the rest of the process does not matter."""


def die_at(moment: int) -> Callable[[int], None]:
    def step(number: int) -> None:
        if number >= moment:
            raise Killed

    return step


def moments(total: int) -> Iterator[int]:
    """Some of the beginning, and each of the last steps, where files take their places."""
    yield from range(1, total - 14, max(1, total // 4))
    yield from range(total - 14, total + 1)


def test_killed_at_any_moment(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = derived(small)
    shutil.rmtree(small / "consumequeue")
    steps: list[int] = []
    with monkeypatch.context() as patched:
        changes_of_the_disk(patched, steps.append)
        built(Path(shutil.copytree(small, tmp_path / "counted")))
    for moment in moments(len(steps)):
        root = Path(shutil.copytree(small, tmp_path / "killed"))
        with monkeypatch.context() as patched, pytest.raises(Killed):
            changes_of_the_disk(patched, die_at(moment))
            built(root)
        # A broker may come next ...
        started = Path(shutil.copytree(root, tmp_path / "started"))
        with opened(config(started), NEWEST):
            pass
        assert_same(derived(started), right)
        # ... or another run.
        built(root)
        assert_same(derived(root), right)
        assert not (root / ASIDE).exists()
        with opened(config(root), NEWEST) as store:
            assert not store.recovered.rebuilt  # type: ignore[attr-defined]
        shutil.rmtree(root)
        shutil.rmtree(started)


# --- with Spark ---


@pytest.mark.spark
def test_on_spark(small: Path, spark: SparkSession) -> None:
    right = derived(small)
    shutil.rmtree(small / "consumequeue")
    seen: list[tuple[int, int]] = []
    done = rebuild(spark, small, sizes=SMALL, stretch_bytes=40_000, progress=lambda at, total: seen.append((at, total)))
    assert_same(derived(small), right)
    assert done.cpu_seconds > 0
    assert done.seconds > 0
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1]
    assert [at for at, _total in seen] == sorted(at for at, _total in seen)


@pytest.mark.spark
def test_damage_on_spark_is_our_sentence(small: Path, spark: SparkSession) -> None:
    flip(small, 100)
    with pytest.raises(StoreDamaged, match="damaged at 0"):
        rebuild(spark, small, sizes=SMALL)
