"""Half messages and how they end: once, with what was decided first, whoever decides and whatever they name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.transactions import half_fold, half_log
from kappamq.broker.transactions.half_records import is_half
from kappamq.clock import VirtualClock
from kappamq.errors import BrokerError
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import DeleteTopic, ResumeCheckHalfMessage
from kappamq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC, TRANSACTION_GIVEN_UP_TOPIC
from kappamq.protocol.records import batch
from tests.broker.operating import make_topic, ok, on_broker, refused
from tests.broker.running import Speaker, run, running, speaking
from tests.broker.transacting import COMMIT, ROLLBACK, UNKNOWN, Begun, bodies, pass_time, producing

FAILED = ResponseCode.TRANSACTION_FAILED
ERROR = ResponseCode.SYSTEM_ERROR
ILLEGAL = ResponseCode.MESSAGE_ILLEGAL


@on_broker()
async def test_a_half_is_seen_when_it_is_committed_and_not_before(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    async with producing(broker) as producer:
        begun = await producer.begin("t", b"order", 2, "KEYS\x01k\x02own\x01x\x02TAGS\x01a\x02", flag=7)
        assert await client.read("t", 2) == []
        (half,) = await client.read(HALF_TOPIC)
        named = half.property_map()
        assert (half.log_offset, half.queue_offset, half.sys_flag & 0xC) == (begun.log_offset, 0, 0)
        assert (named["REAL_TOPIC"], named["REAL_QID"], named["PGROUP"]) == ("t", "2", "pg")
        assert named["__transactionId__"] == named["UNIQ_KEY"] == begun.unique
        assert (await producer.end(begun, COMMIT)).code == 0
        (record,) = await client.read("t", 2)
        assert (record.body, record.flag, record.born_ms, record.sys_flag & 0xC) == (b"order", 7, half.born_ms, 8)
        assert record.prepared_offset == begun.log_offset
        # As a Java broker leaves them.
        seen = record.property_map()
        assert {name: seen[name] for name in ("REAL_TOPIC", "REAL_QID", "TRAN_MSG", "KEYS", "own", "TAGS")} == {
            "REAL_TOPIC": "t", "REAL_QID": "2", "TRAN_MSG": "true", "KEYS": "k", "own": "x", "TAGS": "a",
        }  # fmt: skip
        assert not [name for name in seen if name.endswith("#")], "what we keep for ourselves is not there"
        (op,) = await client.read(HALF_OP_TOPIC)
        assert (op.body, op.property_map()["TAGS"]) == (b"0,", "d")


@on_broker()
async def test_a_half_that_is_rolled_back_is_never_seen(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    async with producing(broker) as producer:
        begun = await producer.begin("t", b"order")
        assert (await producer.end(begun, ROLLBACK)).code == 0
        assert await client.read("t") == []
        assert bodies(await client.read(HALF_OP_TOPIC)) == [b"0,"]
        assert len(broker.delivery.halves.halves) == 0


@on_broker()
async def test_the_first_decision_counts(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    async with producing(broker) as producer:
        yes, no = await producer.begin("t", b"yes"), await producer.begin("t", b"no")
        answers = await asyncio.gather(*(producer.end(yes, COMMIT) for _ in range(10)))
        assert {answer.code for answer in answers} == {0}
        assert (await producer.end(no, ROLLBACK)).code == 0
        assert (await producer.end(no, ROLLBACK)).code == 0
        late = await producer.end(yes, ROLLBACK)
        assert (late.code, late.remark) == (FAILED, "it cannot be rolled back: it was committed. Nothing was changed")
        late = await producer.end(no, COMMIT)
        assert (late.code, late.remark) == (FAILED, "it cannot be committed: it was rolled back. Nothing was changed")
        assert bodies(await client.read("t")) == [b"yes"]
        assert bodies(await client.read(HALF_OP_TOPIC)) == [b"0,", b"1,"]


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("more", [0, 30], ids=["the last one", "one of many"])
def test_the_same_decision_after_a_restart_is_answered_as_the_first(
    tmp_path: Path, decision: int, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer whose answer was lost asks again. However many were ended since, the log knows how this one was."""
    monkeypatch.setattr(half_fold, "_REMEMBERED", 10)
    monkeypatch.setattr(half_log, "_OPS_AT_ONCE", 7)
    other = ROLLBACK if decision == COMMIT else COMMIT

    async def main() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client, producing(broker) as producer:
            await make_topic(client, "t")
            first = await producer.begin("t", b"first")
            held = await producer.begin("t", b"held")
            begun = [await producer.begin("t", b"x") for _ in range(more)]
            for one in begun[: more // 2]:
                assert (await producer.end(one, other)).code == 0
            assert (await producer.end(first, decision)).code == 0
            for one in begun[more // 2 :]:
                assert (await producer.end(one, other)).code == 0
            assert (await producer.end(held, decision)).code == 0
            before = [record.body for record in await client.read("t")]
        async with running(tmp_path) as broker, speaking(broker) as client, producing(broker) as producer:
            broker.kernel.hot_from = broker.store.log.end
            for _ in range(2):
                answer = await producer.end(first, decision)
                assert (answer.code, answer.remark) == (0, None)
            late = await producer.end(first, other)
            how = "committed" if decision == COMMIT else "rolled back"
            assert (late.code, f"it was {how}" in (late.remark or "")) == (FAILED, True), late.remark
            assert [record.body for record in await client.read("t")] == before

    run(main())


@on_broker()
async def test_a_decision_that_was_forgotten_is_found_in_the_log(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    async with producing(broker) as producer:
        begun = await producer.begin("t", b"x")
        assert (await producer.end(begun, ROLLBACK)).code == 0
        broker.delivery.halves.halves._remembered.clear()
        assert (await producer.end(begun, ROLLBACK)).code == 0
        broker.delivery.halves.halves._remembered.clear()
        late = await producer.end(begun, COMMIT)
        assert (late.code, late.remark) == (FAILED, "it cannot be committed: it was rolled back. Nothing was changed")


@on_broker()
async def test_what_nobody_remembers_stays_as_it_is(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    async with producing(broker) as producer:
        begun = await producer.begin("t", b"x")
        assert (await producer.end(begun, ROLLBACK)).code == 0
        broker.delivery.halves.halves._remembered.clear()
        broker.kernel.set_queue_min(HALF_OP_TOPIC, 0, 1)  # its op record has expired
        late = await producer.end(begun, COMMIT)
        assert (late.code, late.remark) == (
            FAILED,
            "it cannot be committed: it was ended long ago. Nothing was changed",
        )
        assert await client.read("t") == []


@on_broker()
async def test_unknown_leaves_it_open(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    async with producing(broker) as producer:
        begun = await producer.begin("t", b"x")
        answer = await producer.end(begun, UNKNOWN)
        assert answer.code == 0
        assert "asked" in (answer.remark or "")
        assert len(broker.delivery.halves.halves) == 1
        assert (await producer.end(begun, COMMIT)).code == 0


# -- bad input -------------------------------------------------------------------------------------------------------------


@on_broker()
async def test_ends_that_make_no_sense(broker: Broker, client: Speaker) -> None:
    """Each is answered with a code and a text that says what is wrong; the transaction of somebody else goes on."""
    await make_topic(client, "t")
    plain = await client.send("t", b"plain")
    async with producing(broker) as producer, producing(broker, "other") as other:
        begun = await producer.begin("t", b"x")
        at_plain = Begun(int(plain.ext["msgId"][-16:], 16), 0, "u")
        offset = begun.transaction_offset
        for given, changes, code, text in [
            (begun, {"decision": 5}, ResponseCode.INVALID_PARAMETER, "commitOrRollback is 8 (commit)"),
            (Begun(1 << 50, offset, "u"), {}, ERROR, "no message at log offset 1125899906842624"),
            (Begun(begun.log_offset + 1, offset, "u"), {}, ERROR, "there is no message at log offset"),
            (Begun(-1, offset, "u"), {}, ERROR, "no message at log offset -1"),
            (at_plain, {}, ERROR, "it belongs to topic t"),
            (Begun(begun.log_offset, offset + 1, "u"), {}, ERROR, "The transaction state table offset wrong: it is 0"),
            (begun, {"producer_group": "wrong"}, ERROR, "The producer group wrong: 'wrong' cannot end what 'pg'"),
        ]:
            answer = await other.end(given, **({"decision": COMMIT, "producer_group": "pg"} | changes))  # type: ignore[arg-type]
            assert (answer.code, text in (answer.remark or "")) == (code, True), (answer.code, answer.remark)
        assert bodies(await client.read("t")) == [b"plain"]
        assert (await producer.end(begun, COMMIT)).code == 0
        assert bodies(await client.read("t")) == [b"plain", b"x"]


@on_broker()
async def test_halves_that_make_no_sense(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    async with producing(broker) as producer:
        for flags, more, text in [
            (8, "", "only END_TRANSACTION (37) commits"),
            (12, "", "only END_TRANSACTION (37) commits"),
            (4, "big\x01" + "x" * 32_500 + "\x02", "those of a transaction"),
            (4, "big\x01" + "ß" * 16_250 + "\x02", "those of a transaction"),
            (4, "DELAY\x01abc\x02", "the property DELAY must be an integer, got 'abc'"),
            (4, "TIMER_DELAY_SEC\x0199999999\x02", "(timerMaxDelaySec)"),
        ]:
            answer = await producer.half("t", b"x", more=more, sys_flag=flags)
            assert (answer.code, text in (answer.remark or "")) == (ILLEGAL, True), answer.remark
        answer = await producer.send("t", b"x", sys_flag=4)
        assert (answer.code, "TRAN_MSG does not: set both or none" in (answer.remark or "")) == (ILLEGAL, True)
        long = await producer.begin("t", b"x", more="big\x01" + "x" * 32_000 + "\x02")
        assert (await producer.end(long, COMMIT)).code == 0, "with all that was added to it"
        assert len(await client.read("t")) == 1


@on_broker()
async def test_a_batch_is_no_transaction(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    members = [batch.Member(b"x", "TRAN_MSG\x01true\x02", 0), batch.Member(b"y", "", 0)]
    for body, flags in [(batch.encode(members), 0), (batch.encode(members[1:]), 4)]:
        answer = await client.send_batch("t", body, sys_flag=flags)
        assert (answer.code, "a batch cannot be part of a transaction" in (answer.remark or "")) == (ILLEGAL, True)
    assert await client.read("t") == []


@on_broker()
async def test_names_in_a_half_that_only_a_broker_may_use_are_dropped(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    async with producing(broker) as producer:
        more = "REAL_TOPIC\x01rmq_sys_kappamq_metadata\x02REAL_QID\x0199\x02TRANSACTION_CHECK_TIMES\x0199\x02"
        more += "TRAN_PREPARED_QUEUE_OFFSET\x010\x02__HALF_MS#\x011\x02"
        begun = await producer.begin("t", b"x", 1, more)
        assert (await producer.end(begun, COMMIT)).code == 0
        assert bodies(await client.read("t", 1)) == [b"x"]


@on_broker()
async def test_a_committed_message_that_comes_back_is_none_any_more(broker: Broker, client: Speaker) -> None:
    """A consumer's client may send it to its retry topic by itself, with all its properties."""
    await make_topic(client, "t")
    async with producing(broker) as producer:
        assert not is_half({"TRAN_MSG": "true", "DELAY": "3"}, 1)
        assert is_half({"TRAN_MSG": "true", "DELAY": "3"}, 0)
        assert is_half({"TRAN_MSG": "True"}, 1)
        assert not is_half({"TRAN_MSG": "no"}, 0)
        answer = await producer.half("t", b"x", sys_flag=0)
        assert answer.code == 0
        assert await client.read("t") == [], "the property alone begins a transaction, as in RocketMQ"


@on_broker(reject_transactions=True)
async def test_transactions_can_be_switched_off(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    async with producing(broker) as producer:
        answer = await producer.half("t", b"x")
        assert (answer.code, "rejectTransactionMessage" in (answer.remark or "")) == (ResponseCode.NO_PERMISSION, True)
        broker.settings.change({"rejectTransactionMessage": "false"})
        await producer.begin("t", b"x")


@on_broker()
async def test_who_names_no_group_is_known_by_that_of_the_request(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    async with producing(broker) as producer:
        answer = await client.send("t", b"x", properties="TRAN_MSG\x01true", sys_flag=4, producer_group="pg")
        begun = Begun(int(answer.ext["msgId"][-16:], 16), int(answer.ext["queueOffset"]), answer.ext["transactionId"])
        assert (await producer.end(begun, COMMIT)).code == 0


@on_broker()
async def test_topics_change_while_a_transaction_is_open(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 4)
    async with producing(broker) as producer:
        begun = await producer.begin("t", b"x", 3)
        await ok(client, DeleteTopic(topic="t"))
        answer = await producer.end(begun, COMMIT)
        assert (answer.code, "make it again and commit" in (answer.remark or "")) == (
            ResponseCode.TOPIC_NOT_EXIST,
            True,
        )
        await make_topic(client, "t", 2)
        assert (await producer.end(begun, COMMIT)).code == 0
        assert bodies(await client.read("t", 1)) == [b"x"], "it has fewer queues now"


# -- the time a producer asked for -----------------------------------------------------------------------------------------


def with_clock(test: Any, root: Path, **options: Any) -> None:
    async def main() -> None:
        clock = VirtualClock()
        async with running(root, clock=clock, **options) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            await test(broker, client, clock)

    run(main())


def test_behind_the_time_it_asked_for_only_an_answer_ends_it(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            begun = await producer.begin("t", b"x", more="CHECK_IMMUNITY_TIME_IN_SECONDS\x01100\x02")
            in_time = await producer.begin("t", b"y", more="CHECK_IMMUNITY_TIME_IN_SECONDS\x01100\x02")
            clock.advance(100)
            assert (await producer.end(in_time, COMMIT)).code == 0
            await pass_time(broker, clock, 0.001)
            for decision in (COMMIT, ROLLBACK):
                answer = await producer.end(begun, decision)
                assert answer.code == ResponseCode.ILLEGAL_OPERATION
                assert "ended 1 ms ago: its producer is going to be asked" in (answer.remark or "")
            question = await producer.asked()
            assert (await producer.end(question.begun, COMMIT, from_check=True)).code == 0
            assert bodies(await client.read("t")) == [b"y", b"x"]

    with_clock(test, tmp_path)


def test_what_is_taken_as_a_half_can_be_committed(tmp_path: Path) -> None:
    """With a time and with properties up to the limit, which both of them add to."""

    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            low, high = 1000, 32_767
            while high - low > 1:
                middle = (low + high) // 2
                more = f"TIMER_DELAY_SEC\x0110\x02pad\x01{'x' * middle}\x02"
                taken = (await producer.half("t", b"x", more=more)).code == 0
                low, high = (middle, high) if taken else (low, middle)
            begun = await producer.begin("t", b"x", more=f"TIMER_DELAY_SEC\x0110\x02pad\x01{'x' * low}\x02")
            assert (await producer.end(begun, COMMIT)).code == 0

    with_clock(test, tmp_path)


def test_a_delay_begins_with_the_commit(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            begun = await producer.begin("t", b"x", 1, more="DELAY\x013\x02")
            assert len(await client.read(HALF_TOPIC)) == 1
            await pass_time(broker, clock, 5)
            assert (await producer.end(begun, COMMIT)).code == 0
            await pass_time(broker, clock, 9.9)
            assert await client.read("t", 1) == []
            await pass_time(broker, clock, 0.2)
            (record,) = await client.read("t", 1)
            assert (record.body, record.sys_flag & 0xC) == (b"x", 8)
            assert (await producer.end(begun, COMMIT)).code == 0
            await pass_time(broker, clock, 60)
            assert len(await client.read("t", 1)) == 1

    with_clock(test, tmp_path)


# -- an operator -----------------------------------------------------------------------------------------------------------


def offset_id(broker: Broker, log_offset: int) -> str:
    return broker.delivery.sends.offset_id(log_offset)


def test_an_operator_can_have_producers_asked_again(tmp_path: Path) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            begun = await producer.begin("t", b"x")
            await pass_time(broker, clock, 6)
            assert (await producer.asked()).message.property_map()["TRANSACTION_CHECK_TIMES"] == "1"
            await pass_time(broker, clock, 60)
            (given_up,) = await client.read(TRANSACTION_GIVEN_UP_TOPIC)
            assert given_up.prepared_offset == begun.log_offset
            late = await producer.end(begun, COMMIT)
            assert (late.code, "TRANS_CHECK_MAX_TIME_TOPIC" in (late.remark or "")) == (FAILED, True)
            assert not producer.questions.qsize()
            # The one that was given up, by its offset id.
            header = ResumeCheckHalfMessage(topic="t", message_id=offset_id(broker, given_up.log_offset))
            await ok(client, header)
            await pass_time(broker, clock, 6)
            first = await producer.asked()
            assert first.message.property_map()["TRANSACTION_CHECK_TIMES"] == "1"
            # One that is open, by any copy.
            await ok(client, ResumeCheckHalfMessage(topic="t", message_id=offset_id(broker, begun.log_offset)))
            await pass_time(broker, clock, 0)
            assert (await producer.asked()).message.property_map()["TRANSACTION_CHECK_TIMES"] == "1"
            assert (await producer.end(begun, COMMIT)).code == 0
            await refused(client, header, ERROR, "nobody needs to be asked about this transaction: it was committed")
            half = ResumeCheckHalfMessage(message_id=offset_id(broker, begun.log_offset))
            await refused(client, half, ERROR, "it was committed")
            for bad in (None, "nonsense", offset_id(broker, 1 << 40)):
                await refused(client, ResumeCheckHalfMessage(message_id=bad), ERROR, "")
            (record,) = await client.read("t")
            await refused(
                client,
                ResumeCheckHalfMessage(message_id=offset_id(broker, record.log_offset)),
                ERROR,
                "no half message",
            )

    with_clock(test, tmp_path, transaction_check_max=1)


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_what_lies_on_disk_only_is_read_beside_the_loop(tmp_path: Path, decision: int) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            begun = await producer.begin("t", b"x")
            await pass_time(broker, clock, 6)
            question = await producer.asked()
            broker.kernel.hot_from = broker.store.log.end
            first, second = await asyncio.gather(
                producer.end(begun, decision), producer.end(question.begun, decision, from_check=True)
            )
            assert (first.code, second.code) == (0, 0)
            assert bodies(await client.read("t")) == [b"x"] * (decision == COMMIT)

    with_clock(test, tmp_path)


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_a_transaction_that_is_ended_while_an_operator_resumes_it(tmp_path: Path, decision: int) -> None:
    async def test(broker: Broker, client: Speaker, clock: VirtualClock) -> None:
        async with producing(broker) as producer:
            begun = await producer.begin("t", b"x")
            half = broker.delivery.halves.halves.get(begun.log_offset)
            assert half is not None
            record = broker.delivery.halves.load(half)
            reads = 0

            async def worker(work: Any, *arguments: Any) -> Any:
                nonlocal reads
                reads += 1
                if reads == 2:  # the newest copy is being read
                    assert (await producer.end(begun, decision)).code == 0
                return work(*arguments)

            broker.delivery.transactions._worker = worker
            header = ResumeCheckHalfMessage(topic="t", message_id=offset_id(broker, begun.log_offset))
            await refused(client, header, ERROR, "nobody needs to be asked about this transaction: it was")
            for late in (broker.delivery.halves.renew, broker.delivery.halves.commit):
                end = broker.delivery.halves.end
                with pytest.raises(BrokerError, match="was ended meanwhile: nothing was changed"):
                    late(half, record)
                assert broker.delivery.halves.end == end
            assert len(await client.read(HALF_TOPIC)) == 1
            assert len(await client.read(HALF_OP_TOPIC)) == 1
            assert bodies(await client.read("t")) == [b"x"] * (decision == COMMIT)

    with_clock(test, tmp_path)
