"""Snapshot + log == live tables, after a crash at any moment: changes, turns, snapshots, damage and ends in any order."""

from __future__ import annotations

import shutil
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.protocol.bodies.clients import SubscriptionGroupConfig
from kappamq.protocol.bodies.topics import TopicConfig
from tests.state.node import Node
from tests.store.stores import kernels

KINDS = kernels()
TOPIC_NAMES, GROUP_NAMES = ["t1", "t2"], ["g1", "g2"]
FILES = ["topics.json", "subscriptionGroup.json", "consumerOffset.json"]

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
        st.tuples(st.just("send"), st.integers(1, 4000)),
        st.tuples(st.just("derive")),
        st.tuples(st.just("roll")),
        st.tuples(st.just("renew")),
        st.tuples(st.just("photo")),
        st.tuples(st.just("torn"), st.sampled_from(FILES)),
        st.tuples(st.just("stop")),
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
            before = node.offsets.get(group, topic, queue_id)
            node.offsets.commit(group, topic, queue_id, offset)
            assert node.offsets.get(group, topic, queue_id) == max(offset, before or 0), "a commit never goes back"
        case "reset", group, topic, offsets:
            node.offsets.move(group, topic, offsets)
            assert node.offsets.queues(group, topic).items() >= offsets.items(), "a reset does"
        case "delete offsets", topic, group:
            node.offsets.delete(topic, group)
        case ("record",):
            node.offsets.record_commits()
        case ("turn",):
            node.turn()
        case "send", size:
            node.writer.send(bytes(size), "others")
        case ("derive",):
            node.writer.write_derived()
        case ("roll",):
            node.turn()
            if not node.store.log.is_fresh:
                node.store.roll()
        case ("renew",):
            node.save(renew_below=node.store.log.end + 1)
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


def known(node: Node) -> dict[str, Any]:
    """What each thing is, also what is not recorded yet."""
    offsets = {
        (topic, group, queue_id): offset
        for group in GROUP_NAMES
        for topic in node.offsets.topics_of(group)
        for queue_id, offset in node.offsets.queues(group, topic).items()
    }
    topics, groups = node.topics, node.groups
    return deepcopy(
        {
            "topics": topics.table,
            "deleted": topics.deleted,
            "groups": groups.table,
            "forbidden": groups.forbidden,
            "offsets": offsets,
        }
    )


class Life:
    """One data folder and the node on it, killed and started again."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self.node = Node(folder / "data", kind)
        self.history = [known(self.node)]  # since everything was last in the log

    def step(self, step: tuple[Any, ...]) -> None:
        if step[0] in ("crash", "stop", "torn", "photo"):
            self.end(*step)
        else:
            do(self.node, step)
            if step[0] == "turn" and not self.node.offsets._overlay:
                self.history.clear()
            self.history.append(known(self.node))
        assert 0 <= self.node.metadata.needed_from <= self.node.store.log.end, "retention keeps what snapshots need"

    def end(self, how: str, what: Any = None) -> None:
        settled = how in ("stop", "torn") or what is True
        if settled:  # everything is in the log
            self.node.settle()
            self.history = [known(self.node)]
        if how == "stop":
            self.node.save()
        live = self.node.state()
        if how == "photo":  # what a killed process leaves behind, while this one goes on
            shutil.copytree(self.folder / "data", self.folder / "photo")
            photo = Node(self.folder / "photo", self.kind)
            try:
                self.check(photo, settled=False)
            finally:
                photo.close()
                shutil.rmtree(self.folder / "photo")
            return
        self.node.close(clean=how == "stop")
        path = self.folder / "data" / "config" / str(what)
        torn = how == "torn" and path.exists()
        if torn:
            path.write_bytes(path.read_bytes()[:-9])
        self.node = Node(self.folder / "data", self.kind)
        assert bool(self.node.notes) == torn, self.node.notes
        self.check(self.node, settled)
        if settled:
            assert self.node.state() == live
        self.history = [known(self.node)]

    def check(self, node: Node, settled: bool) -> None:
        assert not [note for note in node.notes if "taken as it is" in note], "no table knows more than the log"
        found = known(node)
        if settled:
            assert found == self.history[0]
        for part in found:
            assert is_between(found[part], self.history, part), (part, found[part], self.history)


@settings(max_examples=120, deadline=None)
@given(STEPS, st.sampled_from(KINDS))
def test_a_crash_at_any_moment_gives_the_tables_back(steps: list[tuple[Any, ...]], kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder), kind)
        try:
            for step in [*steps, ("crash", True)]:
                life.step(step)
        finally:
            life.node.close()
