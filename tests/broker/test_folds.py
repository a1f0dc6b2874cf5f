"""Snapshot + replay == live state, after a crash at any point: topics, groups, bans, offsets, resets, settings.

The tables change, records are written, snapshots saved, entries brought to their files and the log rolled on, in any order.
At any moment the data directory is photographed (what a killed process leaves behind) and opened by new tables.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kappamq.clock import VirtualClock
from kappamq.config.broker import BrokerConfig
from kappamq.protocol import fastjson
from kappamq.protocol.bodies.clients import SubscriptionGroupConfig
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.state.groups import Groups
from kappamq.state.metadata import Metadata
from kappamq.state.offsets import Offsets
from kappamq.state.topics import Topics
from kappamq.store.message_store import MessageStore
from kappamq.store.snapshots import Snapshots
from tests.store.stores import BOOT, config, flush, make, make_room

NAMES = st.sampled_from(["a", "b", "c"])
QUEUES = st.integers(0, 2)


class Directly:
    """As much of LogWriter as metadata needs: no sockets, no gate."""

    def __init__(self, store: MessageStore, clock: VirtualClock) -> None:
        self._store = store
        self._clock = clock

    def append(self, append: Callable[[], tuple[int, int, int]], *, own: bool = False) -> tuple[int, int, int]:
        while True:
            try:
                return append()
            except self._store.kernel_module.SegmentFull:
                make_room(self._store, self._clock.message_ms())


class Life:
    """A broker's tables on a store of their own, from the opening on."""

    def __init__(self, root: Path) -> None:
        self.clock = VirtualClock()
        self.store = make(config(root, message_bytes_max=4 << 10))
        self.store.open(BOOT)
        self.metadata = Metadata(
            self.store,
            Snapshots(root / "config", self.store.files),
            self.clock,
            bytes(8),
            Directly(self.store, self.clock),
        )  # type: ignore[arg-type]
        broker = BrokerConfig(name="broker")
        self.topics = Topics(broker, self.store.kernel, self.metadata.now_ms, self.metadata.commit)
        self.groups = Groups(broker, self.metadata.now_ms, self.metadata.commit)
        self.offsets = Offsets(self.metadata.now_ms, self.metadata.commit)
        for table in (self.topics, self.groups, self.offsets):
            self.metadata.add(table)
        self.notes = self.metadata.load()
        self.topics.hide_deleted()
        self.clock.not_before(self.store.last_ms)

    def write(self) -> None:
        self.offsets.record_commits()
        self.store.write(self.clock.message_ms())

    def save(self, renew_below: int = 0) -> None:
        """As upkeep does it: as of now, written when the log is safe up to there."""
        work = self.metadata.collect(renew_below)
        self.store.write(self.clock.message_ms())
        flush(self.store)
        self.metadata.save(work)

    def state(self) -> dict[str, Any]:
        return {
            "topics": {name: topic.to_json() for name, topic in self.topics.table.items()},
            "deleted": self.topics.deleted,
            "groups": {name: group.to_json() for name, group in self.groups.table.items()},
            "forbidden": self.groups.forbidden,
            "offsets": {key: dict(queues) for key, queues in self.offsets._table.items() if queues},
        }

    def committed(self) -> dict[tuple[str, str, int], int]:
        return {
            (topic, group, queue_id): offset
            for (topic, group), queues in self.offsets._table.items()
            for queue_id, offset in queues.items()
        }


