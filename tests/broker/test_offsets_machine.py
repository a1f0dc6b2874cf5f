"""Offsets as clients see them, over a real broker: they go back only where somebody asked for it, whatever comes between."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import CloneGroupOffset, ResetOffsetByBroker
from kappamq.protocol.headers.client import QueryConsumerOffset, UpdateConsumerOffset
from tests.broker.machine import FEW, BrokerMachine
from tests.broker.operating import beat, make_groups, make_topic, ok
from tests.broker.running import Speaker

QUEUES = (0, 1)
COMMIT = 3  # and it may be held, which is when commits count


class OffsetsOfABroker(BrokerMachine):
    """Group g has a push consumer, tools move it, group h is somewhere else; restarts come at any moment."""

    queues, numbers = st.sampled_from(QUEUES), st.integers(0, 9)

    def __init__(self) -> None:
        super().__init__()
        self.ends = dict.fromkeys(QUEUES, 0)
        self.committed: dict[int, int] = {}
        self.of_h: dict[int, int] = {}
        self.pending: dict[int, int] = {}

    async def opened(self) -> None:
        await beat(self.member, "c", consumers={"g": ["t"]})

    @initialize()
    def begin(self) -> None:
        self.open()
        self.run(make_topic(self.tool, "t", len(QUEUES)))
        self.run(make_groups(self.tool, "h"))
        for queue in QUEUES:
            self.send(queue, 8)

    @rule(queue=queues, count=st.integers(1, 5))
    def send(self, queue: int, count: int) -> None:
        for _ in range(count):
            assert self.run(self.tool.send("t", b"x", queue)).code == 0
        self.ends[queue] += count

    @rule(queue=queues, offset=numbers)
    def commit_with_a_pull(self, queue: int, offset: int) -> None:
        """Where it pulls from, everything before is done; a consumer that is told to go elsewhere goes there."""
        answer = self.run(self.member.pull("t", offset, queue, sys_flag=COMMIT, commit_offset=offset))
        target = self.pending.pop(queue, None)
        if target is not None and target != offset:
            assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, str(target))
            self.run(self.member.pull("t", target, queue, sys_flag=COMMIT, commit_offset=target))
        elif self.committed.get(queue, -1) < offset <= self.ends[queue]:
            self.committed[queue] = offset

    @rule(queue=queues, offset=numbers)
    def commit(self, queue: int, offset: int) -> None:
        if self._update(self.member, queue, offset):
            self.committed[queue] = max(offset, self.committed.get(queue, -1))

    @rule(queue=queues, offset=numbers)
    def commit_by_a_tool(self, queue: int, offset: int) -> None:
        if self._update(self.tool, queue, offset):
            self.committed[queue] = offset

    def _update(self, by: Speaker, queue: int, offset: int) -> bool:
        header = UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=queue, commit_offset=offset)
        answer = self.run(by.ask(header))
        assert answer.code == (0 if offset <= self.ends[queue] else ResponseCode.INVALID_PARAMETER)
        return answer.code == 0 and queue not in self.pending

    @rule(queue=queues, data=st.data())
    def reset(self, queue: int, data: Any) -> None:
        offset = data.draw(st.integers(0, self.ends[queue]))
        header = ResetOffsetByBroker(topic="t", group="g", queue_id=queue, offset=offset, timestamp=0, force=True)
        self.run(ok(self.tool, header))
        self.committed[queue] = self.pending[queue] = offset

    @rule(queue=queues, data=st.data())
    def another_group(self, queue: int, data: Any) -> None:
        offset = data.draw(st.integers(0, self.ends[queue]))
        header = UpdateConsumerOffset(consumer_group="h", topic="t", queue_id=queue, commit_offset=offset)
        self.run(ok(self.tool, header))
        self.of_h[queue] = offset

    @rule()
    def clone(self) -> None:
        if self.of_h:
            self.run(ok(self.tool, CloneGroupOffset(source_group="h", target_group="g", topic="t")))
            self.committed |= self.of_h
            self.pending |= self.of_h

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        self.reopen(crash)

    @invariant()
    def everybody_is_told_the_same(self) -> None:
        if not hasattr(self, "broker"):
            return
        for queue in QUEUES:
            asked = QueryConsumerOffset(consumer_group="g", topic="t", queue_id=queue, zero_if_not_found=False)
            answer = self.run(self.tool.ask(asked))
            told = int(answer.ext["offset"]) if answer.code == 0 else None
            assert told == self.committed.get(queue)


TestOffsetsOfABroker = OffsetsOfABroker.TestCase
TestOffsetsOfABroker.settings = FEW
