"""The tables of a broker hear of each other by events, and fit to the log when they were loaded."""

from __future__ import annotations

from pathlib import Path

from kappamq.broker.clients.registry import Clients
from kappamq.broker.events import LogShortened
from kappamq.broker.tables import Tables
from kappamq.clock import VirtualClock
from kappamq.config.apache import BrokerSettings
from kappamq.config.broker import BrokerConfig
from kappamq.config.net import NetConfig
from kappamq.events import Events
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.protocol.names import METADATA_TOPIC
from kappamq.state.events import SettingsChanged
from kappamq.state.metadata import Metadata
from kappamq.store.message_store import MessageStore
from kappamq.store.snapshots import Snapshots
from tests.state.committing import Directly
from tests.store.stores import Writer, config, opened


class Life:
    def __init__(self, root: Path, store: MessageStore) -> None:
        self.events, self.clock = Events(), VirtualClock()
        self.config = BrokerConfig(name="b")
        settings = BrokerSettings(broker=self.config, store=store.config, net=NetConfig())
        snapshots, writer = Snapshots(root / "config", store.files), Directly(store, self.clock)
        self.metadata = Metadata(store, snapshots, self.clock, bytes(8), writer)
        self.tables = Tables(
            settings, store, store.kernel, self.metadata, Clients(self.config, self.events), self.events
        )
        self.metadata.load(self.tables.fit)


def test_a_deleted_topic_takes_offsets_along_and_is_forgotten_with_its_messages(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        life = Life(tmp_path, store)
        tables, events = life.tables, life.events
        tables.topics.update(TopicConfig("t", 1, 1, 6))
        writer = Writer(store)
        writer.send(b"x")
        writer.write()
        tables.offsets.set("g", "t", 0, 1)
        tables.queue_ends.record({"t": {0: 1}})
        tables.topics.delete("t")
        assert tables.offsets.get("g", "t", 0) is None
        assert tables.topics.first_offset("t", 0) == 1
        store.kernel.set_queue("t", 0, 1, 1)
        events.publish(LogShortened(store.kernel.append_offset))
        assert tables.topics.first_offset("t", 0) == 0
        assert tables.queue_ends.get("t", 0) == 0


def test_offsets_fit_to_queues_that_have_lost_messages(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        tables = Life(tmp_path, store).tables
        tables.topics.update(TopicConfig("t", 1, 1, 6))
        tables.offsets.set("g", "t", 0, 99)
        tables.offsets.record_commits()
        store.write(1)
    with opened(config(tmp_path)) as store:
        assert Life(tmp_path, store).tables.offsets.get("g", "t", 0) == 0


def test_a_member_whose_queues_end_before_what_is_confirmed_keeps_its_tables(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        life = Life(tmp_path, store)
        life.tables.offsets.set("g", "t", 0, 99)
        life.tables.offsets.record_commits()
        life.tables.queue_ends.record({METADATA_TOPIC: {0: 5}, "gone": {0: 7}})
        store.write(1)
        life.metadata.reset()
        life.metadata.load(life.tables.fit_member)
        assert life.tables.offsets.get("g", "t", 0) == 99
        assert life.tables.topics.deleted == {}
        life.metadata.reset()
        life.metadata.load(life.tables.fit)
        assert life.tables.offsets.get("g", "t", 0) == 0, "a broker of its own has lost what lies behind"


def test_the_queue_of_the_tables_own_records_is_no_deleted_topic(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        topics = Life(tmp_path, store).tables.topics
        topics.add_ends({METADATA_TOPIC: {0: 5}, "gone": {0: 7}})
        assert set(topics.deleted) == {"gone"}


def test_settings_that_tables_keep_are_followed(tmp_path: Path) -> None:
    with opened(config(tmp_path)) as store:
        life = Life(tmp_path, store)
        before = life.tables.topics.version
        life.events.publish(SettingsChanged(frozenset({"broker.client_expiry_ms"})))
        assert life.tables.topics.version == before
        life.events.publish(SettingsChanged(frozenset({"broker.permission"})))
        assert life.tables.topics.version != before
