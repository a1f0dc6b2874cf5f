"""Sending and pulling: each behaviour with the compiled kernel, with the twin, and with every frame forced onto the slow path."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kappamq.clock import SystemClock
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import decode, request
from kappamq.protocol.headers.client import GetMaxOffset, GetMinOffset, PullMessage, QueryConsumerOffset
from kappamq.protocol.records import batch
from kappamq.protocol.records.batch import Member
from kappamq.protocol.records.record import iter_records
from kappamq.protocol.records.tags import java_hash
from tests.broker.running import MODES, run, running, speaking
from tests.waiting import eventually_async as eventually

pytestmark = pytest.mark.parametrize("mode", MODES)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_what_is_sent_is_pulled(tmp_path: Path, mode: str, binary: bool) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker, binary) as client:
            for number in range(40):
                answer = await client.send(
                    "t",
                    b"body %d" % number,
                    number % 4,
                    f"UNIQ_KEY\x01U{number}\x02TAGS\x01tag{number % 2}\x02KEYS\x01a b\x02own\x01välue",
                )
                assert (answer.code, answer.remark, answer.binary) == (0, None, binary)
                assert answer.ext["queueId"] == str(number % 4)
                assert answer.ext["queueOffset"] == str(number // 4)
                assert answer.ext["transactionId"] == f"U{number}"
                assert answer.ext["MSG_REGION"] == "DefaultRegion"
                assert answer.ext["msgId"].startswith("7F000001" + f"{broker.port:08X}")
            await client.subscribe("g", "t")
            answer = await client.pull("t", 3, queue_id=2)
            assert (answer.code, answer.remark, answer.binary) == (0, "FOUND", binary)
            assert answer.ext == {
                "suggestWhichBrokerId": "0",
                "nextBeginOffset": "10",
                "minOffset": "0",
                "maxOffset": "10",
            }
            records = list(iter_records(answer.body))
            assert [record.body for record in records] == [b"body %d" % (number * 4 + 2) for number in range(3, 10)]
            first = records[0]
            assert (first.queue_id, first.queue_offset, first.topic, first.tail_crc) == (2, 3, "t", True)
            assert first.property_map() == {
                "UNIQ_KEY": "U14", "TAGS": "tag0", "KEYS": "a b", "own": "välue", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
                "CLUSTER": "DefaultCluster",
            }  # fmt: skip
            if mode != "slow":
                assert broker.kernel.left_frames <= 3, "the first send makes the topic; the rest is the kernel's"

    run(test())


def test_limits_of_a_pull(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode, store={"transfer_bytes_max": 8 << 10}) as broker, speaking(broker) as client:
            for number in range(50):
                await client.send("t", bytes(1000) + b"%d" % number)
            await client.subscribe("g", "t")
            few = await client.pull("t", 0, count_max=5)
            assert len(list(iter_records(few.body))) == 5
            many = await client.pull("t", 0, count_max=1000)
            assert 5 < len(list(iter_records(many.body))) < 10, "bytes are limited, too"
            await client.send("t", bytes(100_000))
            assert (await client.pull("t", 50)).code == 0, "one record always fits"

    run(test())


def test_tags_are_filtered_by_hash(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            for number in range(30):
                await client.send(
                    "t", b"%d" % number, properties=f"UNIQ_KEY\x01U{number}\x02TAGS\x01{'abc'[number % 3]}"
                )
            await client.subscribe("g", "t", "a || c", {java_hash("a"), java_hash("c")})
            answer = await client.pull("t", 0)
            assert [int(record.body) for record in iter_records(answer.body)] == [n for n in range(30) if n % 3 != 1]
            assert answer.ext["nextBeginOffset"] == "30"
            await client.subscribe("g", "t", "nothing", {java_hash("nothing")}, version=2)
            answer = await client.pull("t", 0, subscription_version=2)
            assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
            assert answer.ext["nextBeginOffset"] == "30"

    run(test())


def test_offsets_out_of_range(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            await client.send("t", b"one")
            await client.subscribe("g", "t")
            beyond = await client.pull("t", 99)
            assert (beyond.code, beyond.remark, beyond.ext["nextBeginOffset"]) == (21, "OFFSET_OVERFLOW_BADLY", "1")
            at_end = await client.pull("t", 1)
            assert (at_end.code, at_end.remark) == (19, "OFFSET_OVERFLOW_ONE")
            unused = await client.pull("t", 0, queue_id=3)
            assert (unused.code, unused.remark) == (19, "NO_MESSAGE_IN_QUEUE")
            assert (await client.pull("t", 7, queue_id=3)).code == 21
            negative = await client.pull("t", -5)
            assert (negative.code, negative.ext["nextBeginOffset"]) == (21, "0")
            assert (await client.ask(GetMaxOffset(topic="t", queue_id=0))).ext["offset"] == "1"
            assert (await client.ask(GetMinOffset(topic="t", queue_id=0))).ext["offset"] == "0"

    run(test())


def test_an_empty_pull_waits_for_the_next_message(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client, speaking(broker) as consumer:
            await client.send("t", b"first")
            await consumer.subscribe("g", "t")
            waiting = asyncio.ensure_future(consumer.pull("t", 1, sys_flag=2, hold_ms=30_000))
            other = asyncio.ensure_future(consumer.pull("t", 0, queue_id=1, sys_flag=2, hold_ms=30_000))
            await eventually(lambda: broker.pulls.waiting.count == 2)
            await client.send("t", b"second")
            answer = await asyncio.wait_for(waiting, 5)
            assert [record.body for record in iter_records(answer.body)] == [b"second"]
            assert not other.done()
            consumer.channel.close()
            await eventually(lambda: broker.pulls.waiting.count == 0)
            await asyncio.gather(other, return_exceptions=True)

    run(test())


def test_a_pull_that_waited_in_vain_is_told_so(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            await client.send("t", b"first")
            await client.subscribe("g", "t")
            answer = await client.pull("t", 1, sys_flag=2, hold_ms=50)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "1")

    run(test())


def test_pulls_carry_commits(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            for _ in range(3):
                await client.send("t", b"x")
            await client.subscribe("g", "t")
            await client.pull("t", 0, sys_flag=3, commit_offset=2, hold_ms=1000)
            await client.pull("t", 0, sys_flag=3, commit_offset=1, hold_ms=1000)  # late: an offset never goes back
            asked = await client.ask(QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0))
            assert asked.ext["offset"] == "2"

    run(test())


def test_a_oneway_pull_is_not_answered(tmp_path: Path, mode: str) -> None:
    """Whatever it finds; the answer would be taken for that of another request. What it commits counts."""

    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            for _ in range(3):
                await client.send("t", b"x")
            await client.subscribe("g", "t")
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            for offset, hold_ms in ((0, 0), (3, 20_000), (7, 0), (-1, 0)):
                pull = PullMessage(
                    consumer_group="g", topic="t", queue_id=0, queue_offset=offset, count_max=32, sys_flag=3, commit_offset=2,
                    hold_ms=hold_ms, subscription_version=1,
                )  # fmt: skip
                writer.write(request(pull, oneway=True).encode())
            nonsense = PullMessage(
                consumer_group="g", topic="nowhere", queue_id=0, queue_offset=0, count_max=32, sys_flag=0, commit_offset=0, hold_ms=0,
                subscription_version=1,
            )  # fmt: skip
            writer.write(request(nonsense, oneway=True).encode())
            asked = request(QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0))
            asked.opaque = 4711
            writer.write(asked.encode())
            total = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 10), "big")
            answer = decode(total.to_bytes(4, "big") + await asyncio.wait_for(reader.readexactly(total), 10))
            assert (answer.opaque, answer.ext["offset"]) == (4711, "2"), "the only answer"
            assert broker.pulls.waiting.count == 0
            writer.close()

    run(test())


def test_batches_are_stored_as_single_messages_one_after_the_other(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            await client.send("t", b"before", 1)
            members = [Member(b"member %d" % n, f"UNIQ_KEY\x01B{n}\x02TAGS\x01t{n}\x02", flag=n) for n in range(5)]
            answer = await client.send_batch("t", batch.encode(members), 1)
            assert answer.code == 0, answer.remark
            assert answer.ext["queueOffset"] == "1"
            ids = answer.ext["msgId"].split(",")
            assert len(set(ids)) == 5
            records = await client.read("t", 1)
            assert [record.body for record in records] == [b"before", *(member.body for member in members)]
            assert [record.offset_id for record in records[1:]] == ids
            assert [record.flag for record in records[1:]] == [0, 1, 2, 3, 4]
            ours = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
            assert records[2].property_map() == {"UNIQ_KEY": "B1", "TAGS": "t1"} | ours
            total = sum(record.size for record in records[1:])
            assert records[1].property_map()["__BATCH#"] == f"{total:010d}"
            assert (await client.send_batch("t", batch.encode(members[:1]), 1)).code == 0
            assert (await client.read("t", 1))[-1].property_map() == {"UNIQ_KEY": "B0", "TAGS": "t0"} | ours

    run(test())


def test_log_files_follow_one_another(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        small = {"segment_bytes": 64 << 10, "message_bytes_max": 30_000}
        async with running(tmp_path, mode, store=small) as broker, speaking(broker) as client:
            sizes = [(number * 7919) % 20_000 + 1 for number in range(60)]
            for number, size in enumerate(sizes):
                answer = await client.send("t", bytes([number]) * size)
                assert answer.code == 0, answer.remark
            assert [len(record.body) for record in await client.read("t")] == sizes
            assert len(list(broker.store.log.segments())) > 8

    run(test())


def test_everything_is_there_after_a_restart(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            for number in range(200):
                await client.send("t", b"%d" % number, number % 4)
            await client.subscribe("g", "t")
            await client.pull("t", 0, sys_flag=3, commit_offset=17, hold_ms=1000)
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            assert broker.recovered.clean
            for queue_id in range(4):
                assert [int(record.body) for record in await client.read("t", queue_id)] == list(
                    range(queue_id, 200, 4)
                )
            asked = await client.ask(QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0))
            assert asked.ext["offset"] == "17"
            assert (await client.send("t", b"more", 3)).ext["queueOffset"] == "50"

    run(test())


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_sync_flush_answers_and_shows_only_what_is_on_disk(tmp_path: Path, mode: str, flush: str) -> None:
    async def test() -> None:
        async with running(tmp_path, mode, store={"flush": flush}) as broker, speaking(broker) as client:
            answers = await asyncio.gather(*(client.send("t", b"%d" % number, number % 4) for number in range(100)))
            assert {answer.code for answer in answers} == {0}
            if flush == "sync":
                assert broker.store.marks.flushed.offset == broker.store.log.end
            assert sum([len(await client.read("t", queue_id)) for queue_id in range(4)]) == 100
            assert (await client.send("t", b"x", properties="UNIQ_KEY\x01W\x02WAIT\x01false")).code == 0

    run(test())


def test_store_times_never_go_back_in_the_log(tmp_path: Path, mode: str) -> None:
    """Plain sends of one turn share a time; what the slow path appends between them has its own, and nothing may be older."""

    class Ticking(SystemClock):
        def __init__(self) -> None:
            super().__init__()
            self.now = 1_700_000_000_000

        def message_ms(self) -> int:
            self.now += 1
            return self.now

    async def test() -> None:
        async with running(tmp_path, mode, clock=Ticking()) as broker, speaking(broker) as one, speaking(broker) as two:
            await one.send("t", b"first")
            odd = "UNIQ_KEY\x01o\x02WAIT\x01false"
            sends = [(one if n % 2 else two).send("t", b"%d" % n, n % 4, None if n % 3 else odd) for n in range(90)]
            await asyncio.gather(*sends)
            records = [record for queue_id in range(4) for record in await one.read("t", queue_id)]
            times = [record.stored_ms for record in sorted(records, key=lambda record: record.log_offset)]
            assert len(times) == 91
            assert times == sorted(times)

    run(test())
