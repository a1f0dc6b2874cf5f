"""Settings and offsets as log records: a snapshot and the log behind it give the tables back, however the broker ended.

The rules one by one, as dialogues; test_any_order.py has them in any order."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.sending.gate import DISK_FULL
from kappamq.errors import KappaError, NotAvailable, NotMaster, StoreError, StoreReadOnly
from kappamq.protocol.bodies.clients import SubscriptionGroupConfig
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.state import metadata as module
from kappamq.state.metadata import TOPIC, Collected
from kappamq.store.snapshots import Snapshots, decode
from tests.dialogue import Scenario, Script, scripts
from tests.state.node import MESSAGES, Node, change_every_table
from tests.store.faulty import CHANGING
from tests.store.stores import BOOT, kernels


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


class Dialogue(logging.Handler):
    """A node, as node.py has it. What is safe and what is reflected is told in metadata records, not in bytes of the log."""

    def __init__(self, root: Path, kind: str, patch: pytest.MonkeyPatch) -> None:
        super().__init__(logging.WARNING)
        self.root, self.kind, self.patch = root, kind, patch
        self.boot, self.lives = BOOT, itertools.count(1)
        self.warnings: list[str] = []
        self.before: tuple[dict[str, Any], list[str]] = {}, []
        self.flushed = self.safe = 0
        self.marked: dict[str, tuple[int, dict[str, Any]]] = {}
        self.work: list[Collected] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.warnings.append(record.getMessage())

    def given_node(self, *, renewed_after: int = 5000) -> None:
        """`renewed_after`: a snapshot is written anew when so many records have come since."""
        self.patch.setattr(module, "_RECORDS_BEHIND_MAX", renewed_after)
        self.node = Node(self.root, self.kind, self.boot)
        self.empty = self.node.state()
        self.built_in = {*self.node.topics.table, *self.node.groups.table}

    # -- changes -----------------------------------------------------------------------------------------------------------

    def _do(self, change: Callable[..., Any], *given: Any) -> str | None:
        try:
            change(*given)
        except KappaError as error:
            return f"refused: {error}"
        return None

    def when_topic(self, name: str, queues: int) -> str | None:
        return self._do(self.node.topics.update, TopicConfig(name, queues, queues, 6))

    def when_topic_deleted(self, name: str) -> str | None:
        return self._do(self.node.topics.delete, name)

    def when_group(self, name: str, *, retries: int) -> str | None:
        return self._do(self.node.groups.update, SubscriptionGroupConfig(name=name, retry_times_max=retries))

    def when_group_deleted(self, name: str) -> str | None:
        return self._do(self.node.groups.delete, name)

    def when_a_consumer_comes(self, group: str) -> str | None:
        return self._do(self.node.groups.get, group)

    def when_forbidden(self, group: str, topic: str) -> str | None:
        return self._do(self.node.groups.forbid, group, topic, False)

    def when_allowed(self, group: str, topic: str) -> str | None:
        return self._do(self.node.groups.forbid, group, topic, True)

    def when_committed(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.node.offsets.commit(group, topic, queue_id, offset)

    def when_committed_in_many_queues(self, group: str, topic: str, queues: int, offset: int) -> None:
        for queue_id in range(queues):
            self.node.offsets.commit(group, topic, queue_id, offset)

    def when_commits_are_recorded(self) -> str | None:
        return self._do(self.node.offsets.record_commits)

    def when_offset_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.safe = self.node.offsets.move(group, topic, {queue_id: offset})

    def when_reset_record_applied(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The record is part of a group that was appended by somebody else."""
        change = ("offsets-reset", [topic, group, {str(queue_id): offset}])
        self.node.metadata.applied([change], 5, self.node.store.kernel.append_offset)

    def when_offsets_deleted(self, *, topic: str = "", group: str = "") -> str | None:
        return self._do(self.node.offsets.delete, topic or None, group or None)

    def when_every_table_changes(self, number: int) -> None:
        change_every_table(self.node, number)

    def when_unknown_change(self) -> str:
        with pytest.raises(KeyError):
            self.node.metadata.commit("unheard of", 1)
        return "no table knows this kind of change"

    def when_messages(self, count: int, *, size: int = 10) -> None:
        for _ in range(count):
            self.node.writer.send(bytes(size), MESSAGES)
        self.node.writer.write()

    def when_foreign_record(self, *bodies: str) -> None:
        """A record of the metadata topic that no table has written, or that a later version has."""
        for body in bodies:
            self.node.writer.send(body.encode(), TOPIC)

    # -- turns, disk and snapshots -----------------------------------------------------------------------------------------

    def when_the_turn_ends(self) -> None:
        self.node.turn()

    def when_flushed(self) -> None:
        self.node.flush()

    def when_mark(self, name: str) -> None:
        """Remember what there is, and where the log ends."""
        self.marked[name] = self.node.store.log.end, self.node.state()

    def when_disk_full(self) -> None:
        self.node.gate.close(DISK_FULL, NotAvailable("the disk is full"))

    def when_log_fails(self) -> None:
        self.node.gate.close("failed", NotAvailable("the log failed"), for_all=True)

    def when_disk_refuses(self, file: str) -> None:
        self.node.files.fail(*CHANGING, on=file)

    def when_disk_works_again(self) -> None:
        self.node.files.repair()

    def when_saved(self) -> str:
        return self._saved(lambda: self.node.save())

    def when_retention_wants_newer_snapshots(self) -> str:
        return self._saved(lambda: self.node.save(renew_below=self.node.store.log.end))

    def _saved(self, save: Callable[[], list[str]]) -> str:
        try:
            files = save()
        except OSError as error:
            return f"saving failed: {error.strerror}"
        if len(files) == len(self.node.tables.all):
            return "saved: every table"
        return f"saved: {', '.join(files) or 'nothing'}"

    def when_changed_and_saved_in_turn(self, times: int, *, file: str) -> str:
        """The access of a group changes, and whatever is due is saved, so many times. Says when `file` was saved, too."""
        saved = []
        for number in range(1, times + 1):
            self.node.groups.forbid("g1", "t1", readable=bool(number % 2))
            self.node.turn()
            if file in self.node.save():
                saved.append(str(number))
        return f"saved {file} after change {', '.join(saved)}"

    def when_collected(self) -> list[str]:
        """What the next snapshots will hold is copied; it may be saved when the disk has the log up to the stamp."""
        self.work = self.node.metadata.collect()
        confirmed = self.node.store.marks.confirmed.offset
        stamps: dict[str, list[str]] = {}
        for file, _table, stamp, _life in self.work:
            assert stamp <= self.node.store.kernel.append_offset, f"{file} reflects what there is not"
            when = "may be saved" if stamp <= confirmed else "must wait for the disk"
            stamps.setdefault(when, []).append(file)
        return [
            f"{when}: {'every table' if len(files) == len(self.node.tables.all) else ', '.join(files)}"
            for when, files in stamps.items()
        ]

    def when_what_was_collected_is_saved(self) -> str:
        try:
            self.node.metadata.save(self.work)
        except AssertionError as error:
            return f"refused: {str(error).splitlines()[0]}"
        return "saved"

    # -- ends and starts ---------------------------------------------------------------------------------------------------

    def _end(self, clean: bool) -> None:
        self.before = self.node.state(), self._rows()
        self.flushed = self.node.store.marks.flushed.offset
        self.node.close(clean)

    def when_killed(self) -> None:
        self._end(clean=False)

    def when_stopped(self) -> None:
        self._end(clean=True)

    def when_the_power_fails(self, *, keep: str = "flushed") -> None:
        """Of the log only what was flushed is left, or what was there at a mark."""
        self._end(clean=False)
        end = self.flushed if keep == "flushed" else self.marked[keep][0]
        for path in (self.root / "commitlog").iterdir():
            kept = min(max(0, end - int(path.name)), size := path.stat().st_size)
            with path.open("r+b") as file:
                file.seek(kept)
                file.write(bytes(size - kept))
        self.boot = f"boot {next(self.lives)}"

    def when_file_is(self, file: str, text: str) -> None:
        (self.root / "config").mkdir(exist_ok=True)
        (self.root / "config" / file).write_text(text)

    def when_file_is_torn(self, file: str) -> None:
        path = self.root / "config" / file
        path.write_bytes(path.read_bytes()[:-9])

    def when_snapshots_are_lost(self) -> None:
        for path in (self.root / "config").iterdir():
            path.unlink()

    def when_started(self) -> list[str]:
        """Says what is not as it was at the end, and what the operator is told."""
        self.warnings.clear()
        texts = {path: path.read_bytes() for path in self.root.glob("config/*.json")}
        try:
            self.node = Node(self.root, self.kind, self.boot)
        except StoreError as error:
            assert texts == {path: path.read_bytes() for path in self.root.glob("config/*.json")}
            return [f"does not start: {self._plain(str(error))}"]
        return [*self._found(), *self._remarks()]

    def when_tables_are_reset(self) -> str:
        """Back to what a new store has."""
        self.before = self.node.state(), self._rows()
        self.node.metadata.reset()
        assert not any(table.dirty for table in self.node.tables.all)
        return "the tables are empty" if self.node.state() == self.empty and not self._rows() else "something is left"

    def when_loaded_again(self) -> list[str]:
        self.node.load()
        return [*self._found(), *self._remarks()]

    def _found(self) -> list[str]:
        state, rows = self.before
        now, now_rows = self.node.state(), self._rows()
        changed = [file for file in now if now[file] != state[file]]
        if not changed and rows == now_rows:
            return ["found everything as it was"]
        gone = [f"was:   {row}" for row in rows if row not in now_rows]
        new = [f"found: {row}" for row in now_rows if row not in rows]
        others = [] if gone or new else [f"found other content: {', '.join(changed)}"]
        return [*gone, *new, *others]

    def _remarks(self) -> list[str]:
        notes = [f"remark: {self._plain(note)}" for note in self.node.notes]
        warnings = sorted(f"warning: {self._plain(text)}" for text in self.warnings)
        return notes + [
            text if number == 1 else f"{text} ({number} times)"
            for text, found in itertools.groupby(warnings)
            for number in [len(list(found))]
        ]

    def _plain(self, text: str) -> str:
        """Without the folder, log offsets, and what a library says about bad JSON."""
        text = re.sub(
            r"(makes no sense|is broken|is malformed) \(.*?\)(?=[:;.] | and was skipped)",
            r"\1 (...)",
            text.replace(f"{self.root}/", ""),
        )
        return re.sub(r"\b\d{2,}\b", "N", text)

    # -- what there is -----------------------------------------------------------------------------------------------------

    def _rows(self) -> list[str]:
        return list(self._each_row())

    def _each_row(self) -> Iterator[str]:
        topics, groups, offsets = self.node.topics, self.node.groups, self.node.offsets
        for name in sorted({*topics.table, *topics.deleted} - self.built_in):
            topic = topics.table.get(name)
            yield f"topic {name}: {'deleted' if topic is None else counted(topic.write_queues, 'queue')}"
        for name in sorted({*groups.table, *groups.forbidden} - self.built_in):
            group, forbidden = groups.table.get(name), " ".join(groups.forbidden.get(name, ()))
            told = "does not exist" if group is None else f"retries at most {group.retry_times_max}"
            yield f"group {name}: {told}" + (f", may not read {forbidden}" if forbidden else "")
        for name, found in sorted(offsets.topics_by_group().items()):
            for topic_name in sorted(found):
                recorded = offsets._table.get((topic_name, name), {})
                queues = sorted(offsets.queues(name, topic_name).items())
                yield (
                    f"offsets of {name} in {topic_name}: "
                    + ", ".join(
                        f"{offset} in queue {queue}{'' if recorded.get(queue) == offset else ' (not recorded yet)'}"
                        for queue, offset in queues[:3]
                    )
                    + (f" and so on, {len(queues)} queues" if len(queues) > 3 else "")
                )

    def then_tables(self) -> list[str]:
        return self._rows() or ["the tables are empty"]

    def then_changed_tables(self) -> str:
        state = self.node.state()
        count = sum(state[file] != self.empty[file] for file in state)
        return f"{count} of {len(state)} tables differ from those of a new store"

    def then_every_table_is_as_at(self, mark: str) -> str:
        now, then = self.node.state(), self.marked[mark][1]
        different = [file for file in now if now[file] != then[file]]
        return f"no, these differ: {', '.join(different)}" if different else "yes"

    def then_answers(self, group: str, topic: str, queue_id: int) -> list[str]:
        """What consumers and tools hear, and what a snapshot would hold."""
        offsets = self.node.offsets
        groups, topics = sorted(offsets.groups_of(topic)), sorted(offsets.topics_of(group))
        return [
            f"consumers hear {offsets.get(group, topic, queue_id)}; {topic} is read by {groups}, {group} reads {topics}",
            f"tools hear {offsets.with_overlay()['offsetTable']}",
            f"a snapshot holds {offsets.to_snapshot()['offsetTable']}",
        ]

    def _records_below(self, log_offset: int) -> str:
        queue = self.node.store.kernel.queue_state(TOPIC, 0)
        entries = [self.node.store.entry(TOPIC, 0, number) for number in range(queue.next)]
        below = sum(entry is not None and entry[0] < log_offset for entry in entries)
        return f"{below} of {counted(queue.next, 'record')}"

    def then_snapshots(self) -> list[str]:
        """How many of the records each file, and the one before it, reflects."""
        told = []
        if not (self.root / "config").exists():
            return ["no snapshots"]
        for file in sorted(path.name for path in (self.root / "config").iterdir() if path.suffix in (".json", ".bak")):
            stamp = decode((self.root / "config" / file).read_bytes()).log_offset
            told.append(f"{file}: {'no stamp' if stamp is None else self._records_below(stamp)}")
        return told

    def then_needed(self) -> str:
        needed, end = self.node.metadata.needed_from, self.node.store.log.end
        told = "nothing of the log" if needed == end else f"the log behind {self._records_below(needed)}"
        return f"snapshots need {told}"

    def then_log(self) -> str:
        """Nothing is pending, and nothing was appended behind what the test knows."""
        store = self.node.store
        count = counted(store.kernel.queue_state(TOPIC, 0).next, "record")
        return f"{count}, {'all' if store.log.end == store.kernel.append_offset else 'not all'} written"

    def then_largest_record(self) -> str:
        entries = [self.node.store.entry(TOPIC, 0, n) for n in range(self.node.store.kernel.queue_state(TOPIC, 0).end)]
        largest = max(entry[1] for entry in entries if entry is not None)
        times = largest / self.node.store.config.message_bytes_max
        return f"a record is {'larger' if times > 2 else 'not larger'} than two messages may be"

    def then_last_reset(self) -> str:
        written = self.node.store.marks.written.offset
        return "the reset is " + ("not safe yet" if written < self.safe else "safe, and is the end of the log")


