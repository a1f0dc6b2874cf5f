from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from kappamq.client.admin.admin import AsyncAdmin
from kappamq.client.pulling import pulling
from kappamq.client.pulling.damage import DamageReports
from kappamq.client.pulling.process_queue import Limits, ProcessQueue
from kappamq.client.pulling.pulling import Interest, messages_in, pull
from kappamq.message import DamagedMessage, MessageQueue, PullResult, PullStatus
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.headers.client import PULL_SUBSCRIPTION, PullMessage
from kappamq.protocol.records import batch
from kappamq.protocol.records.record import SYS_COMPRESSED, SYS_INNER_BATCH, SYS_NEED_UNWRAP, Record
from tests.client.fake import FakeCluster, fake_cluster
from tests.client.loop import on_loop

QUEUE = MessageQueue("tea", "broker-0", 0)
RECORD = Record(topic="tea", body=b"x", properties="TAGS\x01hot\x02", queue_offset=5)


async def pulled(cluster: FakeCluster, offset: int, wanted: str = "*", **options: object) -> PullResult:
    async with AsyncAdmin(**cluster.options()) as admin:
        how = {"count": 10, "hold_ms": 0, "timeout": 10.0, **options}
        return await pull(admin.start(), "g", QUEUE, offset, Interest("tea", wanted, 7), **how)  # type: ignore[arg-type]


@on_loop
async def test_each_answer_has_its_status() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, b"a", b"b", tag="hot")
        found = await pulled(cluster, 0)
        assert (found.status, [message.body for message in found.messages]) == (PullStatus.FOUND, [b"a", b"b"])
        assert (found.next_offset, found.min_offset, found.max_offset) == (2, 0, 2)
        assert found.messages[0].queue == QUEUE
        assert (await pulled(cluster, 2)).status is PullStatus.NO_NEW
        illegal = await pulled(cluster, 9)
        assert (illegal.status, illegal.next_offset) == (PullStatus.OFFSET_ILLEGAL, 2)


@on_loop
async def test_a_stranger_sends_its_subscription_along() -> None:
    async with fake_cluster(tea=1) as cluster:
        await pulled(cluster, 0, introduced=False)
        header = PullMessage.decode(cluster.broker.seen(RequestCode.PULL_MESSAGE)[0].ext)
        assert (header.sys_flag, header.subscription, header.subscription_version) == (PULL_SUBSCRIPTION, "*", 7)


@on_loop
async def test_any_other_answer_is_an_error() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.script(RequestCode.PULL_MESSAGE, ResponseCode.NO_PERMISSION)
        with pytest.raises(Exception, match="scripted 16"):
            await pulled(cluster, 0)


@on_loop
async def test_tags_are_compared_exactly() -> None:
    async with fake_cluster(tea=1) as cluster:
        for tag in ("Aa", "BB", ""):  # two with the same hash
            cluster.broker.put("tea", 0, b"x", tag=tag)
        for wanted, found in (("Aa", ["Aa"]), ("*", ["Aa", "BB", ""])):
            result = await pulled(cluster, 0, wanted=wanted, introduced=False)
            assert [message.tags for message in result.messages] == found
            assert result.missing == 0


def test_a_record_that_holds_a_batch_is_unwrapped() -> None:
    inner = batch.encode([batch.Member(b"1"), batch.Member(b"2")])
    record = replace(RECORD, body=inner, sys_flag=SYS_NEED_UNWRAP | SYS_INNER_BATCH, properties="INNER_BASE\x0140\x02")
    assert [(m.body, m.queue_offset) for m in messages_in(record.encode(), "b", DamageReports())] == [
        (b"1", 40),
        (b"2", 41),
    ]


def test_bodies_are_unpacked_and_one_that_cannot_be_is_handed_out_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    good = replace(RECORD, body=zlib.compress(b"tea"), sys_flag=SYS_COMPRESSED)
    bad = replace(RECORD, body=b"not compressed at all", sys_flag=SYS_COMPRESSED)
    with caplog.at_level(logging.WARNING):
        first, second, third = messages_in(good.encode() + bad.encode() + RECORD.encode(), "b", DamageReports())
    assert (first.body, first.sys_flag) == (b"tea", 0)
    assert (second.body, second.sys_flag) == (b"not compressed at all", SYS_COMPRESSED)
    assert third.body == b"x"
    assert "cannot be decompressed" in caplog.text


def test_an_interest_tells_the_broker_the_hashes() -> None:
    body = Interest("tea", "Aa || b", 9).to_body()
    assert (body.expression, body.tags, body.codes, body.version) == ("Aa || b", {"Aa", "b"}, {2112, 98}, 9)


def flipped(at: int, bit: int = 0) -> Callable[[bytes], bytes]:
    """Damage: one bit of the record, counted from its end if `at` is negative."""

    def flip(data: bytes) -> bytes:
        spoilt = bytearray(data)
        spoilt[at] ^= 1 << bit
        return bytes(spoilt)

    return flip


