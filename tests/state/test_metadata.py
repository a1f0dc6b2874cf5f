"""Settings and offsets as log records: a snapshot and the log behind it give the tables back, whenever it was that we crashed."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.broker.sending.gate import DISK_FULL, Gate
from kappamq.broker.sending.log_writer import LogWriter
from kappamq.clock import VirtualClock
from kappamq.config.broker import BrokerConfig
from kappamq.config.net import NetConfig
from kappamq.errors import NotAvailable, StoreError
from kappamq.protocol.bodies.clients import SubscriptionGroupConfig
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.state import metadata as module
from kappamq.state.groups import Groups
from kappamq.state.metadata import TOPIC, Metadata
from kappamq.state.offsets import Offsets
from kappamq.state.topics import Topics
from kappamq.store.snapshots import Snapshots
from tests.store.faulty import CHANGING, FaultyFiles
from tests.store.stores import BOOT, BORN, Writer, config, flush, kernels, make

KINDS = kernels()
TOPIC_NAMES, GROUP_NAMES = ["t1", "t2"], ["g1", "g2"]


class Node:
    """The books of a broker: a real store, real tables, and turns that end when we say so."""

    def __init__(self, root: Path, kind: str = "twin", boot: str = BOOT) -> None:
        self.clock = VirtualClock()
        self.files = FaultyFiles()  # of the snapshots only
        self.store = make(config(root), kind)
        self.snapshots = Snapshots(root / "config", self.files)
        self.gate = Gate(self.store.kernel)
        self.loop = asyncio.new_event_loop()
        self.log_writer = self.loop.run_until_complete(self.make_writer())
        self.metadata = Metadata(self.store, self.snapshots, self.clock, BORN, self.log_writer)
        settings = BrokerConfig(name="b")
        self.topics = Topics(settings, self.store.kernel, self.metadata.now_ms, self.metadata.commit)
        self.groups = Groups(settings, self.metadata.now_ms, self.metadata.commit)
        self.offsets = Offsets(self.metadata.now_ms, self.metadata.commit)
        for table in (self.topics, self.groups, self.offsets):
            self.metadata.add(table)
        self.store.open(boot)
        try:
            self.notes = self.metadata.load(self.fit)
        except BaseException:
            self.store.close(clean=False)
            raise
        self.writer = Writer(self.store, self.clock.message_ms())

    async def make_writer(self) -> LogWriter:
        return LogWriter(self.store, self.gate, self.clock, NetConfig().inflight_bytes_max)

    def fit(self) -> None:
        state = self.store.kernel.queue_state
        self.offsets._end = lambda topic, queue_id: state(topic, queue_id)[1] if topic == "cut" else 1 << 62
        self.offsets.clamp()

    def turn(self) -> None:
        self.log_writer.end_turn()

    def flush(self) -> None:
        self.turn()
        flush(self.store)

    def save(self, renew_below: int = 0) -> list[str]:
        """As the broker does it: as of now, written when the log is safe up to there."""
        work = self.metadata.collect(renew_below)
        self.flush()
        self.metadata.save(work)
        return [name for name, _table, _stamp in work]

    def settle(self) -> None:
        """Everything that was done is in the log."""
        self.offsets.record_commits()
        self.turn()

    def close(self, clean: bool = False) -> None:
        self.store.close(clean)
        self.loop.close()

    @property
    def state(self) -> dict[str, Any]:
        offsets = {
            (topic, group, queue_id): offset
            for group in GROUP_NAMES
            for topic in self.offsets.topics_of(group)
            for queue_id, offset in self.offsets.queues(group, topic).items()
        }
        return deepcopy(
            {
                "topics": self.topics.table,
                "deleted": self.topics.deleted,
                "groups": self.groups.table,
                "forbidden": self.groups.forbidden,
                "offsets": offsets,
            }
        )


@contextmanager
def started(root: Path, kind: str = "twin", boot: str = BOOT, clean: bool = False) -> Iterator[Node]:
    node = Node(root, kind, boot)
    try:
        yield node
    finally:
        node.close(clean)


def change_all(node: Node, number: int = 1) -> None:
    node.topics.update(TopicConfig("t1", number, number))
    node.groups.update(SubscriptionGroupConfig(name="g1", retry_times_max=number))
    node.offsets.commit("g1", "t1", 0, number)


# -- folding ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [False, True], ids=["crash", "stop"])
@pytest.mark.parametrize("saved", [False, True], ids=["log only", "snapshots"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_finds_what_was_recorded(tmp_path: Path, kind: str, saved: bool, clean: bool) -> None:
    with started(tmp_path, kind, clean=clean) as node:
        change_all(node, 1)
        if saved:
            node.save()
        change_all(node, 2)
        node.groups.forbid("g1", "t2", readable=False)
        node.topics.update(TopicConfig("t2", 3, 3))
        node.topics.delete("t2")
        node.settle()
        live = node.state
    with started(tmp_path, kind) as node:
        assert node.state == live
        assert node.notes == []


def test_what_was_never_written_is_gone(tmp_path: Path) -> None:
    with started(tmp_path) as node:
        change_all(node, 1)
        node.settle()
        live = node.state
        change_all(node, 2)
    with started(tmp_path) as node:
        assert node.state == live


def test_a_snapshot_is_stamped_behind_what_the_log_was_just_about_to_hear(tmp_path: Path) -> None:
    with started(tmp_path) as node:
        change_all(node, 1)
        node.settle()
        change_all(node, 2)
        node.groups.delete("g1")
        node.offsets.move("g1", "t1", {0: 1})
        node.save()
        live = node.state
    with started(tmp_path) as node:
        assert node.state == live
        assert node.notes == [], "it claims no more of the log than there is"
        change_all(node, 3)
        node.settle()
        live = node.state
    with started(tmp_path) as node:
        assert node.state == live


def test_a_change_is_safe_at_the_offset_it_is_told(tmp_path: Path) -> None:
    with started(tmp_path) as node:
        safe = node.offsets.move("g1", "t1", {0: 5})
        assert node.store.marks.written.offset < safe
        node.turn()
        assert node.store.marks.written.offset == safe


def test_while_loading_nothing_is_recorded(tmp_path: Path) -> None:
    with started(tmp_path) as node:
        change_all(node)
        node.settle()
        end = node.store.log.end
    for _ in range(3):
        with started(tmp_path) as node:
            assert node.store.log.end == end == node.store.kernel.append_offset


def test_the_brokers_own_records_pass_a_gate_that_is_closed_to_users(tmp_path: Path) -> None:
    with started(tmp_path) as node:
        node.gate.close(DISK_FULL, NotAvailable("full"))
        change_all(node, 1)
        node.gate.close("failed", NotAvailable("failed"), for_all=True)
        with pytest.raises(NotAvailable, match="failed"):
            change_all(node, 2)
        node.turn()
        assert node.topics.existing("t1").write_queues == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_may_be_larger_than_any_message(tmp_path: Path, kind: str) -> None:
    """Commits of a second go into one record, however many they are."""
    with started(tmp_path, kind) as node:
        node.writer.send(bytes(10_000))
        for queue_id in range(2500):
            node.offsets.commit("g1", "t1", queue_id, 1_000_000_000)
        node.settle()
        assert node.store.log.end > 2 * node.store.config.message_bytes_max
        live = node.state
    with started(tmp_path, kind, boot="another boot") as node:
        assert node.state == live


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b"[]",
        b"7",
        b'{"kind":"topic"}',
        b'{"kind":"topic","change":[1]}',
        b'{"kind":"topic-deleted","change":{"topicName":"t1","ends":[1]}}',
        b'{"kind":"topic-deleted","change":{"topicName":"t1","ends":{"x":"y"}}}',
        b'{"kind":"offsets","change":7}',
        b'{"kind":"offsets","change":[["t1","g1"]]}',
        b'{"kind":"offsets-reset","change":["t1","g1",["x"]]}',
        b'{"kind":"offsets-deleted","change":[]}',
        b'{"kind":"group-forbidden","change":{"group":"g1"}}',
        b'{"kind":"of a later version","change":{}}',
    ],
)
def test_a_record_that_makes_no_sense_is_passed_over(tmp_path: Path, body: bytes) -> None:
    with started(tmp_path) as node:
        change_all(node, 1)
        node.settle()
        node.writer.send(body, TOPIC)
        change_all(node, 2)
        node.settle()
        live = node.state
    with started(tmp_path) as node:
        assert node.state == live


# -- snapshots -------------------------------------------------------------------------------------------------------------


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    with started(tmp_path) as node:
        assert node.save() == []
        node.groups.get("g1")
        assert node.save() == [node.groups.file]
        assert node.save() == []
        node.offsets.commit("g1", "t1", 0, 1)
        assert node.save() == [], "that is for the next record of commits"
        node.offsets.record_commits()
        assert node.save() == [node.offsets.file]


def test_tables_that_never_change_are_written_when_the_log_grew_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RECORDS_BEHIND_MAX", 10)
    with started(tmp_path) as node:
        change_all(node)
        node.settle()
        node.save()
        written = []
        for number in range(1, 25):
            node.groups.forbid("g1", "t1", readable=bool(number % 2))
            node.turn()
            if node.topics.file in node.save():
                written.append(number)
        assert written == [11, 22]


def test_retention_can_have_old_snapshots_renewed(tmp_path: Path) -> None:
    with started(tmp_path) as node:
        assert node.metadata.needed_from == 0
        change_all(node)
        node.settle()
        node.save()
        for _ in range(20):
            node.writer.send(bytes(1000))
        node.writer.write()
        node.flush()
        end = node.store.log.end
        for _ in range(2):  # the older version counts, too
            assert node.metadata.needed_from < end
            node.save(renew_below=end)
        assert node.metadata.needed_from == end
        assert node.metadata.collect(renew_below=end) == []


def test_a_file_that_could_not_be_written_is_due_again(tmp_path: Path) -> None:
    with started(tmp_path) as node:
        change_all(node)
        node.settle()
        node.files.fail(*CHANGING, on=node.groups.file)
        with pytest.raises(OSError, match="Input/output"):
            node.save()
        node.files.repair()
        assert node.groups.file in node.save()
        assert node.save() == []
        live = node.state
    with started(tmp_path) as node:
        assert node.state == live


def test_javas_files_are_the_truth_as_they_are(tmp_path: Path) -> None:
    with started(tmp_path) as node:
        change_all(node, 5)
        node.settle()
        node.save()
    path = tmp_path / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable":{"t1@g1":{0:3}}}')
    with started(tmp_path) as node:
        assert node.offsets.get("g1", "t1", 0) == 3, "a record of 5 lies in the log, but Java was there since"
        assert node.topics.existing("t1").write_queues == 5
        assert any("another broker" in note for note in node.notes)
        node.offsets.commit("g1", "t1", 0, 4)
        node.settle()
    with started(tmp_path) as node:
        assert node.offsets.get("g1", "t1", 0) == 4, "what came after is found"
        assert node.notes == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("topics.json", '{"topicConfigTable":[1]}'),
        ("topics.json", '{"topicConfigTable":{},"kappamqDeleted":{"t":[1]}}'),
        ("consumerOffset.json", '{"offsetTable":{"t@g":{"0":"many"}}}'),
        ("consumerOffset.json", '{"offsetTable":7}'),
        ("subscriptionGroup.json", '{"subscriptionGroupTable":{"g":{"retryMaxTimes":"often"}}}'),
    ],
)
def test_a_file_that_makes_no_sense_stops_the_start_and_is_named(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / file
    path.write_text(text)
    with pytest.raises(StoreError, match=rf"{file} .*move it away"):
        Node(tmp_path)
    assert path.read_text() == text, "it is left for the operator to look at"


# -- a log that lost its end ------------------------------------------------------------------------------------------------


def cut(root: Path, end: int) -> None:
    """A power cut took what the log held from `end` on."""
    fd = os.open(root / "commitlog" / f"{0:020d}", os.O_RDWR)
    os.pwrite(fd, bytes(os.fstat(fd).st_size - end), end)
    os.close(fd)


def test_tables_that_know_more_than_the_log_are_a_new_beginning(tmp_path: Path) -> None:
    """The snapshot was synced, the log it speaks of was not: records from now on must not be taken for older ones."""
    with started(tmp_path) as node:
        change_all(node, 1)
        node.settle()
        kept = node.store.log.end
        change_all(node, 5)
        node.settle()
        node.save()
        live = node.state
    cut(tmp_path, kept)
    with started(tmp_path, boot="second boot") as node:
        assert node.store.log.end == kept
        assert node.state == live
        assert len([note for note in node.notes if "taken as it is" in note]) == 3
        node.topics.update(TopicConfig("t1", 7, 7))  # lands below the stamp that the snapshot had
        node.offsets.commit("g1", "t1", 0, 7)
        node.settle()
        live = node.state
    with started(tmp_path, boot="second boot") as node:
        assert node.state == live


def test_offsets_beyond_a_cut_log_do_not_come_back(tmp_path: Path) -> None:
    """They were brought back to the end of their queue; a second crash, right after, must not skip what was sent since."""
    with started(tmp_path) as node:
        for number in range(4):
            node.writer.send(b"%d" % number, "cut")
        node.writer.write()
        kept = node.store.log.end
        for number in range(4, 10):
            node.writer.send(b"%d" % number, "cut")
        node.writer.write()
        node.offsets.commit("g1", "cut", 0, 10)
        node.settle()
        node.save()
    cut(tmp_path, kept)
    with started(tmp_path, boot="second boot") as node:
        assert node.offsets.get("g1", "cut", 0) == 4
        for number in range(3):
            node.writer.send(b"new %d" % number, "cut")
        node.writer.write()
    with started(tmp_path, boot="second boot") as node:
        assert node.store.kernel.queue_state("cut", 0).end == 7
        assert node.offsets.get("g1", "cut", 0) == 4, "nobody has read the new ones"


# -- any order of anything --------------------------------------------------------------------------------------------------

topics, groups, numbers = st.sampled_from(TOPIC_NAMES), st.sampled_from(GROUP_NAMES), st.integers(0, 9)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("topic"), topics, st.integers(1, 3)),
        st.tuples(st.just("delete topic"), topics),
        st.tuples(st.just("group"), groups, numbers),
        st.tuples(st.just("delete group"), groups),
        st.tuples(st.just("forbid"), groups, topics, st.booleans()),
        st.tuples(st.just("commit"), groups, topics, st.integers(0, 1), numbers),
        st.tuples(st.just("commit"), groups, topics, st.integers(0, 1), numbers),
        st.tuples(st.just("reset"), groups, topics, st.dictionaries(st.integers(0, 1), numbers, min_size=1)),
        st.tuples(st.just("delete offsets"), topics | st.none(), groups),
        st.tuples(st.just("record")),
        st.tuples(st.just("turn")),
        st.tuples(st.just("send"), st.integers(1, 15_000)),
        st.tuples(st.just("derive")),
        st.tuples(st.just("save"), st.none() | st.integers(0, 12)),
        st.tuples(st.just("save"), st.none()),
        st.tuples(st.just("crash"), st.booleans()),
    ),
    min_size=5,
    max_size=40,
)


def do(node: Node, step: tuple[Any, ...]) -> None:
    match step:
        case "topic", name, queues:
            node.topics.update(TopicConfig(name, queues, queues))
        case "delete topic", name:
            node.topics.delete(name)
        case "group", name, times:
            node.groups.update(SubscriptionGroupConfig(name=name, retry_times_max=times))
        case "delete group", name:
            node.groups.delete(name)
        case "forbid", group, topic, readable:
            node.groups.forbid(group, topic, readable)
        case "commit", group, topic, queue_id, offset:
            node.offsets.commit(group, topic, queue_id, offset)
        case "reset", group, topic, offsets:
            node.offsets.move(group, topic, offsets)
        case "delete offsets", topic, group:
            node.offsets.delete(topic, group)
        case ("record",):
            node.offsets.record_commits()
        case ("turn",):
            node.turn()
        case "send", size:
            node.writer.send(bytes(size), "messages")
        case ("derive",):
            node.writer.write_derived()
        case "save", None:
            node.save()
        case "save", skip:  # the process dies, or the disk has enough, in the middle of it
            node.files.fail(skip=skip)
            try:
                node.save()
            except OSError:
                pass
            finally:
                node.files.repair()


def is_between(found: Any, history: list[dict[str, Any]], part: str) -> bool:
    """Whether each single thing is as it was at some moment since everything was last in the log."""
    past = [moment[part] for moment in history]
    missing = object()
    return all(
        any(moment.get(key, missing) == found.get(key, missing) for moment in past) for key in set(found).union(*past)
    )


@settings(max_examples=40)
@given(STEPS, st.sampled_from(KINDS))
def test_a_crash_at_any_moment_gives_the_tables_back(steps: list[tuple[Any, ...]], kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder), kind)
        history = [node.state]  # since everything was last in the log
        try:
            for step in [*steps, ("crash", True)]:
                if step[0] != "crash":
                    do(node, step)
                    if step[0] == "turn" and not node.offsets._overlay:
                        history.clear()
                    history.append(node.state)
                    continue
                if step[1]:  # everything is in the log
                    node.settle()
                    history = [node.state]
                node.close()
                node = Node(Path(folder), kind)
                assert not [note for note in node.notes if "taken as it is" in note], "no table knows more than the log"
                found = node.state
                if step[1]:
                    assert found == history[0]
                for part in found:
                    assert is_between(found[part], history, part), (part, found[part], history)
                history = [found]
        finally:
            node.close()
