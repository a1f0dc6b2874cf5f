"""What a group may hold when its leader dies: many queues, open transactions, and timers that are due in hours."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.wire import Refused, Wire
from kappamq.protocol import names
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.frame import request
from kappamq.protocol.headers.admin import GetBrokerRuntimeInfo, UpdateTopic
from kappamq.protocol.headers.client import SendMessageV2

GROUP, TOPIC = "backlog", "backlog"
QUEUES_OF_A_TOPIC = 8
AT_ONCE = 512
FIRST_S, SPREAD_S = 3600, 36_000
BODY = b"x" * 100
_OPAQUE, _NUMBER, _DUE = 100_000_000, "222222222", "3333333333333"

PROPERTIES: dict[str, object] = {
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 20 * 300_000,
    "maxHashSlotNum": 500_000,
    "maxIndexNum": 2_000_000,
    "transactionTimeOut": 10_000,
    "transactionCheckInterval": 60_000,
}
"""Files of a size for so much, and nobody asks about so many transactions all the time."""


@dataclass(frozen=True, slots=True)
class Backlog:
    queues: int
    transactions: int
    timers: int


FULL = Backlog(queues=20_000, transactions=100_000, timers=1_000_000)


def part_of_full(part: float) -> Backlog:
    return Backlog(int(FULL.queues * part), int(FULL.transactions * part), int(FULL.timers * part))


def fill(address: str, backlog: Backlog, say: Callable[[str], None] = lambda text: None) -> None:
    """Have the leader at `address` store it. Raises Refused if it does not take something."""
    began = time.monotonic()
    with Wire(address, timeout=60) as wire:
        topics = max(1, backlog.queues // QUEUES_OF_A_TOPIC)
        for number in range(topics):
            _make_topic(wire, _topic(number))
        _send(wire, _plain(topics), topics * QUEUES_OF_A_TOPIC)
        say(f"{topics * QUEUES_OF_A_TOPIC:,} queues after {time.monotonic() - began:.0f} s")
        _send(wire, _frames(f"PGROUP\x01{GROUP}\x02TRAN_MSG\x01true\x02", sys_flag=4), backlog.transactions)
        say(f"{backlog.transactions:,} open transactions after {time.monotonic() - began:.0f} s")
        _send(wire, _frames(f"TIMER_DELIVER_MS\x01{_DUE}\x02"), backlog.timers)
        say(f"{backlog.timers:,} timers after {time.monotonic() - began:.0f} s")
        for topic, count in ((names.HALF_TOPIC, backlog.transactions), (names.TIMER_TOPIC, backlog.timers)):
            assert wire.max_offset(topic, 0) >= count, f"{topic} does not hold what was sent"


def _topic(number: int) -> str:
    return f"{TOPIC}-{number:05d}"


def _make_topic(wire: Wire, name: str) -> None:
    header = UpdateTopic(
        topic=name, default_topic="TBW102", read_queues=QUEUES_OF_A_TOPIC, write_queues=QUEUES_OF_A_TOPIC, permission=6,
        filter_type="SINGLE_TAG", sys_flag=0,
    )  # fmt: skip
    answer = wire.ask(header)
    if answer.code:
        raise Refused(f"topic {name}", answer)


def _plain(topics: int) -> Callable[[int], bytes]:
    def frame(number: int) -> bytes:
        topic, queue = divmod(number, QUEUES_OF_A_TOPIC)
        return _frame(_topic(topic % topics), queue, "", 0, _OPAQUE + number)

    return frame


def _frames(properties: str, sys_flag: int = 0) -> Callable[[int], bytes]:
    """Frames that differ in their numbers and times only are put together from pieces."""
    whole = _frame(_topic(0), 0, properties, sys_flag, _OPAQUE)
    now_ms = time.time_ns() // 1_000_000 + FIRST_S * 1000

    def frame(number: int) -> bytes:
        data = whole.replace(b"%d" % _OPAQUE, b"%d" % (_OPAQUE + number)).replace(_NUMBER.encode(), b"%09d" % number)
        return data.replace(_DUE.encode(), b"%d" % (now_ms + number * 7919 % (SPREAD_S * 1000)))

    return frame


def _frame(topic: str, queue_id: int, properties: str, sys_flag: int, opaque: int) -> bytes:
    header = SendMessageV2(
        producer_group=GROUP, topic=topic, default_topic="TBW102", default_topic_queues=QUEUES_OF_A_TOPIC,
        queue_id=queue_id, sys_flag=sys_flag, born_ms=time.time_ns() // 1_000_000, flag=0,
        properties=f"UNIQ_KEY\x01{properties[:5].encode().hex():0>16}{_NUMBER}\x02WAIT\x01true\x02{properties}",
        reconsume_times=0, unit_mode=False, batch=False,
    )  # fmt: skip
    return request(header, BODY, opaque=opaque).encode()


def _send(wire: Wire, frame: Callable[[int], bytes], count: int) -> None:
    """With so many on their way at once."""
    for start in range(0, count, AT_ONCE):
        numbers = range(start, min(count, start + AT_ONCE))
        wire.send_frames(b"".join(frame(number) for number in numbers))
        for _ in numbers:
            if (answer := wire.receive()).code:
                raise Refused("a message of the backlog", answer)


def timers_behind(address: str) -> int:
    """How many timers a leader does not have in its files yet."""
    with Wire(address) as wire:
        return int(KVTable.decode(wire.ask(GetBrokerRuntimeInfo()).body).table["timerOffsetBehind"])
