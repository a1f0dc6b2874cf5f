from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kappamq.errors import StoreError
from kappamq.native.layout import ENTRY
from kappamq.protocol.records.record import Record
from kappamq.store.reader import StoreReader
from kappamq.store.snapshots import Snapshots
from kappamq.store.verify.report import Kind, Report
from kappamq.store.verify.verify import verify
from tests.store.stores import Writer, config, opened

Change = Callable[[Path], None]


def fill(writer: Writer, count: int) -> None:
    for number in range(count):
        texts = b"TAGS\x01tag%d\x02UNIQ_KEY\x01U%d\x02KEYS\x01k%d" % (number % 4, number, number)
        writer.send(b"m%d" % number + b"." * (number % 300), queue_id=number % 3, properties=texts)
        if number % 40 == 0:
            writer.batch([b"b%d.%d" % (number, member) for member in range(3)], topic="b")
        if number % 10 == 0:
            writer.write()
    writer.write()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    with opened(config(root)) as store:
        fill(Writer(store), 500)
        Snapshots(root / "config").save("topics.json", {"topicConfigTable": {}}, store.log.end)
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "store"))


def checked(root: Path, problems_max: int = 100) -> Report:
    return verify(root, index_slots=97, index_entries=1000, problems_max=problems_max)


def record_of(root: Path, topic: str, queue_id: int, number: int) -> Record:
    with StoreReader(root) as reader:
        return next(reader.read(topic, queue_id, number))


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def queue_file(root: Path, topic: str, queue_id: int, start: int = 0) -> Path:
    return root / "consumequeue" / topic / str(queue_id) / f"{start:020d}"


def summary(report: Report) -> list[tuple[Kind, str, int]]:
    return [(problem.kind, problem.place, problem.offset) for problem in report.problems]


def test_a_good_store(root: Path) -> None:
    report = checked(root)
    assert report.problems == []
    assert report.ok
    assert (report.records, report.queues, report.queue_entries) == (539, 4, 539)
    assert (report.index_files, report.index_entries) == (2, 1000)
    assert (report.undispatched, report.unindexed, report.forgotten, report.torn_tail) == (0, 0, 0, "")
    assert (report.log_min, report.damaged_bytes) == (0, 0)
    assert report.last_ms > report.first_ms > 0
    with StoreReader(root) as reader:
        assert report.log_end == reader.log.end()


def test_progress_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kappamq.store.verify.verify._PROGRESS_BYTES", 10_000)
    told: list[tuple[int, int]] = []
    verify(root, index_slots=97, index_entries=1000, progress=lambda done, total: told.append((done, total)))
    assert len(told) > 5
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] == 3 * (64 << 10)


def test_a_body_that_has_changed(root: Path) -> None:
    record = record_of(root, "t", 1, 40)
    overwrite(root / "commitlog" / f"{0:020d}", record.log_offset + 89, b"XX")
    report = checked(root)
    assert report.damaged_bytes == record.size
    # The damage, the two keys and the entry that lead there.
    assert summary(report) == [
        (Kind.LOG, "commitlog", record.log_offset),
        (Kind.INDEX, report.problems[1].place, record.log_offset),
        (Kind.INDEX, report.problems[2].place, record.log_offset),
        (Kind.QUEUE, "t/1", 40),
    ]
    why = f"record at {record.log_offset}: the record is not what was written"
    assert report.problems[0].meaning == f"{record.size} bytes are not valid records: {why}"


@pytest.mark.parametrize(
    ("entry", "meaning"),
    [
        (lambda offset, size, code: (offset + 1, size, code), "the entry has"),
        (lambda offset, size, code: (offset, size - 1, code), "the entry has"),
        (lambda offset, size, code: (offset, size, code + 1), "tag code"),
    ],
)
def test_a_queue_entry_that_has_changed(
    root: Path, entry: Callable[[int, int, int], tuple[int, int, int]], meaning: str
) -> None:
    path = queue_file(root, "t", 2)
    was = ENTRY.unpack(path.read_bytes()[20 * 30 : 20 * 31])
    overwrite(path, 20 * 30, ENTRY.pack(*entry(*was)))
    report = checked(root)
    assert summary(report) == [(Kind.QUEUE, "t/2", 30)]
    assert meaning in report.problems[0].meaning


def test_an_entry_too_many(root: Path) -> None:
    with StoreReader(root) as reader:
        end = reader.queue("b", 0).max
    overwrite(queue_file(root, "b", 0), end * 20, ENTRY.pack(reader.log.limit, 100, 0))
    report = checked(root)
    assert summary(report) == [(Kind.QUEUE, "b/0", end)]
    assert "no valid record at" in report.problems[0].meaning


