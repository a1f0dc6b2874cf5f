"""Questions to producers: whom, when, how often and how fast; and what is open holds nothing up."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.requests.request import Request
from kappamq.broker.sending.gate import FAILED
from kappamq.broker.transactions import checks as transaction_checks
from kappamq.broker.transactions.half_records import GROUP
from kappamq.clock import VirtualClock
from kappamq.errors import NotAvailable
from kappamq.protocol.frame import request
from kappamq.protocol.headers.client import EndTransaction
from kappamq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC, TRANSACTION_GIVEN_UP_TOPIC
from tests.broker.operating import make_topic
from tests.broker.running import Speaker, on_disk, run, running, speaking
from tests.broker.transacting import COMMIT, ROLLBACK, bodies, pass_time, producing
from tests.waiting import eventually_async as eventually

Test = Callable[[Broker, Speaker, VirtualClock], Awaitable[None]]


def with_clock(test: Test, root: Path, **options: Any) -> None:
    async def main() -> None:
        clock = VirtualClock()
        async with running(root, "auto", clock=clock, **options) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            await test(broker, client, clock)

    run(asyncio.wait_for(main(), 60))


# -- whom, when, how often -------------------------------------------------------------------------------------------------


def test_a_producer_is_asked_in_time_and_again_and_then_no_more(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            begun = await producer.begin("t", b"x")
            asked_at: list[int] = []
            start = clock.message_ms()
            while (oldest := broker.delivery.halves.halves.oldest) is not None:
                if oldest.checks > len(asked_at):
                    asked_at.append(clock.message_ms() - start)
                await pass_time(broker, clock, 0.5)
            assert asked_at == [6000, 36_000, 66_000]
            assert clock.message_ms() - start == 96_000
            times = [(await producer.asked()).message.property_map()["TRANSACTION_CHECK_TIMES"] for _ in asked_at]
            assert times == ["1", "2", "3"]
            (given_up,) = await client.read(TRANSACTION_GIVEN_UP_TOPIC)
            assert (given_up.body, given_up.property_map()["REAL_TOPIC"]) == (b"x", "t")
            assert (await producer.end(begun, ROLLBACK)).code == 4
            assert await client.read("t") == []

    with_clock(test, tmp_path, transaction_check_max=3)


def test_the_question_is_the_message_as_it_will_be_and_names_the_copy(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            begun = await producer.begin("t", b"x", 3, "KEYS\x01k\x02", flag=9)
            await pass_time(broker, clock, 6)
            question = await producer.asked()
            message, header = question.message, question.header
            assert (message.topic, message.queue_id, message.body, message.flag) == ("t", 3, b"x", 9)
            assert (header.topic, header.message_id, header.transaction_id) == ("t", begun.unique, begun.unique)
            first, copy = await client.read(HALF_TOPIC)
            assert (header.log_offset, header.transaction_offset) == (copy.log_offset, copy.queue_offset)
            assert (message.log_offset, message.queue_offset) == (copy.log_offset, copy.queue_offset)
            assert header.offset_id == copy.offset_id
            assert (copy.prepared_offset, copy.born_ms) == (first.log_offset, first.born_ms)
            named = message.property_map()
            assert (named["KEYS"], named["PGROUP"], named["UNIQ_KEY"]) == ("k", "pg", begun.unique)

    with_clock(test, tmp_path)


def test_any_live_producer_of_the_group_is_asked_and_nobody_else(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker, "other") as other, producing(broker) as second:
            async with producing(broker) as first:
                begun = await first.begin("t", b"x")
            await eventually(lambda: len(broker.clients.producers["pg"]) == 1)
            await pass_time(broker, clock, 6)
            question = await second.asked()
            assert question.begun.unique == begun.unique
            assert (await second.end(question.begun, COMMIT, from_check=True)).code == 0
            assert other.questions.empty()
            assert bodies(await client.read("t")) == [b"x"]

    with_clock(test, tmp_path)


def test_where_nobody_can_be_asked_nothing_is_counted(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker, known=False) as producer:
            await producer.begin("t", b"x")
        await pass_time(broker, clock, 3600)
        assert len(await client.read(HALF_TOPIC)) == 1, "not even copied"
        async with producing(broker) as producer:
            await pass_time(broker, clock, 30)
            question = await producer.asked()
            assert question.message.property_map()["TRANSACTION_CHECK_TIMES"] == "1"
            assert (await producer.end(question.begun, COMMIT, from_check=True)).code == 0
        assert bodies(await client.read("t")) == [b"x"]

    with_clock(test, tmp_path, transaction_check_max=3)


def test_there_is_an_end_to_waiting_for_producers(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker, known=False) as producer:
            await producer.begin("t", b"x")
        await pass_time(broker, clock, 89)
        assert len(broker.delivery.halves.halves) == 1
        await pass_time(broker, clock, 60)
        assert bodies(await client.read(TRANSACTION_GIVEN_UP_TOPIC)) == [b"x"]

    with_clock(test, tmp_path, transaction_keep_ms=90_000)


def test_who_asks_for_time_gets_it(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            for seconds in ("60", "0", "-1", "nonsense"):
                await producer.begin("t", seconds.encode(), more=f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{seconds}\x02")
            await pass_time(broker, clock, 0)
            assert (await producer.asked()).message.body == b"0"
            await pass_time(broker, clock, 6)
            assert {(await producer.asked()).message.body for _ in range(2)} == {b"-1", b"nonsense"}
            await pass_time(broker, clock, 53.9)
            early = {producer.questions.get_nowait().message.body for _ in range(producer.questions.qsize())}
            assert b"60" not in early
            await pass_time(broker, clock, 0.1)
            await eventually(lambda: not producer.questions.empty())
            assert b"60" in [(await producer.asked()).message.body for _ in range(producer.questions.qsize())]

    with_clock(test, tmp_path)


def test_the_rate_of_questions_is_bounded(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            for number in range(300):
                await producer.begin("t", b"%d" % number)
            await pass_time(broker, clock, 6)
            counts = []
            for _ in range(4):
                await pass_time(broker, clock, 1)
                counts.append(sum(half.checks for half in broker.delivery.halves.halves._live.values()))
            # A hundred a second, and a tenth of that at once in the beginning.
            assert counts == [111, 211, 300, 300]
            assert [(await producer.asked()).message.body for _ in range(300)] == [b"%d" % n for n in range(300)]

    with_clock(test, tmp_path, transaction_checks_per_s=100)


# -- at the same moment ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["twin", "auto"])
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_producer_and_answer_decide_at_the_same_moment(tmp_path: Path, kernel: str, flush: str) -> None:
    """Both name different copies of the same half. One of them decides; the message is there once or not at all."""

    async def main() -> None:
        clock = VirtualClock()
        async with running(tmp_path, kernel, clock=clock, store={"flush": flush}) as broker, speaking(broker) as client:
            await make_topic(client, "t", 1)
            async with producing(broker) as producer, producing(broker) as second:
                expected = []
                for number in range(12):
                    begun = await producer.begin("t", b"%d" % number)
                    await pass_time(broker, clock, 6)
                    asked = [asyncio.create_task(each.asked()) for each in (producer, second)]
                    (done,), (other,) = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                    other.cancel()
                    question = done.result()
                    decisions = (COMMIT, COMMIT if number % 2 else ROLLBACK)
                    answers = await asyncio.gather(
                        producer.end(begun, decisions[0]), second.end(question.begun, decisions[1], from_check=True)
                    )
                    codes = [answer.code for answer in answers]
                    assert codes == [0, 0] if number % 2 else sorted(codes) == [0, 4], codes
                    if codes[0] == 0:
                        expected.append(b"%d" % number)
                assert bodies(await client.read("t")) == expected

    run(asyncio.wait_for(main(), 60))


def test_an_end_finds_a_copy_that_was_made_in_the_same_turn(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            begun = await producer.begin("t", b"x")
            clock.advance(6)
            task = asyncio.create_task(producer.end(begun, COMMIT))
            half = broker.delivery.halves.halves.get(begun.log_offset)
            assert half is not None
            original = broker.delivery.transactions.end

            def copy_first(request: Any) -> Any:
                broker.delivery.halves.check(half, broker.delivery.halves.load(half))
                assert half.log_offset >= broker.store.log.end, "not written yet"
                return original(request)

            broker.bursts.handlers[37] = copy_first
            assert (await task).code == 0
            assert bodies(await client.read("t")) == [b"x"]
            assert len(broker.delivery.halves.halves) == 0
            broker.bursts.handlers[37] = original
            # The same with an answer to a question that left before the copy was written.
            begun = await producer.begin("t", b"y")
            half = broker.delivery.halves.halves.get(begun.log_offset)
            assert half is not None
            broker.delivery.halves.check(half, broker.delivery.halves.load(half))
            assert half.log_offset >= broker.store.log.end
            header = EndTransaction(
                producer_group="pg", transaction_offset=half.queue_offset, log_offset=half.log_offset, decision=COMMIT,
                from_check=True, message_id=begun.unique,
            )  # fmt: skip
            connection = next(iter(broker.clients.producers["pg"]))
            broker.delivery.transactions.end(Request(header, connection, request(header, oneway=True)))
            assert bodies(await client.read("t")) == [b"x", b"y"]

    with_clock(test, tmp_path)


# -- what is open holds nothing up -----------------------------------------------------------------------------------------


def test_positions_pass_an_old_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its producers are away; others go on, and what a start has to read stays little."""
    monkeypatch.setattr(transaction_checks, "BEHIND_MAX", 10)

    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker, "gone", known=False) as gone:
            begun = await gone.begin("t", b"old")
            async with producing(broker) as producer:
                for number in range(40):
                    one = await producer.begin("t", b"%d" % number)
                    await producer.end(one, ROLLBACK)
                    await pass_time(broker, clock, 0)
                    assert broker.delivery.halves.behind <= 10 + 4 + 1
            half = broker.delivery.halves.halves.get(begun.log_offset)
            assert half is not None
            assert (half.checks, half.log_offset > begun.log_offset) == (0, True)
            broker.store.request_flush()
            at = (HALF_TOPIC, 0)
            await eventually(lambda: (broker.offsets.get(GROUP, *at) or 0) == half.queue_offset)
            assert (broker.offsets.get(GROUP, HALF_OP_TOPIC, 0) or 0) > 20
            assert (await gone.end(begun, COMMIT)).code == 0, "by the name it was given first"
            assert bodies(await client.read("t")) == [b"old"]

    with_clock(test, tmp_path)