async def read_all(cluster: FakeCluster, wanted: str = "*") -> tuple[list[bytes], list[DamagedMessage], int]:
    """Everything of the queue by pulls, each from where the last one ended; and how many pulls that took."""
    bodies: list[bytes] = []
    damaged: dict[int, DamagedMessage] = {}
    offset = pulls = 0
    while True:
        result = await pulled(cluster, offset, wanted=wanted, introduced=False)
        pulls += 1
        bodies += [message.body for message in result.messages]
        for one in result.damaged:
            damaged.setdefault(one.fingerprint, one)
        if result.status is PullStatus.NO_NEW:
            return bodies, list(damaged.values()), pulls
        assert result.next_offset > offset, "a pull that leads nowhere"
        offset = result.next_offset


BODIES = [b"body %d" % number for number in range(9)]
FLIPS = {
    "size up": flipped(3, 3), "size huge": flipped(0, 5), "size negative": flipped(0, 7), "size tiny": flipped(3, 6), "magic": flipped(4),
    "body crc": flipped(9), "queue offset far": flipped(22), "queue offset near": flipped(27, 1), "sys flag": flipped(39, 4),
    "body length": flipped(86), "body length by one": flipped(87), "body": flipped(90), "topic length": flipped(88 + 6),
    "properties length": flipped(88 + 6 + 1 + 3), "properties": flipped(-30), "tail crc": flipped(-5), "cut short": lambda data: data[:-7],
    "zeros": lambda data: bytes(len(data)),
}  # fmt: skip


@pytest.mark.parametrize("flip", FLIPS)
@pytest.mark.parametrize("places", [(0,), (4,), (8,), (3, 4), (0, 1, 8)])
@pytest.mark.parametrize("tagged", [False, True])
@on_loop
async def test_only_what_is_damaged_is_lost(flip: str, places: tuple[int, ...], tagged: bool) -> None:
    async with fake_cluster(tea=1) as cluster:
        broker = cluster.broker
        for body in BODIES:
            broker.put("tea", 0, body, tag="hot", checked="yes")
            if tagged:
                broker.put("tea", 0, b"other", tag="cold")
        for records in broker.queues.values():
            records[:] = [replace(record, tail_crc=True) for record in records]
        step = 2 if tagged else 1
        for place in places:
            broker.spoil["tea", 0, place * step] = FLIPS[flip]
        bodies, damaged, pulls = await read_all(cluster, "hot" if tagged else "*")
        assert bodies == [body for number, body in enumerate(BODIES) if number not in places]
        if flip != "zeros":  # nothing tells one stretch of zeros from another
            assert len(damaged) == len(places)
        if not tagged and flip not in ("zeros", "queue offset near"):
            assert [one.queue_offset for one in damaged] == list(places)
        assert pulls <= 2 + len(BODIES) * step


@on_loop
async def test_a_queue_offset_without_a_checksum_over_it_costs_only_its_own_message() -> None:
    for offset, at, bit in (
        (4, 27, 1),
        (4, 27, 0),
        (0, 27, 2),
        (8, 21, 0),
        (4, 20, 7),
    ):  # 4 as 6, as 5, 0 as 4, too far
        async with fake_cluster(tea=1) as cluster:
            cluster.broker.put("tea", 0, *BODIES)
            cluster.broker.spoil["tea", 0, offset] = flipped(at, bit)
            bodies, damaged, _pulls = await read_all(cluster)
            assert len(bodies) == 8, (offset, at, bit)
            assert [one.queue_offset for one in damaged] in ([offset], [offset + 1]), (
                "or its neighbour of the same number"
            )
            assert "claims queue offset" in damaged[0].reason


@on_loop
async def test_a_body_that_looks_like_records_is_not_taken_for_some() -> None:
    fake = b"".join(
        Record(topic="tea", body=b"never sent", queue_offset=5 + number, log_offset=99_000).encode()
        for number in range(3)
    )
    for flip in ("size up", "size huge", "size tiny", "magic", "body length", "zeros"):
        async with fake_cluster(tea=1) as cluster:
            for number, body in enumerate(BODIES):
                cluster.broker.put("tea", 0, fake if number == 4 else body)
            cluster.broker.spoil["tea", 0, 4] = FLIPS[flip]
            bodies, damaged, _pulls = await read_all(cluster)
            assert bodies == BODIES[:4] + BODIES[5:], flip
            assert damaged[0].queue_offset == 4


@on_loop
async def test_what_a_broker_leaves_out_is_noticed() -> None:
    async with fake_cluster(tea=1) as cluster:
        cluster.broker.put("tea", 0, *BODIES)
        cluster.broker.spoil["tea", 0, 4] = lambda data: b""
        result = await pulled(cluster, 0)
        assert (len(result.messages), result.damaged, result.missing, result.next_offset) == (8, (), 1, 9)