class Folds(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        shared = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="kappamq-folds-", dir=shared if shared.is_dir() else None))
        self.safe: dict[tuple[str, str, int], int] = {}  # offsets that the log has

    @initialize()
    def begin(self) -> None:
        self.life = Life(self.folder / "data")

    # -- changes -----------------------------------------------------------------------------------------------------------

    @rule(name=NAMES, queues=st.integers(1, 4), permission=st.sampled_from([2, 4, 6]))
    def set_topic(self, name: str, queues: int, permission: int) -> None:
        self.life.topics.update(TopicConfig(name, queues, queues, permission))

    @rule(name=NAMES)
    def delete_topic(self, name: str) -> None:
        if self.life.topics.delete(name):
            self.life.offsets.delete(topic=name)
            self.safe = {key: offset for key, offset in self.safe.items() if key[0] != name}

    @rule(name=NAMES, enabled=st.booleans())
    def set_group(self, name: str, enabled: bool) -> None:
        self.life.groups.update(SubscriptionGroupConfig(name=name, consume_enable=enabled))

    @rule(name=NAMES)
    def delete_group(self, name: str) -> None:
        self.life.groups.delete(name)

    @rule(group=NAMES, topic=NAMES, readable=st.booleans())
    def forbid(self, group: str, topic: str, readable: bool) -> None:
        self.life.groups.forbid(group, topic, readable)

    @rule(group=NAMES, topic=NAMES, queue_id=QUEUES, offset=st.integers(0, 50))
    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        before = self.life.offsets.get(group, topic, queue_id)
        self.life.offsets.commit(group, topic, queue_id, offset)
        assert self.life.offsets.get(group, topic, queue_id) == max(offset, before or 0), "a commit never goes back"

    @rule(group=NAMES, topic=NAMES, queue_id=QUEUES, offset=st.integers(0, 50))
    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.life.offsets.move(group, topic, {queue_id: offset})
        self.safe.pop((topic, group, queue_id), None)
        assert self.life.offsets.get(group, topic, queue_id) == offset

    # -- what happens meanwhile --------------------------------------------------------------------------------------------

    @rule()
    def write(self) -> None:
        self.life.write()
        self.safe = self.life.committed()

    @rule()
    def save_snapshots(self) -> None:
        self.life.save()
        self.safe = self.life.committed()

    @rule()
    def renew_snapshots(self) -> None:
        self.life.save(renew_below=self.life.store.log.end + 1)
        self.safe = self.life.committed()

    @rule()
    def write_derived(self) -> None:
        self.life.store.write_derived(self.life.store.collect())

    @rule()
    def roll(self) -> None:
        self.life.store.write(self.life.clock.message_ms())
        if not self.life.store.log.is_fresh:
            self.life.store.roll()

    @rule(name=NAMES, queue_id=QUEUES)
    def message(self, name: str, queue_id: int) -> None:
        if name in self.life.topics.deleted and name not in self.life.topics.table:
            return  # nobody can send to a topic that was deleted
        kernel, now = self.life.store.kernel, self.life.clock.message_ms()
        Directly(self.life.store, self.life.clock).append(
            lambda: kernel.append(name, queue_id, 0, 0, now, bytes(8), 0, 0, b"body" * 100, b"", now)
        )

    # -- ends --------------------------------------------------------------------------------------------------------------

    @rule()
    def crash_after_a_write(self) -> None:
        """Everything is in the log: whoever opens it knows exactly what was known."""
        self.write()
        expected = self.life.state()
        photo = self.photo()
        assert photo.state() == expected
        self.close(photo)

    @rule()
    def crash_at_any_moment(self) -> None:
        """What the log has is there; what was only in memory may be."""
        photo = self.photo()
        known = photo.committed()
        for key, offset in self.safe.items():
            assert known.get(key, -1) >= offset, f"{key} was {offset} in the log and is {known.get(key)}"
        self.close(photo)

    @rule()
    def crash_and_go_on(self) -> None:
        self.write()
        expected = self.life.state()
        self.life.store.close(clean=False)
        self.life = Life(self.folder / "data")
        assert self.life.state() == expected

    @rule()
    def stop_and_go_on(self) -> None:
        self.write()
        self.life.save()
        expected = self.life.state()
        self.life.store.close()
        self.life = Life(self.folder / "data")
        assert self.life.state() == expected
        assert self.life.notes == []

    @rule(table=st.sampled_from(["topics.json", "subscriptionGroup.json", "consumerOffset.json"]))
    @precondition(lambda self: (self.folder / "data" / "config").exists())
    def a_snapshot_is_torn(self, table: str) -> None:
        """A file that cannot be read: the one before it and the log make up for it."""
        self.write()
        expected = self.life.state()
        path = self.folder / "data" / "config" / table
        if not path.exists():
            return
        photo = self.photo(lambda root: (root / "config" / table).write_bytes(path.read_bytes()[:-9]))
        assert photo.state() == expected
        self.close(photo)

    def photo(self, spoil: Callable[[Path], object] | None = None) -> Life:
        shutil.copytree(self.folder / "data", self.folder / "photo")
        if spoil is not None:
            spoil(self.folder / "photo")
        return Life(self.folder / "photo")

    def close(self, photo: Life) -> None:
        photo.store.close(clean=False)
        shutil.rmtree(self.folder / "photo")

    @invariant()
    def retention_keeps_what_snapshots_need(self) -> None:
        if hasattr(self, "life"):
            assert 0 <= self.life.metadata.needed_from <= self.life.store.log.end

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.store.close(clean=False)
        shutil.rmtree(self.folder)


TestFolds = Folds.TestCase
# Nearly every step opens a store: making a failing example small would take minutes.
TestFolds.settings = settings(
    max_examples=25, stateful_step_count=25, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
TestFolds.pytestmark = [pytest.mark.timeout(300)]  # type: ignore[attr-defined]


def test_a_snapshot_that_is_ahead_of_the_log_becomes_the_new_baseline(tmp_path: Path) -> None:
    """A power cut took the log's end, but not the snapshot made after it: what is recorded from now on must count."""
    life = Life(tmp_path / "data")
    life.write()
    shutil.copytree(tmp_path / "data" / "commitlog", tmp_path / "short")
    life.topics.update(TopicConfig("early", 1, 1, 6))
    for _ in range(20):
        life.offsets.move("g", "early", {0: 5})
    life.write()
    life.save()
    life.store.close(clean=False)
    shutil.rmtree(tmp_path / "data" / "commitlog")
    shutil.copytree(tmp_path / "short", tmp_path / "data" / "commitlog")
    (tmp_path / "data" / "kappamq.position").unlink(missing_ok=True)

    life = Life(tmp_path / "data")
    assert any("ends at" in note for note in life.notes)
    assert "early" in life.topics.table
    life.topics.update(TopicConfig("late", 1, 1, 6))  # at an offset below the old snapshot's stamp
    life.write()
    life.store.close(clean=False)

    life = Life(tmp_path / "data")
    assert {"early", "late"} <= life.topics.table.keys()
    life.store.close(clean=False)


def test_javas_snapshots_become_the_new_baseline_at_once(tmp_path: Path) -> None:
    life = Life(tmp_path / "data")
    life.topics.update(TopicConfig("ours", 1, 1, 6))
    life.write()
    life.save()
    life.store.close()
    path = tmp_path / "data" / "config" / "topics.json"
    table = fastjson.loads(path.read_bytes().replace(b'"ours"', b'"javas"'))
    del table["kappamq"]  # a Java broker drops what it does not know
    path.write_bytes(fastjson.pretty(table))

    life = Life(tmp_path / "data")
    assert "javas" in life.topics.table
    life.topics.update(TopicConfig("after", 1, 1, 6))
    life.write()
    life.store.close(clean=False)  # a crash before the first regular snapshot

    life = Life(tmp_path / "data")
    assert {"javas", "after"} <= life.topics.table.keys()
    life.store.close(clean=False)