@pytest.mark.parametrize("cold", [False, True])
def test_an_open_half_survives_retention(tmp_path: Path, cold: bool) -> None:
    store = {
        "segment_bytes": 64 << 10, "message_bytes_max": 16 << 10, "delete_hours": (), "clean_interval_ms": 3_600_000,
        "disk_clean_ratio": 1.0, "retention_hours": 1,
    }  # fmt: skip

    async def main() -> None:
        clock = VirtualClock()
        async with running(tmp_path, "auto", clock=clock, store=store) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            async with producing(broker, known=False) as producer:
                begun = [await producer.begin("t", b"%d" % number) for number in range(50)]
                assert (await producer.end(begun[0], ROLLBACK)).code == 0
            for _ in range(60):
                await client.send("t", bytes(4000), 1)
            segments = list(broker.store.log.segments())
            for segment in segments[:3]:
                os.utime(segment.path, (1, 1))
            await on_disk(broker)
            if cold:
                broker.kernel.hot_from = broker.store.log.end
            assert await broker.upkeep.delete_expired(asked=True) == 3
            assert broker.store.log.min == segments[3].start > begun[-1].log_offset
        async with running(tmp_path, "auto", clock=clock, store=store) as broker, speaking(broker) as client:
            async with producing(broker) as producer:
                assert len(broker.delivery.halves.halves) == 49
                assert (await producer.end(begun[7], COMMIT)).code == 0, "by the name it was given first"
                wrong = await producer.end(begun[8], COMMIT, producer_group="wrong")
                assert (wrong.code, "producer group wrong" in (wrong.remark or "")) == (1, True)
                assert (await producer.end(begun[7], COMMIT)).code == 0
                gone = await producer.end(begun[0], COMMIT)
                assert gone.code == 1, "nobody knows it any more"
                await pass_time(broker, clock, 40)
                for _ in range(48):
                    question = await producer.asked()
                    assert (await producer.end(question.begun, COMMIT, from_check=True)).code == 0
            assert sorted(map(int, bodies(await client.read("t")))) == list(range(1, 50))

    run(asyncio.wait_for(main(), 60))


