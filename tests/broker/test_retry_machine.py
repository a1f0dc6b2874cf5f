"""Retries over a real broker: every failed message comes again at its time and not before, or is a dead letter, exactly once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from kappamq.protocol.bodies.clients import LockBatch, SubscriptionGroupConfig
from kappamq.protocol.headers.admin import UpdateGroup
from kappamq.protocol.headers.client import LockQueues, SendBack, UnlockQueues
from kappamq.protocol.records.record import Record
from tests.broker.machine import FEW, BrokerMachine
from tests.broker.operating import beat, make_topic, ok, queue
from tests.broker.timing import settled

TOPIC, RETRY, DLQ = "t", "%RETRY%g", "%DLQ%g"
TRIES = 2  # the group's own limit
DELAYS_MS = [1000 * s for s in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)]


@dataclass(frozen=True)
class Copy:
    body: bytes
    times: int
    origin: str  # offset id of what was sent


class RetriesOfABroker(BrokerMachine):
    """Group g fails with any message it has seen, again and again if it likes; restarts come at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.there: dict[str, list[Copy]] = {TOPIC: [], RETRY: [], DLQ: []}
        self.parked: list[tuple[int, Copy]] = []
        self.in_order = False

    async def opened(self) -> None:
        await beat(self.member, "c", consumers={"g": [TOPIC]})

    @initialize()
    def begin(self) -> None:
        self.open()
        self.run(make_topic(self.tool, TOPIC, 1))
        self.run(ok(self.tool, UpdateGroup(), SubscriptionGroupConfig(name="g", retry_times_max=TRIES).encode()))

    @rule()
    def send(self) -> None:
        body = b"%d" % len(self.there[TOPIC])
        answer = self.run(self.tool.send(TOPIC, body))
        assert answer.code == 0
        self.there[TOPIC].append(Copy(body, 0, answer.ext["msgId"]))

    @rule(data=st.data(), level=st.sampled_from([0, 0, 0, -1, 1, 5, 99]), most=st.sampled_from([None, None, 0, 5]))
    def fail(self, data: Any, level: int, most: int | None) -> None:
        seen = self._read(TOPIC) + self._read(RETRY)
        if not seen:
            return
        record = data.draw(st.sampled_from(seen))
        header = SendBack(
            log_offset=record.log_offset, group="g", delay_level=level, origin_topic=TOPIC, max_reconsume_times=most
        )
        self.run(ok(self.member, header))
        copy = Copy(record.body, record.reconsume_times + 1, self._copy_of(record).origin)
        if level < 0 or record.reconsume_times >= (TRIES if most is None else most):
            self.there[DLQ].append(copy)
        else:
            chosen = min(level or 3 + record.reconsume_times, len(DELAYS_MS))
            self.parked.append((self.clock.message_ms() + DELAYS_MS[chosen - 1], copy))

    @rule(times=st.integers(0, TRIES + 2))
    def send_itself(self, times: int) -> None:
        """As a client does that could not name the record."""
        text = f"UNIQ_KEY\x01u\x02RETRY_TOPIC\x01{TOPIC}\x02ORIGIN_MESSAGE_ID\x01elsewhere"
        answer = self.run(self.member.send(RETRY, b"by itself", 0, text, reconsume_times=times))
        assert answer.code == 0, answer.remark
        dead = times > TRIES or self.in_order
        self.there[DLQ if dead else RETRY].append(Copy(b"by itself", times, "elsewhere"))

    @rule(locked=st.booleans())
    def consume_in_order(self, locked: bool) -> None:
        wanted = LockBatch(consumer_group="g", client_id="c", queues={queue(TOPIC, 0)})
        self.run(ok(self.member, LockQueues() if locked else UnlockQueues(), wanted.encode()))
        self.in_order = locked

    @rule(ms=st.sampled_from([1, 999, 5000, 9999, 20_000, 7_200_000]))
    def wait(self, ms: int) -> None:
        """Message time passes; nobody is taken for dead because of it."""
        self.clock.not_before(self.clock.message_ms() + ms)
        now = self.clock.message_ms()
        self.there[RETRY] += [copy for due, copy in self.parked if due <= now]
        self.parked = [(due, copy) for due, copy in self.parked if due > now]

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        self.reopen(crash)

    @invariant()
    def everything_is_where_it_should_be(self) -> None:
        if hasattr(self, "broker"):
            for topic, copies in self.there.items():
                assert Counter(map(self._copy_of, self._read(topic))) == Counter(copies), topic

    def _read(self, topic: str) -> list[Record]:
        if self.broker.topics.get(topic) is None:
            return []
        self.run(settled(self.broker))
        return self.run(self.tool.read(topic))

    def _copy_of(self, record: Record) -> Copy:
        pairs = record.property_map()
        if record.topic != TOPIC:
            assert pairs["RETRY_TOPIC"] == TOPIC
        return Copy(record.body, record.reconsume_times, pairs.get("ORIGIN_MESSAGE_ID", record.offset_id))


TestRetriesOfABroker = RetriesOfABroker.TestCase
TestRetriesOfABroker.settings = FEW