def put_packed(cluster: FakeCluster, *records: Record) -> None:
    """Store records with flags and properties of their own."""
    for record in records:
        cluster.broker.put("tea", 0, record.body)
        stored = cluster.broker.queues["tea", 0]
        stored[-1] = replace(stored[-1], sys_flag=record.sys_flag, properties=record.properties)


def packed(body: bytes, tag: str = "hot") -> Record:
    return replace(RECORD, body=zlib.compress(body), sys_flag=SYS_COMPRESSED, properties=f"TAGS\x01{tag}\x02")


@on_loop
async def test_one_answer_unpacks_no_more_than_its_budget() -> None:
    async with fake_cluster(tea=1) as cluster:
        put_packed(cluster, *[packed(bytes(30 << 20))] * 5)
        result = await pulled(cluster, 0)
        assert (len(result.messages), result.next_offset, result.missing) == (2, 2, 0)
        assert [len(message.body) for message in result.messages] == [30 << 20] * 2
        assert result.max_offset == 5, "the rest is still there"
        held = ProcessQueue(QUEUE, 0, Limits(bytes_max=50 << 20))
        held.add(result.messages, result.next_offset)
        assert (held.bytes, held.next_offset) == (60 << 20, 2), "flow control counts what is unpacked"
        assert held.full() is not None


@pytest.mark.parametrize("wanted", ["*", "hot"])
@on_loop
async def test_what_an_answer_leaves_out_comes_with_the_next_one(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "UNPACKED_BYTES_MAX", 1000)
    bodies = [b"%d" % number * 300 for number in range(10, 22)] + [b"long" * 1000, b"longer" * 1000, b"short"]
    async with fake_cluster(tea=1) as cluster:
        for number, body in enumerate(bodies):
            put_packed(cluster, packed(body), packed(b"cold", tag="cold"))
            cluster.broker.put("tea", 0, b"plain %d" % number, tag="hot")
        cluster.broker.spoil["tea", 0, 4] = FLIPS["body crc"]
        found, damaged, pulls = await read_all(cluster, wanted)
        expected = [
            one
            for number, body in enumerate(bodies)
            for one in (body, b"cold", b"plain %d" % number)
            if one != b"cold" or (wanted == "*" and number != 1)
        ]
        assert found == expected, "each once and in order"
        assert [one.queue_offset for one in damaged] == ([4] if wanted == "*" else [])
        assert pulls > len(bodies) // 2


@on_loop
async def test_messages_of_a_batch_count_beside_their_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "UNPACKED_BYTES_MAX", 3 * pulling.MESSAGE_BYTES)
    inner = zlib.compress(batch.encode([batch.Member(b"")] * 2))
    async with fake_cluster(tea=1) as cluster:
        flags = SYS_NEED_UNWRAP | SYS_INNER_BATCH | SYS_COMPRESSED
        put_packed(cluster, *[replace(RECORD, body=inner, sys_flag=flags, properties="")] * 4)
        result = await pulled(cluster, 0)
        assert len(result.messages) == 4, "two batches: the second still found room"
        assert result.next_offset == 3, "behind the second batch's two messages"


@on_loop
async def test_a_body_too_long_for_anybody_does_not_stop_its_queue(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pulling, "UNPACKED_BYTES_MAX", 1000)
    monkeypatch.setattr(pulling, "BODY_BYTES_MAX", 2000)
    endless = packed(bytes(5000))
    async with fake_cluster(tea=1) as cluster:
        put_packed(cluster, packed(b"first"), endless, packed(b"last"))
        found, damaged, _pulls = await read_all(cluster)
        assert (found, damaged) == ([b"first", endless.body, b"last"], [])
        assert "longer than 2000 bytes" in caplog.text


@on_loop
async def test_a_record_of_several_queues_does_not_lead_beyond_what_was_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own offset is that of another queue."""
    monkeypatch.setattr(pulling, "UNPACKED_BYTES_MAX", 10)
    shared = replace(packed(b"shared by two queues"), properties="INNER_MULTI_DISPATCH\x01tea,cake\x02")
    async with fake_cluster(tea=1) as cluster:
        put_packed(cluster, shared, packed(b"second"), packed(b"third"))
        stored = cluster.broker.queues["tea", 0]
        stored[0] = replace(stored[0], topic="cake", queue_offset=1)
        result = await pulled(cluster, 0)
        assert ([message.body for message in result.messages], result.next_offset) == ([b"shared by two queues"], 1)


@on_loop
async def test_a_batch_of_far_too_many_messages_is_a_damaged_record() -> None:
    bomb = zlib.compress(batch.encode([batch.Member(b"")]) * (batch.INNER_MEMBERS_MAX + 1))
    flags = SYS_NEED_UNWRAP | SYS_INNER_BATCH | SYS_COMPRESSED
    async with fake_cluster(tea=1) as cluster:
        put_packed(cluster, replace(RECORD, body=bomb, sys_flag=flags), packed(b"good"))
        found, damaged, _pulls = await read_all(cluster)
        assert found == [b"good"]
        assert [(one.queue_offset, "262144" in one.reason) for one in damaged] == [(0, True)]
