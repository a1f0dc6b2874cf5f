"""Stores for audits, made by a real broker: one where everything went well, and one in which somebody has been at work."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from kappamq import Message, Redeliver
from kappamq.broker.sending.appending import Draft
from kappamq.message import ReceivedMessage
from kappamq.protocol import trace
from kappamq.protocol.names import SCHEDULE_TOPIC, TRACE_TOPIC
from kappamq.protocol.trace import ConsumeBegun, ConsumeEnded, Published
from kappamq.store.reader import StoreReader
from kappamq.testing import BrokerKit
from tests.waiting import eventually

PROPERTIES = {"traceTopicEnable": True, "mappedFileSizeCommitLog": 256 << 10, "maxMessageSize": 64 << 10}
PLAIN = 40


def make_healthy(folder: Path) -> Path:
    """Plain messages and a batch, ordered, delayed, timed and transactional ones; a traced group that fails once and is done then."""
    with BrokerKit(data=folder, properties=PROPERTIES) as broker:
        with broker.admin() as admin:
            admin.create_topic("tea", queues=3)
            admin.create_topic("coffee", queues=1)
            admin.create_topic("unread", queues=1)
        _produce(broker)
        _consume(broker)
    return folder


def _produce(broker: BrokerKit) -> None:
    with broker.producer(group="kitchen", trace=True) as producer:
        for number in range(PLAIN):
            producer.send(Message("tea", b"cup %d" % number, tags="green", keys=(f"order-{number}", "all")))
            broker.clock.advance("1s")
        producer.send_batch([Message("coffee", b"pot %d" % number) for number in range(10)])
        for number in range(6):
            producer.send(Message("tea", b"in order %d" % number, tags="black", sharding_key="guest-1"), key="guest-1")
        producer.send(Message("tea", b"later", tags="green", delay_level=3))
        producer.send(Message("tea", b"at a time", tags="green", delay=30))
        producer.send(Message("unread", b"nobody reads this"))
    with (
        broker.transaction_producer(group="till", check=lambda message: True, trace=True) as till,
        till.transaction(Message("coffee", b"paid")),
    ):
        pass
    broker.clock.advance("1m")


def _consume(broker: BrokerKit) -> None:
    got: list[bytes] = []

    def drink(message: ReceivedMessage) -> Redeliver | None:
        got.append(message.body)
        return Redeliver() if message.body == b"cup 7" and message.reconsume_times == 0 else None

    topics = {"tea": "*", "coffee": "*"}
    with broker.consumer(group="drinkers", topics=topics, listener=drink, consume_from="first", trace=True):
        eventually(lambda: len(set(got)) == PLAIN + 19)
        broker.settle()
        broker.clock.advance("1m")
        eventually(lambda: got.count(b"cup 7") == 2)
        broker.settle()


def make_planted(folder: Path) -> dict[str, Any]:
    """Findings of most rules. Returns what was planted: rule -> what tells it from others."""
    planted: dict[str, Any] = {}
    with BrokerKit(data=folder, properties=PROPERTIES) as broker:
        with broker.admin() as admin:
            admin.create_topic("tea", queues=2)
        with broker.producer() as producer:
            for number in range(30):
                producer.send(Message("tea", b"cup %d" % number, tags="green"))
            sent = [message for message in broker.messages("tea") if message.queue.queue_id == 0]
            _plant(broker, planted, sent)
            # Both are needed below: one whose record is damaged, and one behind it, so that it is not the end of the log.
            for number in range(30, 40):
                producer.send(Message("tea", b"cup %d" % number, tags="green"))
    _damage(folder, planted)
    return planted


def _plant(broker: BrokerKit, planted: dict[str, Any], sent: list[ReceivedMessage]) -> None:
    now = broker.clock.message_ms()

    def append(draft: Draft) -> Any:
        return broker.call(lambda inside: inside.delivery.appender.append(draft))

    planted["id"] = sent[3].message_id
    append(Draft("tea", 0, b"again", {"UNIQ_KEY": planted["id"]}, born_ms=now))
    prefix = sent[4].message_id[:-12]
    planted["born"] = prefix + "0" * 12
    append(Draft("tea", 0, b"old", {"UNIQ_KEY": planted["born"], "__SHARDINGKEY": "guest"}, born_ms=now - 60_000))
    append(Draft("tea", 1, b"elsewhere", {"UNIQ_KEY": "SPLIT", "__SHARDINGKEY": "guest"}, born_ms=now))
    planted["clock"] = "AHEAD"
    append(Draft("tea", 1, b"from the future", {"UNIQ_KEY": "AHEAD"}, born_ms=now + 5000, born=b"\x0a\0\0\7\0\0\0\1"))
    planted["delivered"] = "DELIVERED"
    due = {"UNIQ_KEY": "DELIVERED", "REAL_TOPIC": "tea", "TIMER_OUT_MS": str(now - 60_000)}
    append(Draft("tea", 1, b"was due a minute ago", due, born_ms=now - 90_000, waited=True))
    # A delayed message that its level has passed, though it was delivered nowhere.
    planted["undelivered"] = "PARKED"
    parked = {"UNIQ_KEY": "PARKED", "REAL_TOPIC": "tea", "REAL_QID": "0", "DELAY": "5"}
    append(Draft(SCHEDULE_TOPIC, 4, b"gone", parked, born_ms=now, waited=True))
    broker.call(lambda inside: inside.delivery.appender.change("delay", [5, 1]))

    # Traces: of a message that is not there, and of one that a group consumed twice, long after it was stored.
    broker.call(lambda inside: inside.offsets.commit("drinkers", "tea", 0, 5))
    planted["sent"] = "A" * 32
    nowhere = sent[0].offset_id[:-16] + struct.pack(">q", sent[0].log_offset + 1).hex().upper()
    planted["consumed"] = sent[0].message_id
    entries: list[trace.Entry] = [
        Published(
            time_ms=now, group="kitchen", topic="tea", message_id=name, body_bytes=1, cost_ms=1, offset_id=place, success=True
        )
        for name, place in ((planted["sent"], nowhere), (sent[0].message_id, sent[0].offset_id))
    ]  # fmt: skip
    for request, message in (("R1", sent[0]), ("R2", sent[0]), ("R3", sent[2])):
        common: dict[str, Any] = {"request_id": request, "message_id": message.message_id}
        entries.append(ConsumeBegun(time_ms=now + 60_000, group="drinkers", **common))
        entries.append(ConsumeEnded(cost_ms=1, success=True, **common))
    planted["unseen"] = sent[1].message_id
    with broker.producer() as producer:
        producer.send(Message(TRACE_TOPIC, "".join(map(trace.encode, entries)).encode()))


def _damage(folder: Path, planted: dict[str, Any]) -> None:
    with StoreReader(folder) as store:
        victim = list(store.read("tea", 1))[6]
    planted["damaged"] = victim.log_offset
    planted["missing"] = victim.queue_offset
    segment = PROPERTIES["mappedFileSizeCommitLog"]
    path = folder / "commitlog" / f"{victim.log_offset // segment * segment:020d}"
    data = bytearray(path.read_bytes())
    data[victim.log_offset % segment + 90] ^= 0xFF
    path.write_bytes(data)