@pytest.mark.parametrize("kind", kernels())
@scripts(__file__, "folds", "snapshots", "lost_log")
def test_metadata(tmp_path: Path, script: Script, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = (tmp_path / str(number) for number in itertools.count())
    logger = logging.getLogger("kappamq.state.metadata")

    def played(scenario: Scenario) -> None:
        dialogue = Dialogue(next(folders), kind, monkeypatch)
        logger.addHandler(dialogue)
        try:
            scenario.run_without_loop(dialogue)
        finally:
            logger.removeHandler(dialogue)
            if not dialogue.node.loop.is_closed():
                dialogue.node.close()

    script.replay(played)


def test_records_that_come_into_the_queue_after_loading_are_not_applied_to_a_snapshot_that_has_them(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    node.topics.update(TopicConfig("tea", 4, 4, 6))
    node.save()
    before = node.topics.to_snapshot()
    node.metadata.reset()
    node.metadata.load()
    node.metadata._at = 0  # as if the queue had been empty when the tables were loaded
    assert node.metadata.follow() == []
    assert node.topics.to_snapshot() == before
    node.close()


def test_tables_that_are_not_to_be_trusted_are_neither_changed_nor_saved_until_they_are_loaded(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.topics.update(TopicConfig("tea", 4, 4, 6))
    collected = node.metadata.collect()
    node.flush()
    assert collected
    node.metadata.distrust()
    assert node.metadata.collect() == []
    assert node.metadata.follow() == []
    with pytest.raises(NotMaster):
        node.topics.update(TopicConfig("milk", 4, 4, 6))
    node.metadata.save(collected)
    assert node.metadata.stamp("topics.json") == -1, "collected before, not saved after"
    node.metadata.reset()
    node.metadata.load()
    assert "topics.json" in node.save()
    node.close()


def test_tables_of_which_all_was_confirmed_need_not_be_loaded_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.topics.update(TopicConfig("tea", 4, 4, 6))
    node.flush()
    node.metadata.distrust()
    node.metadata.distrust()
    assert node.metadata.trust_again()
    assert node.metadata.follow() == [], "its own changes are not applied twice"
    node.topics.update(TopicConfig("milk", 4, 4, 6))
    node.metadata.distrust()
    node.flush()  # confirmed by another leader, and so perhaps something else
    node.metadata.distrust()
    assert not node.metadata.trust_again()
    node.metadata.reset()
    node.metadata.load()
    assert node.metadata.is_trusted()
    node.close()


def test_what_the_log_did_not_take_is_not_kept_by_a_former_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)

    def full(*_arguments: object) -> int:
        raise StoreReadOnly("no room")

    with monkeypatch.context() as patch:
        patch.setattr(node.metadata, "_append", full)
        node.metadata.commit("offsets", [["t", "g", {"0": 5}]], anyway=True)
    node.flush()
    node.metadata.distrust()
    assert not node.metadata.trust_again()
    node.close()


def test_a_table_that_cannot_be_written_does_not_keep_others_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may have grown so large that it could not be read again."""
    node = Node(tmp_path)
    node.topics.update(TopicConfig("tea", 4, 4, 6))
    node.groups.update(SubscriptionGroupConfig(name="g"))
    collected = node.metadata.collect()
    node.flush()
    save = Snapshots.save

    def failing(self: Snapshots, name: str, table: dict[str, Any], log_offset: int) -> None:
        if name == node.topics.file:
            raise OSError(27, "too large")
        save(self, name, table, log_offset)

    with monkeypatch.context() as full:
        full.setattr(Snapshots, "save", failing)
        with pytest.raises(OSError, match="too large"):
            node.metadata.save(collected)
    assert node.metadata.stamp(node.groups.file) > 0
    assert [item[0] for item in node.metadata.collect()] == [node.topics.file], "it is due again"
    node.close()
