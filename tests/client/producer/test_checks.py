"""Questions of brokers: who answers, from what is known here or by asking the application, a few at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kappamq.client.producer import checks
from kappamq.client.producer.checks import Known, decision_of
from kappamq.client.producer.transaction import AsyncTransactionProducer
from kappamq.message import Decision, ReceivedMessage
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, request
from kappamq.protocol.headers.client import CheckTransaction, EndTransaction
from kappamq.protocol.records.record import Record
from tests.client.fake import FakeCluster, fake_cluster
from tests.client.loop import on_loop
from tests.waiting import eventually_async as eventually

END = RequestCode.END_TRANSACTION


def question(number: int, group: str = "shop", **changes: Any) -> Frame:
    message = Record(
        topic="tea", body=b"%d" % number, properties=f"UNIQ_KEY\x01U{number}\x02PGROUP\x01{group}\x02KEYS\x01k\x02",
        queue_id=1, queue_offset=number, log_offset=1000 * number,
    )  # fmt: skip
    header = CheckTransaction(
        topic="tea", transaction_offset=number, log_offset=1000 * number, message_id=f"U{number}",
        transaction_id=f"U{number}", logical_broker="broker-0",
    )  # fmt: skip
    frame = request(header, message.encode(), oneway=True)
    for name, value in changes.items():
        setattr(frame, name, value)
    return frame


@asynccontextmanager
async def asking(check: Any, **options: Any) -> AsyncIterator[tuple[FakeCluster, AsyncTransactionProducer]]:
    """A cluster whose broker knows a producer, and may ask it."""
    async with fake_cluster(tea=1, TBW102=1) as cluster:
        cluster.broker._handlers[END] = lambda peer, frame: Frame(0, opaque=frame.opaque, flag=1)
        async with AsyncTransactionProducer(**cluster.options(group="shop", check=check, **options)) as producer:
            await eventually(lambda: "shop" in cluster.broker.producers)
            yield cluster, producer


def ask(cluster: FakeCluster, *frames: Frame) -> None:
    for frame in frames:
        next(iter(cluster.broker.peers)).send(frame)


def answers(cluster: FakeCluster) -> list[EndTransaction]:
    return [EndTransaction.decode(frame.ext) for frame in cluster.broker.seen(END)]


def test_what_an_application_may_say() -> None:
    said = {Decision.COMMIT: Decision.COMMIT, True: Decision.COMMIT, False: Decision.ROLLBACK, None: Decision.UNKNOWN}
    assert {given: decision_of(given, "check") for given in said} == said
    for wrong in ("commit?", 1, 0, object()):
        with pytest.raises(TypeError, match=r"check returned .*: expected Decision\.COMMIT"):
            decision_of(wrong, "check")


def test_what_a_producer_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "REMEMBERED_MAX", 3)
    known = Known()
    assert known.get("a") is None
    known.begin("a")
    assert known.get("a") is Decision.UNKNOWN
    known.end("a", Decision.UNKNOWN)
    assert known.get("a") is None, "the application has to say"
    for name in "abcde":
        known.end(name, Decision.COMMIT)
    assert [known.get(name) for name in "abcde"] == [None, None, *[Decision.COMMIT] * 3]


def test_what_was_just_carried_out_needs_no_answer() -> None:
    """Apache's broker asks about what it has committed, for some seconds: an answer would commit it again."""
    now = [100.0]
    known = Known(lambda: now[0])
    known.end("a", Decision.COMMIT)
    assert known.get("a") is Decision.COMMIT, "nobody has confirmed it"
    known.confirm("a")
    now[0] += checks.QUIET_S - 0.1
    assert known.get("a") is Decision.UNKNOWN
    now[0] += 0.2
    assert known.get("a") is Decision.COMMIT, "a power cut took it"
    known.confirm("b")
    assert len(known._confirmed) == 1


@pytest.mark.parametrize("kind", ["thread", "task"])
@pytest.mark.parametrize(
    ("said", "code"), [(Decision.COMMIT, 8), (Decision.ROLLBACK, 12), (True, 8), (Decision.UNKNOWN, 0), ("odd", 0)]
)
@on_loop
async def test_the_application_is_asked(kind: str, said: Any, code: int) -> None:
    asked: list[ReceivedMessage] = []

    def check(message: ReceivedMessage) -> Any:
        asked.append(message)
        return said

    async def check_in_task(message: ReceivedMessage) -> Any:
        return check(message)

    async with asking(check if kind == "thread" else check_in_task) as (cluster, _producer):
        ask(cluster, question(7))
        await eventually(lambda: answers(cluster))
        (answer,) = answers(cluster)
        assert (answer.decision, answer.from_check, answer.producer_group) == (code, True, "shop")
        assert (answer.log_offset, answer.transaction_offset, answer.message_id) == (7000, 7, "U7")
        assert (asked[0].body, asked[0].message_id, asked[0].keys, asked[0].topic) == (b"7", "U7", ("k",), "tea")
        frame = cluster.broker.seen(END)[0]
        # RocketMQ's brokers do not answer to "unknown"; why it is unknown goes into their log.
        assert frame.is_oneway == (code == 0)
        assert (frame.remark or "").startswith("TypeError: check returned 'odd'") == (said == "odd")


