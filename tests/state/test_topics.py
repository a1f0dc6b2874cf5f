"""Topics: who may make one and how, what the kernel may do with each, and numbering that goes on after a deletion."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.config.broker import BrokerConfig
from kappamq.errors import InvalidParameter, NoPermission, NotAvailable, TopicNotFound
from kappamq.native.layout import TOPIC_PULL, TOPIC_SEND
from kappamq.protocol import fastjson, names
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.protocol.headers.client import SendMessage
from kappamq.state.events import TopicChanged, TopicDeleted
from kappamq.state.topics import Topics
from kappamq.store.log.marks import AsyncFlush, Follower
from kappamq.store.message_store import MessageStore
from tests.broker.operating import make_topic
from tests.broker.recorded import Log
from tests.broker.running import run, running, speaking
from tests.state.committing import committing
from tests.store.stores import Writer, bodies, config, flush, kernels, opened
from tests.waiting import eventually_async as eventually

READ, WRITE, INHERIT = 4, 2, 1


class Kernel:
    """The part of the kernel that is told about topics."""

    def __init__(self) -> None:
        self.topics: dict[str, tuple[int, int, int]] = {}
        self.append_offset = 0
        self.busy: set[str] = set()

    def set_topic(self, name: str, write_queues: int, read_queues: int, flags: int) -> None:
        self.topics[name] = (write_queues, read_queues, flags)

    def queue_ids(self, name: str) -> list[int]:
        return []

    def forget_topic(self, name: str) -> bool:
        """One that it does not like to forget yet is in `busy`."""
        if name in self.busy:
            return False
        self.topics.pop(name, None)
        return True


def make(log: Log | None = None, kernel: Any = None, **changes: Any) -> Topics:
    settings = BrokerConfig(**({"name": "b", "cluster": "c"} | changes))
    return committing(
        lambda commit: Topics(settings, kernel or Kernel(), lambda: 1_700_000_000_000, commit), (log or Log()).record
    )


def send(topic: str, default_topic: str = names.AUTO_CREATE_TOPIC, queues: int = 4) -> SendMessage:
    return SendMessage(
        producer_group="p", topic=topic, default_topic=default_topic, default_topic_queues=queues, queue_id=0, sys_flag=0,
        born_ms=0, flag=0,
    )  # fmt: skip


# -- made by a send --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "made"), [(4, 4), (8, 8), (100, 8), (0, 1), (-5, 1)])
def test_a_send_makes_its_topic_with_no_more_queues_than_the_template(wanted: int, made: int) -> None:
    log = Log()
    topics = make(log, default_topic_queues=8)
    changed: list[str] = []
    topics._events.on(TopicChanged, lambda event: changed.append(event.topic.name))
    topic = topics.for_send(send("new", queues=wanted))
    assert (topic.write_queues, topic.read_queues, topic.permission) == (made, made, READ | WRITE)
    assert topics.for_send(send("new", queues=2)) is topic, "it is made once"
    assert [kind for kind, _ in log.records] == ["topic"]
    assert changed == ["new"]


def test_a_template_must_let_itself_be_inherited() -> None:
    topics = make()
    topics.update(TopicConfig("plain", 2, 2, READ | WRITE))
    topics.update(TopicConfig("template", 2, 3, READ | INHERIT))
    for default_topic in ("plain", "unknown", ""):
        with pytest.raises(TopicNotFound, match=r"topic\[new\] not exist"):
            topics.for_send(send("new", default_topic))
    with pytest.raises(NoPermission):
        topics.for_send(send("new", "template"))
    assert topics.existing("new").permission == READ, "it was made like its template, which takes no messages"
    assert topics.existing("new").write_queues == 3


def test_no_send_makes_a_topic_where_that_is_switched_off() -> None:
    log = Log()
    topics = make(log, auto_create_topic=False)
    for default_topic in (names.AUTO_CREATE_TOPIC, "c", "b"):
        with pytest.raises(TopicNotFound, match="kappamq topic create new"):
            topics.for_send(send("new", default_topic))
    assert log.records == []
    topics.update(TopicConfig("new", 2, 2))
    assert topics.for_send(send("new")).write_queues == 2


def test_it_can_be_switched_at_run_time() -> None:
    log = Log()
    topics = make(log, auto_create_topic=False)
    topics.template_changed()
    assert topics.get(names.AUTO_CREATE_TOPIC) is None
    object.__setattr__(topics._config, "auto_create_topic", True)
    object.__setattr__(topics._config, "default_topic_queues", 3)
    topics.template_changed()
    assert topics.for_send(send("new", queues=9)).write_queues == 3
    object.__setattr__(topics._config, "auto_create_topic", False)
    topics.template_changed()
    with pytest.raises(TopicNotFound):
        topics.for_send(send("newer"))


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "x" * 128, "ä"])
def test_a_name_that_cannot_be_makes_no_topic(name: str) -> None:
    topics = make()
    before = set(topics.table)
    with pytest.raises(InvalidParameter):
        topics.for_send(send(name))
    assert set(topics.table) == before


@pytest.mark.parametrize("name", [*sorted(names.NOT_SENDABLE_TOPICS), "rmq_sys_kappamq_metadata"])
def test_nobody_sends_into_the_brokers_own_books(name: str) -> None:
    topics = make()
    with pytest.raises(NoPermission, match="system topic"):
        topics.for_send(send(name))


def test_topics_are_bounded() -> None:
    topics = make(topics_max=len(make().table) + 1)
    topics.for_send(send("one"))
    with pytest.raises(NoPermission, match="topics_max"):
        topics.for_send(send("two"))
    with pytest.raises(InvalidParameter, match="topics_max"):
        topics.update(TopicConfig("two", 1, 1))
    topics.update(TopicConfig("one", 1, 1))  # one that is there may change
    assert topics.delete("one")
    topics.for_send(send("two"))


@pytest.mark.parametrize(("read", "write"), [(-1, 1), (1, -1), (11, 1), (1, 11)])
def test_a_topics_queues_are_bounded(read: int, write: int) -> None:
    log = Log()
    topics = make(log, topic_queues_max=10)
    with pytest.raises(InvalidParameter, match="0 to 10 queues"):
        topics.update(TopicConfig("t", read, write))
    assert (log.records, topics.get("t")) == ([], None)


# -- what may be done with it ----------------------------------------------------------------------------------------------


def test_permissions_of_topics() -> None:
    topics = make()
    topics.update(TopicConfig("write", 1, 1, WRITE))
    topics.update(TopicConfig("read", 1, 1, READ))
    assert topics.readable("read").name == "read"
    assert topics.for_send(send("write")).name == "write"
    with pytest.raises(NoPermission, match=r"topic\[write\] pulling"):
        topics.readable("write")
    with pytest.raises(NoPermission, match="no write permission"):
        topics.for_send(send("read"))
    with pytest.raises(TopicNotFound):
        topics.readable("unknown")


@pytest.mark.parametrize(
    ("topic", "flags"),
    [
        (TopicConfig("t", 2, 3, READ | WRITE), TOPIC_SEND | TOPIC_PULL),
        (TopicConfig("t", 2, 3, READ), TOPIC_PULL),
        (TopicConfig("t", 2, 3, WRITE), TOPIC_SEND),
        (TopicConfig("t", 2, 3, 0), 0),
        (TopicConfig("t", 2, 3, READ | WRITE, "MULTI_TAG"), TOPIC_PULL),
        (TopicConfig("t", 2, 3, READ | WRITE, attributes={"queue.type": "BatchCQ"}), TOPIC_PULL),
        (TopicConfig("t", 2, 3, READ | WRITE, attributes={"queue.type": "SimpleCQ"}), TOPIC_SEND | TOPIC_PULL),
        (TopicConfig("t", 2, 3, READ | WRITE, attributes={"cleanup.policy": "COMPACTION"}), TOPIC_PULL),
        (TopicConfig("%RETRY%g", 1, 1, READ | WRITE), TOPIC_PULL),
        (TopicConfig("%DLQ%g", 1, 1, READ | WRITE), TOPIC_PULL),
    ],
    ids=repr,
)
def test_the_kernel_serves_what_is_plain_and_permitted(topic: TopicConfig, flags: int) -> None:
    kernel = Kernel()
    topics = make(kernel=kernel)
    topics.update(topic)
    assert kernel.topics[topic.name] == (topic.write_queues, topic.read_queues, flags)
    topics.delete(topic.name)
    assert kernel.topics[topic.name] == (0, 0, 0), "nothing of a deleted topic is served"


@pytest.mark.parametrize(("permission", "flags"), [(6, 3), (4, TOPIC_PULL), (2, TOPIC_SEND), (0, 0)])
def test_the_broker_as_a_whole_may_permit_less(permission: int, flags: int) -> None:
    kernel = Kernel()
    topics = make(kernel=kernel)
    topics.update(TopicConfig("t", 1, 1, READ | WRITE))
    before = topics.version.counter
    object.__setattr__(topics._config, "permission", permission)
    topics.permission_changed()
    assert kernel.topics["t"][2] == flags
    assert topics.version.counter > before, "name servers must hear of it"
    if not permission & WRITE:
        with pytest.raises(NoPermission, match="broker"):
            topics.for_send(send("t"))


def test_system_topics_are_known_by_name() -> None:
    topics = make()
    for name in ("c", "b", "c_REPLY_TOPIC", names.SCHEDULE_TOPIC, "rmq_sys_anything"):
        assert topics.is_system(name), name
    assert not topics.is_system("t")


@pytest.mark.parametrize("traced", [False, True])
def test_built_in_topics(traced: bool) -> None:
    kernel = Kernel()
    topics = make(kernel=kernel, trace_topic_enabled=traced, default_topic_queues=5)
    assert topics.existing(names.AUTO_CREATE_TOPIC).permission == READ | WRITE | INHERIT
    assert topics.existing(names.AUTO_CREATE_TOPIC).write_queues == 5
    assert topics.existing(names.SCHEDULE_TOPIC).write_queues == 18
    assert (names.TRACE_TOPIC in topics.table) == traced
    assert set(kernel.topics) == set(topics.table)
    for name in names.NOT_SENDABLE_TOPICS & topics.table.keys():
        assert not kernel.topics[name][2] & TOPIC_SEND, name


# -- changing --------------------------------------------------------------------------------------------------------------


def test_a_change_that_changes_nothing_is_not_told() -> None:
    log = Log()
    topics = make(log)
    topics.update(TopicConfig("t", 2, 2))
    version = topics.version
    topics.update(TopicConfig("t", 2, 2))
    assert (len(log.records), topics.version) == (1, version)
    topics.update(TopicConfig("t", 2, 2, attributes={"a": "b"}))
    assert len(log.records) == 2


def test_a_log_that_takes_nothing_stops_changes_but_not_the_broker_itself() -> None:
    log = Log()
    topics = make(log)
    topics.update(TopicConfig("t", 2, 2))
    told: list[Any] = []
    topics._events.on(TopicChanged, told.append)
    topics._events.on(TopicDeleted, told.append)
    before, version = dict(topics.table), topics.version
    log.refuses = True
    changes: list[Callable[[], object]] = [
        lambda: topics.update(TopicConfig("t", 9, 9)),
        lambda: topics.delete("t"),
        lambda: topics.for_send(send("new")),
    ]
    for change in changes:
        with pytest.raises(NotAvailable):
            change()
    assert (topics.table, topics.version, topics.deleted, told) == (before, version, {}, [])
    topics.dirty = False
    assert topics.ensure("%RETRY%g", 1).name in topics.table
    assert topics.dirty, "a snapshot may still have it"


def test_the_kernel_forgets_it_as_well_or_both_try_again() -> None:
    kernel = Kernel()
    topics = make(kernel=kernel)
    for name in ("t", "u"):
        topics.update(TopicConfig(name, 2, 2))
        topics.delete(name)
    kernel.busy = {"t"}
    topics.forget_deleted(1000)
    assert topics.deleted.keys() == {"t"}
    assert "u" not in kernel.topics
    assert "t" in kernel.topics
    kernel.busy = set()
    topics.forget_deleted(1000)
    assert not topics.deleted
    assert "t" not in kernel.topics


def test_ensure_leaves_what_is_there() -> None:
    topics = make()
    topics.update(TopicConfig("%RETRY%g", 5, 5))
    assert topics.ensure("%RETRY%g", 1).write_queues == 5
    assert topics.ensure("%RETRY%h", 2).write_queues == 2


def test_a_snapshot_is_a_copy() -> None:
    """It is written on a worker while the table goes on."""
    topics = make()
    topics.update(TopicConfig("t", 2, 2, attributes={"a": "1"}))
    topics.update(TopicConfig("gone", 2, 2))
    topics.delete("gone")
    snapshot = topics.to_snapshot()
    text = fastjson.dumps(snapshot)
    topics.table["t"].attributes["a"] = "2"
    topics.deleted["gone"][0] = 7
    topics.update(TopicConfig("other", 2, 2))
    assert fastjson.dumps(snapshot) == text


def test_a_frozen_table_does_not_change() -> None:
    """What is copied at once is only the names; so nothing of what they lead to may be changed in place."""
    topics = make()
    for number in range(3):
        topics.update(TopicConfig(f"t{number}", 2, 2))
    topics.update(TopicConfig("gone", 2, 2))
    topics.delete("gone")
    expected = fastjson.dumps(topics.to_snapshot())
    frozen = topics.freeze()
    topics.update(TopicConfig("t0", 7, 7))
    topics.delete("t1")
    topics.ensure("t3", 1)
    topics.update(TopicConfig("gone", 4, 4))
    topics.delete("gone")
    topics.apply("topic-deleted", {"topicName": "gone", "ends": {"0": 99}, "at": 5})
    assert fastjson.dumps(frozen()) == expected
    assert fastjson.dumps(topics.to_snapshot()) != expected


def test_a_deletion_from_before_we_noted_where_is_forgotten_later() -> None:
    kernel = Kernel()
    topics = make(kernel=kernel)
    topics.apply("topic-deleted", {"topicName": "t", "ends": {"0": 4}})
    kernel.append_offset = 500
    topics.forget_deleted(400)
    kernel.append_offset = 900
    topics.forget_deleted(499)
    assert topics.deleted == {"t": {0: 4}}
    topics.dirty = False
    topics.forget_deleted(500)
    assert (topics.deleted, topics.dirty) == ({}, True)


NAMES = st.sampled_from(["t1", "t2", names.BENCHMARK_TOPIC])


@given(st.lists(st.tuples(NAMES, st.none() | st.integers(1, 3)), max_size=20), st.data())
def test_a_snapshot_and_the_records_behind_it_give_the_same_topics(
    steps: list[tuple[str, int | None]], data: Any
) -> None:
    log, kernel = Log(), Kernel()
    live = make(log, kernel)
    snapshots = [(0, fastjson.dumps(live.to_snapshot()))]
    for name, queues in steps:
        if queues is None:
            live.delete(name)
        else:
            live.update(TopicConfig(name, queues, queues))
        snapshots.append((len(log.records), fastjson.dumps(live.to_snapshot())))
    at, text = data.draw(st.sampled_from(snapshots))
    again_kernel = Kernel()
    again = make(kernel=again_kernel)
    again.table.clear()  # built-in ones come back with every start; here we look at the fold alone
    again.from_snapshot(fastjson.loads(text))
    # Records that are in the snapshot already may come again.
    for kind, change in log.records[data.draw(st.integers(0, at)) :]:
        again.apply(kind, change)
    assert (again.table, again.deleted) == (live.table, live.deleted)
    for name in again.table:
        assert again_kernel.topics[name] == kernel.topics[name]


# -- deletion --------------------------------------------------------------------------------------------------------------


def started(store: MessageStore, text: bytes | None, log: Log) -> Topics:
    """The topics of a broker that has just started."""
    topics = make(log, store.kernel)
    if text is not None:
        topics.from_snapshot(fastjson.loads(text))
    for name in topics.hide_deleted():
        store.forget_topic(name)
    return topics


@pytest.mark.parametrize("kind", kernels())
@pytest.mark.parametrize("derived", [False, True], ids=["from the log", "from files"])
def test_a_topic_made_again_goes_on_counting_and_its_old_messages_stay_gone(
    tmp_path: Path, kind: str, derived: bool
) -> None:
    settings = config(tmp_path)
    log = Log()
    with opened(settings, kind, clean=derived) as store:
        topics = started(store, None, log)
        topics.update(TopicConfig("t", 2, 2))
        writer = Writer(store)
        for number in range(5):
            writer.send(b"old %d" % number, "t", number % 2)
        writer.write()
        writer.send(b"pending", "t", 0)  # numbered, and not yet written when the topic goes
        assert topics.delete("t")
        assert topics.get("t") is None
        assert topics.deleted == {"t": {0: 4, 1: 2}}
        assert not topics.delete("t")
        writer.write()
        snapshot = fastjson.dumps(topics.to_snapshot())

    with opened(settings, kind, clean=derived) as store:
        topics = started(store, snapshot, log)
        assert topics.get("t") is None
        assert [store.kernel.queue_state("t", queue_id)[:3] for queue_id in (0, 1)] == [(4, 4, 4), (2, 2, 2)]
        topics.update(TopicConfig("t", 2, 2))
        writer = Writer(store)
        writer.send(b"new", "t", 0)
        writer.write()
        assert bodies(store, "t", 0) == [b"new"]
        snapshot = fastjson.dumps(topics.to_snapshot())

    with opened(settings, kind) as store:  # and once more: the log still has the messages from before the deletion
        started(store, snapshot, log)
        assert store.kernel.queue_state("t", 0)[:3] == (4, 5, 5)
        assert store.kernel.queue_state("t", 1).next == 2
        assert bodies(store, "t", 0) == [b"new"]
        assert bodies(store, "t", 1) == []


@pytest.mark.parametrize("kind", kernels())
@pytest.mark.parametrize(
    ("made_again", "found", "hidden"),
    [
        (False, (0, 4), (4, 4)),
        (False, (0, 2), (4, 4)),  # the log lost its end: those numbers were given out all the same
        (False, (0, 9), (9, 9)),  # sent since, to a topic whose making was lost
        (False, (6, 9), (9, 9)),
        (True, (0, 2), (4, 4)),
        (True, (0, 9), (4, 9)),
        (True, (6, 9), (6, 9)),
    ],
)
def test_what_a_start_shows_of_a_deleted_topic(
    tmp_path: Path, kind: str, made_again: bool, found: tuple[int, int], hidden: tuple[int, int]
) -> None:
    with opened(config(tmp_path), kind) as store:
        topics = make(kernel=store.kernel)
        topics.apply("topic-deleted", {"topicName": "t", "ends": {"0": 4}})
        if made_again:
            topics.apply("topic", TopicConfig("t", 1, 1).to_json())
        store.kernel.set_queue("t", 0, *found)
        assert topics.hide_deleted() == ([] if made_again else ["t"])
        low, end, following, _stored = store.kernel.queue_state("t", 0)
        assert (low, end, following) == (*hidden, hidden[1])
        assert topics.first_offset("t", 0) == max(4, hidden[0] if not made_again else 0)


def test_a_topic_made_and_deleted_again_and_again_leaves_nothing(tmp_path: Path) -> None:
    """Neither in the kernel nor in the table, once the log has passed its deletion."""

    async def main() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            kernel = broker.kernel
            for number in range(20):
                await make_topic(client, f"brief{number}", 2)
                assert (await client.send(f"brief{number}", b"x", queue_id=1)).code == 0
                assert broker.topics.delete(f"brief{number}")
            await eventually(lambda: not kernel.dirty_queues())
            broker.topics.forget_deleted(0)
            assert len(broker.topics.deleted) == 20, "the log still has their messages"
            broker.topics.forget_deleted(kernel.append_offset)
            assert not broker.topics.deleted
            assert [kernel.queue_ids(f"brief{number}") for number in range(20)] == [[]] * 20
            assert (await client.send("brief3", b"again", queue_id=1)).code == 0
            assert [record.queue_offset for record in await client.read("brief3", 1)] == [0]

    run(main())


@pytest.mark.parametrize("kind", kernels())
def test_a_copy_keeps_what_was_sent_since_a_deletion_that_it_follows(tmp_path: Path, kind: str) -> None:
    """The topic is deleted and made again at once: the new messages have arrived here before the deletion is shown."""
    with opened(config(tmp_path / "leader"), kind) as leader:
        writer = Writer(leader)
        ends = []
        for bodies_sent in ([b"old 0", b"old 1", b"old 2"], [b"new 3", b"new 4"], [b"new 5"]):
            for body in bodies_sent:
                writer.send(body)
            writer.write()
            ends.append(leader.log.end)
        log_bytes = bytes(leader.log.slice(0, leader.log.end))
    shown = 0
    with opened(config(tmp_path / "copy"), kind) as store:
        store.take_mode(Follower(AsyncFlush(), lambda: (shown, shown)))
        topics = make(kernel=store.kernel)
        store.receive(0, log_bytes[: ends[1]])
        shown = ends[0]
        store.follow_marks()
        assert bodies(store) == [b"old 0", b"old 1", b"old 2"]
        deleted = {"topicName": "t", "ends": {"0": 3}}
        topics.apply("topic-deleted", deleted)
        topics.followed("topic-deleted", deleted)
        assert bodies(store) == []
        store.receive(ends[1], log_bytes[ends[1] :])
        shown = ends[2]
        store.follow_marks()
        assert store.kernel.queue_state("t", 0)[:3] == (3, 6, 6)
        assert bodies(store) == [b"new 3", b"new 4", b"new 5"]


@pytest.mark.parametrize("kind", kernels())
def test_a_start_keeps_what_was_sent_since_a_deletion_and_is_not_known_to_be_confirmed(
    tmp_path: Path, kind: str
) -> None:
    with opened(config(tmp_path), kind) as store:
        writer = Writer(store)
        for number in range(3):
            writer.send(b"old %d" % number)
        writer.write()
        deleted_at = store.log.end
        for number in range(3, 5):
            writer.send(b"new %d" % number)
        writer.write()
        flush(store)
    (tmp_path / "kappamq.position").unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    with opened(config(tmp_path), kind, enter_up_to=deleted_at) as store:
        topics = make(kernel=store.kernel)
        topics.apply("topic-deleted", {"topicName": "t", "ends": {"0": 3}})
        topics.hide_deleted()
        assert store.kernel.queue_state("t", 0)[:3] == (3, 3, 5)
        store.follow_marks()
        assert bodies(store) == [b"new 3", b"new 4"]
