"""For tests of transactions: a producer that speaks frames, and time that passes when we say so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from kappamq.broker.broker import Broker
from kappamq.clock import VirtualClock
from kappamq.net.channel import Channel
from kappamq.protocol.bodies.clients import HeartbeatData, ProducerData
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    TRANSACTION_UNKNOWN,
    CheckTransaction,
    EndTransaction,
    HeartBeat,
)
from kappamq.protocol.records.record import Record, decode
from tests.broker.running import Speaker

COMMIT, ROLLBACK, UNKNOWN = TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, TRANSACTION_UNKNOWN


@dataclass(frozen=True)
class Begun:
    """A transaction as its producer knows it: where its half message, or a copy that it was asked about, lies."""

    log_offset: int
    transaction_offset: int
    unique: str


@dataclass(frozen=True)
class Question:
    begun: Begun
    header: CheckTransaction
    message: Record


class Transactor(Speaker):
    """A producer of one group."""

    def __init__(self, channel: Channel, group: str) -> None:
        super().__init__(channel)
        self.group = group
        self.questions: asyncio.Queue[Question] = asyncio.Queue()

    async def begin(self, topic: str, body: bytes, queue_id: int = 0, more: str = "", **changes: Any) -> Begun:
        answer = await self.half(topic, body, queue_id, more, **changes)
        assert answer.code == 0, (answer.code, answer.remark)
        assert answer.ext["queueId"] == str(queue_id)
        return Begun(int(answer.ext["msgId"][-16:], 16), int(answer.ext["queueOffset"]), answer.ext["transactionId"])

    async def half(self, topic: str, body: bytes, queue_id: int = 0, more: str = "", **changes: Any) -> Frame:
        self.sent += 1
        text = f"UNIQ_KEY\x01U{self.sent:05d}{self.group}\x02TRAN_MSG\x01true\x02PGROUP\x01{self.group}\x02{more}"
        values = {"sys_flag": 4, "producer_group": self.group} | changes
        return await self.ask(self.send_header(topic, queue_id, text, **values), body)

    async def end(self, begun: Begun, decision: int, *, from_check: bool = False, **changes: Any) -> Frame:
        values: dict[str, Any] = {
            "producer_group": self.group, "transaction_offset": begun.transaction_offset, "log_offset": begun.log_offset,
            "decision": decision, "from_check": from_check, "message_id": begun.unique, "transaction_id": begun.unique,
        }  # fmt: skip
        return await self.ask(EndTransaction(**(values | changes)))

    async def asked(self) -> Question:
        return await asyncio.wait_for(self.questions.get(), 10)

    def _heard(self, channel: Channel, frame: Frame) -> None:
        if frame.code == CheckTransaction.code:
            header = CheckTransaction.decode(frame.ext)
            begun = Begun(header.log_offset, header.transaction_offset, header.message_id or "")
            self.questions.put_nowait(Question(begun, header, decode(frame.body)))


@asynccontextmanager
async def producing(broker: Broker, group: str = "pg", *, known: bool = True) -> AsyncIterator[Transactor]:
    """A producer; the broker has had its heartbeat if it is `known`."""
    heard: list[Transactor] = []
    channel = await Channel.connect(
        f"127.0.0.1:{broker.port}", on_request=lambda channel, frame: heard[0]._heard(channel, frame)
    )
    transactor = Transactor(channel, group)
    heard.append(transactor)
    try:
        if known:
            beat = HeartbeatData(client_id=f"c-{group}", producers=[ProducerData(group=group)])
            answer = await transactor.ask(HeartBeat(), beat.encode())
            assert answer.code == 0
        yield transactor
    finally:
        channel.close()
        await channel.wait_closed()


async def pass_time(broker: Broker, clock: VirtualClock, seconds: float) -> None:
    """Message time passes, and everything that is due within it happens in order."""
    until = clock.message_ms() + round(seconds * 1000)
    while True:
        due = broker.delivery.agenda.next_ms()
        if due is not None and due <= until and not broker.delivery.agenda.is_working:
            clock.not_before(due)
            broker.delivery.agenda.run_due(clock.message_ms())
        elif not broker.delivery.agenda.is_working:
            break
        await asyncio.sleep(0)
    clock.not_before(until)


def bodies(records: list[Record]) -> list[bytes]:
    return [record.body for record in records]