def test_halves_that_lie_on_disk_only_are_read_beside_the_loop(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            for number in range(50):
                await producer.begin("t", b"%d" % number)
            ended = await producer.begin("t", b"ended")
            broker.kernel.hot_from = broker.store.log.end
            clock.advance(6)
            assert broker.delivery.agenda.run_due(clock.message_ms())
            assert broker.delivery.checks.due_ms() is None, "a worker reads"
            assert (await producer.end(ended, ROLLBACK)).code == 0
            await pass_time(broker, clock, 0.2)
            assert {(await producer.asked()).message.body for _ in range(50)} == {b"%d" % n for n in range(50)}

    with_clock(test, tmp_path)


def test_a_damaged_half_is_forgotten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            begun, good = await producer.begin("t", b"bad" * 50), await producer.begin("t", b"good")
            path = next(broker.store.log.segments()).path
            data = bytearray(path.read_bytes())
            data[data.index(b"badbad")] ^= 1
            with path.open("r+b") as file:
                file.write(data)
            answer = await producer.end(begun, COMMIT)
            assert (answer.code, "cannot be read" in (answer.remark or "")) == (1, True)
            await pass_time(broker, clock, 6)
            assert (await producer.asked()).message.body == b"good"
            assert "is damaged" in caplog.text
            assert (await producer.end(good, COMMIT)).code == 0
            assert len(broker.delivery.halves.halves) == 0
            assert bodies(await client.read("t")) == [b"good"]

    with_clock(test, tmp_path)


def test_a_log_that_takes_nothing_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            await producer.begin("t", b"x")
            broker.gate.close(FAILED, NotAvailable("for a test"), for_all=True)
            await pass_time(broker, clock, 6)
            assert "is postponed: for a test" in caplog.text
            broker.gate.open(FAILED)
            await pass_time(broker, clock, 30)
            assert (await producer.asked()).message.body == b"x"

    with_clock(test, tmp_path)


def test_a_producer_that_leaves_at_the_last_moment(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            begun = await producer.begin("t", b"x")
            half = broker.delivery.halves.halves.get(begun.log_offset)
            assert half is not None
            record = broker.delivery.halves.load(half)
            members = broker.clients.producers.pop("pg")
            broker.delivery.checks._ask(half, record)
            assert (half.checks, half.due_ms) == (0, clock.message_ms() + 30_000)
            broker.clients.producers["pg"] = members
            next(iter(members)).pause_writing()
            assert broker.delivery.checks._producer("pg") is None, "it does not take what it was sent before"

    with_clock(test, tmp_path)


# -- what must not happen ----------------------------------------------------------------------------------------------------


def test_a_cold_half_that_is_far_behind_is_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            for body in (b"old", b"too"):
                await producer.begin("t", body)
            for _ in range(30):
                await producer.end(await producer.begin("t", b"x"), ROLLBACK)
            await producer.begin("t", b"young")
            monkeypatch.setattr(transaction_checks, "BEHIND_MAX", 10)
            broker.kernel.hot_from = broker.store.log.end
            await pass_time(broker, clock, 0)
            assert bodies(await client.read(HALF_TOPIC))[33:] == [b"old", b"too"], "not the one that is no hindrance"

    with_clock(test, tmp_path)


@pytest.mark.parametrize("cold", [False, True])
def test_whatever_fails_is_tried_again(
    tmp_path: Path, cold: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A half that fails holds up no other, and none leaves the schedule."""

    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            begun = [await producer.begin("t", body) for body in (b"bad disk", b"bug", b"good")]
            if cold:
                broker.kernel.hot_from = broker.store.log.end
            half_log = broker.delivery.halves
            check, record_at = half_log.check, half_log.record_at
            with monkeypatch.context() as patch:

                def bad_check(half: Any, record: Any) -> Any:
                    if record.body == b"bug":
                        raise ZeroDivisionError("for a test")
                    return check(half, record)

                def bad_read(at: int) -> Any:
                    if at == begun[0].log_offset:
                        raise OSError("for a test")
                    return record_at(at)

                patch.setattr(half_log, "check", bad_check)
                patch.setattr(half_log, "record_at", bad_read)
                await pass_time(broker, clock, 6)
                assert (await producer.asked()).message.body == b"good"
                assert caplog.text.count("is postponed") == 2
            await pass_time(broker, clock, 30)
            assert {(await producer.asked()).message.body for _ in range(3)} == {b"bad disk", b"bug", b"good"}

    with_clock(test, tmp_path)


def test_a_worker_that_fails_takes_nothing_off_the_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            for body in (b"a", b"b"):
                await producer.begin("t", body)
            broker.kernel.hot_from = broker.store.log.end

            async def fails(*arguments: Any) -> Any:
                raise RuntimeError("for a test")

            with monkeypatch.context() as patch:
                patch.setattr(broker.delivery.checks, "_worker", fails)
                await pass_time(broker, clock, 6)
            await pass_time(broker, clock, 30)
            assert {(await producer.asked()).message.body for _ in range(2)} == {b"a", b"b"}

    with_clock(test, tmp_path)


def test_what_cannot_be_copied_does_not_keep_the_agenda_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker, "gone", known=False) as gone:
            begun = await gone.begin("t", b"old")
            for _ in range(30):
                await gone.end(await gone.begin("t", b"x"), ROLLBACK)
            monkeypatch.setattr(transaction_checks, "BEHIND_MAX", 10)
            broker.gate.close(FAILED, NotAvailable("for a test"), for_all=True)
            await pass_time(broker, clock, 1)
            due = broker.delivery.checks.due_ms()
            assert due is not None
            assert due > clock.message_ms()
            broker.gate.open(FAILED)
            await pass_time(broker, clock, 30)
            half = broker.delivery.halves.halves.get(begun.log_offset)
            assert half is not None
            assert half.log_offset > begun.log_offset

    with_clock(test, tmp_path)


def test_turns_end_on_the_loop_only(tmp_path: Path) -> None:
    """A half is copied while a worker reads it: the copy is not written yet, and the worker must not do that."""

    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            begun = await producer.begin("t", b"x")
            half_log = broker.delivery.halves
            half = half_log.halves.get(begun.log_offset)
            assert half is not None
            record = half_log.load(half)
            threads: set[int] = set()
            end_turn, read = broker.writer.end_turn, []

            def spy() -> None:
                threads.add(threading.get_ident())
                end_turn()

            broker.writer.end_turn = spy  # type: ignore[method-assign]

            async def worker(work: Callable[..., Any], at: int) -> Any:
                if not read:
                    half_log.check(half, record)
                    assert half.log_offset >= broker.store.log.end, "not written yet"
                read.append(at)
                return await broker.workers.read(work, at)

            newest = await half_log.load_slowly(half.root, worker)
            assert newest is not None
            assert read == [begun.log_offset, half.log_offset], "and once more where it is now"
            assert newest.log_offset == half.log_offset
            assert threads <= {threading.get_ident()}

    with_clock(test, tmp_path)