def test_an_entry_too_few(root: Path) -> None:
    with StoreReader(root) as reader:
        end = reader.queue("b", 0).max
    overwrite(queue_file(root, "b", 0), (end - 1) * 20, bytes(20))
    report = checked(root)
    assert summary(report) == [(Kind.QUEUE, "b/0", end - 1)]
    assert "no entry for the record at" in report.problems[0].meaning


def test_a_queue_that_lists_somebody_elses_messages(root: Path) -> None:
    shutil.copytree(root / "consumequeue" / "b", root / "consumequeue" / "stranger")
    report = checked(root, problems_max=3)
    assert report.problem_count == 39
    assert summary(report) == [(Kind.QUEUE, "stranger/0", number) for number in range(3)]
    assert "there is message 0 of b/0" in report.problems[0].meaning


def test_the_first_queue_file_is_gone(root: Path) -> None:
    queue_file(root, "t", 0).unlink()
    report = checked(root)
    assert report.problem_count == 64
    assert set(summary(report)) == {(Kind.QUEUE, "t/0", number) for number in range(64)}


def test_a_topic_that_was_deleted(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "b")
    report = checked(root)
    assert report.ok
    assert report.forgotten == 39


def test_a_topic_that_was_deleted_and_made_again(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        writer.batch([b"old %d" % number for number in range(10)], topic="b")
        writer.write()
        writer.write_derived()
        store.forget_topic("b")
        store.kernel.set_queue("b", 0, 10, 10)
        writer.batch([b"new %d" % number for number in range(5)], topic="b")
        writer.write()
    report = checked(tmp_path)
    assert report.problems == []
    assert (report.forgotten, report.queue_entries) == (10, 5)


def test_an_index_entry_that_has_changed(root: Path) -> None:
    path = sorted((root / "index").iterdir())[0]
    overwrite(path, 40 + 97 * 4 + 20 * 50 + 4, (77).to_bytes(8, "big"))
    report = checked(root)
    assert {problem.kind for problem in report.problems} == {Kind.INDEX}
    assert any("there is no valid record for key hash" in problem.meaning for problem in report.problems)
    assert any("is not in the index" in problem.meaning for problem in report.problems)


def test_a_torn_tail_is_no_problem(root: Path) -> None:
    with StoreReader(root) as reader:
        end = reader.log.end()
    (root / "abort").write_text("1")
    overwrite(root / "commitlog" / f"{end - end % (64 << 10):020d}", end % (64 << 10), b"\0\0\1\0\xda\xa3\x20\xa7half")
    report = checked(root)
    assert report.ok
    assert report.torn_tail.startswith(f"at {end}: ")


def test_killed_before_queues_and_index_were_written(tmp_path: Path) -> None:
    with opened(config(tmp_path), clean=False) as store:
        assert not store.catching_up()
        writer = Writer(store)
        fill(writer, 100)
        writer.write_derived()
        fill(writer, 50)
    report = checked(tmp_path)
    assert report.problems == []
    counts = (report.records, report.queue_entries, report.undispatched, report.unindexed)
    assert counts == (165, 109, 56, 50)


def test_a_broken_snapshot(root: Path) -> None:
    (root / "config" / "consumerOffset.json").write_bytes(b'{"offsetTable":')
    report = checked(root)
    assert summary(report) == [(Kind.CONFIG, "consumerOffset.json", 0)]
    assert (root / "config" / "consumerOffset.json").exists()


def test_a_snapshot_from_the_future(root: Path) -> None:
    Snapshots(root / "config").save("topics.json", {}, 1 << 40)
    assert summary(checked(root)) == [(Kind.CONFIG, "topics.json", 1 << 40)]


def test_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a data directory"):
        verify(tmp_path)


def test_an_empty_store(tmp_path: Path) -> None:
    with opened(config(tmp_path)):
        pass
    report = checked(tmp_path)
    assert report.ok
    assert (report.records, report.queues, report.log_end) == (0, 0, 0)


def test_a_config_file_that_a_running_broker_writes_after_the_log_was_read(tmp_path: Path) -> None:
    """Also when the log goes on in its next file meanwhile."""
    with opened(config(tmp_path)) as store:
        writer = Writer(store)
        fill(writer, 50)
        seen: list[int] = []

        def go_on(at: int, total: int) -> None:
            if at == total and not seen:
                seen.append(store.log.end)
                fill(writer, 500)
                Snapshots(tmp_path / "config").save("topics.json", {"topicConfigTable": {}}, store.log.end)

        report = verify(tmp_path, index_slots=97, index_entries=1000, progress=go_on)
        assert store.log.end - seen[0] > 64 << 10
        assert report.ok, summary(report)
        Snapshots(tmp_path / "config").save("topics.json", {"topicConfigTable": {}}, store.log.end + 1)
        meaning = f"its stamp lies beyond the end of the log, {store.log.end}"
        assert [problem.meaning for problem in checked(tmp_path).problems] == [meaning]