@on_loop
async def test_a_check_that_raises_leaves_it_open(caplog: pytest.LogCaptureFixture) -> None:
    def check(message: ReceivedMessage) -> Any:
        raise OSError("the database is away")

    async with asking(check) as (cluster, _producer):
        ask(cluster, question(1))
        await eventually(lambda: answers(cluster))
        assert answers(cluster)[0].decision == 0
        assert cluster.broker.seen(END)[0].remark == "OSError: the database is away"
        assert "`check` failed for message U1" in caplog.text


@on_loop
async def test_what_is_known_here_needs_no_question_to_the_application() -> None:
    def check(message: ReceivedMessage) -> Any:
        raise AssertionError("nobody should ask")

    async with asking(check) as (cluster, producer):
        producer._known.begin("U1")
        producer._known.end("U2", Decision.COMMIT)
        ask(cluster, question(1), question(2))
        await eventually(lambda: len(answers(cluster)) == 2)
        assert {answer.message_id: answer.decision for answer in answers(cluster)} == {"U1": 0, "U2": 8}


@on_loop
async def test_a_few_at_a_time_and_no_more_than_can_wait(caplog: pytest.LogCaptureFixture) -> None:
    gate, running, most = threading.Event(), [0], [0]
    lock = threading.Lock()

    def check(message: ReceivedMessage) -> Any:
        with lock:
            running[0] += 1
            most[0] = max(most)
            most[0] = max(most[0], running[0])
        gate.wait(20)
        with lock:
            running[0] -= 1
        return True

    async with asking(check, check_threads=3, checks_waiting_max=10) as (cluster, producer):
        ask(cluster, *(question(number) for number in range(15)), *(question(number) for number in range(3)))
        await eventually(lambda: running[0] == 3)
        assert producer._answering is not None
        await eventually(lambda: producer._answering is not None and producer._answering.dropped == 5)
        assert "already wait for `check`; dropped 4" in caplog.text
        gate.set()
        await eventually(lambda: len(answers(cluster)) == 10)
        assert most[0] == 3
        ask(cluster, question(14))
        await eventually(lambda: len(answers(cluster)) == 11)


@on_loop
async def test_a_check_that_hangs_keeps_nobody_from_closing() -> None:
    gate = threading.Event()
    async with asking(lambda message: gate.wait(60)) as (cluster, producer):
        ask(cluster, question(1))
        await eventually(lambda: producer._answering is not None and producer._answering._asked)
        await asyncio.wait_for(producer.close(), 30)
    gate.set()


@on_loop
async def test_an_answer_that_the_broker_does_not_take(caplog: pytest.LogCaptureFixture) -> None:
    async with asking(lambda message: True) as (cluster, _producer):
        cluster.broker.script(END, ResponseCode.TOPIC_NOT_EXIST)
        ask(cluster, question(1))
        await eventually(lambda: "did not accept commit for transaction U1: scripted 17" in caplog.text)


@on_loop
async def test_questions_for_others_and_nonsense_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with asking(lambda message: True) as (cluster, producer):
        ask(cluster, question(1, "other"), question(2, body=b"nonsense"), question(3, ext={}))
        await eventually(lambda: caplog.text.count("cannot be decoded") == 2)
        assert "no producer of group 'other'" in caplog.text
        # Two of a group in one process: the one that knows about it answers.
        async with AsyncTransactionProducer(**cluster.options(group="shop", check=lambda message: False)) as second:
            second._known.end("U5", Decision.COMMIT)
            ask(cluster, question(4), question(5))
            await eventually(lambda: len(answers(cluster)) == 2)
            assert {answer.message_id: answer.decision for answer in answers(cluster)} == {"U4": 8, "U5": 8}
        ask(cluster, question(6))
        await eventually(lambda: len(answers(cluster)) == 3)
        await producer.close()
    assert producer._core is None


@on_loop
async def test_a_question_is_unanswered_until_the_application_has_spoken() -> None:
    speak = asyncio.Event()

    async def check(_: ReceivedMessage) -> bool:
        await speak.wait()
        return True

    async with asking(check) as (cluster, producer):
        core = producer.running()
        ask(cluster, question(1))
        await eventually(lambda: core.checks.unanswered == 1)
        assert core.questions_out == 1
        speak.set()
        await eventually(lambda: answers(cluster))
        await eventually(lambda: core.questions_out == 0)
