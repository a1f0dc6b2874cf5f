"""What the kernel stores and answers of messages that wait is what Python would, and Python goes on with it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.clock import VirtualClock
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import UpdateBrokerConfig
from kappamq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC
from kappamq.protocol.records.record import Record
from tests.broker.operating import make_topic
from tests.broker.running import Speaker, appended, run, running, speaking
from tests.broker.transacting import COMMIT, ROLLBACK, Begun, bodies, pass_time, producing
from tests.store.stores import kernels

Made = tuple[list[Any], list[Any]]
NOW = 1_700_000_000_000
SENDS = {
    "half": ("TRAN_MSG\x01true\x02PGROUP\x01pg\x02", {"sys_flag": 4}),
    "half without the flag": ("PGROUP\x01pg\x02TRAN_MSG\x01true\x02KEYS\x01k\x02TAGS\x01a", {"flag": 7}),
    "half of a compressed message": ("TRAN_MSG\x01true\x02PGROUP\x01pg\x02", {"sys_flag": 0x305, "reconsume_times": 2}),
    "half with patience": ("TRAN_MSG\x01true\x02PGROUP\x01pg\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02", {}),
    "half without a group": ("TRAN_MSG\x01true\x02", {}),
    "half with a false id": ("TRAN_MSG\x01true\x02PGROUP\x01pg\x02__transactionId__\x01x\x02own\x01y\x02", {}),
    "half, said twice": ("TRAN_MSG\x01true\x02PGROUP\x01a\x02PGROUP\x01pg\x02", {}),
    "half that is delayed": ("TRAN_MSG\x01true\x02PGROUP\x01pg\x02DELAY\x012\x02", {}),
    "no half": ("TRAN_MSG\x01false\x02PGROUP\x01pg\x02", {}),
    "flag of a half alone": ("PGROUP\x01pg\x02", {"sys_flag": 4}),
    "level": ("DELAY\x013\x02WAIT\x01true\x02", {}),
    "level, in other words": ("DELAY\x01003\x02", {}),
    "level beyond the last": ("DELAY\x0199\x02", {}),
    "no level": ("DELAY\x010\x02", {}),
    "level of a half": ("DELAY\x011\x02", {"sys_flag": 4}),
    "seconds": ("TIMER_DELAY_SEC\x0190\x02KEYS\x01k\x02", {}),
    "milliseconds": ("TIMER_DELAY_MS\x011500\x02", {}),
    "time": (f"TIMER_DELIVER_MS\x01{NOW + 60_000_001}\x02", {}),
    "time, on the second": (f"TIMER_DELIVER_MS\x01{NOW + 60_000}\x02", {}),
    "time, in other words": (f"TIMER_DELIVER_MS\x010{NOW + 60_000_000}\x02", {}),
    "time that has passed": (f"TIMER_DELIVER_MS\x01{NOW - 1}\x02", {}),
    "time too far away": ("TIMER_DELAY_SEC\x01259201\x02", {}),
    "last time": ("TIMER_DELAY_SEC\x01259200\x02", {}),
    "no time": ("TIMER_DELAY_SEC\x01soon\x02", {}),
    "time and level": ("TIMER_DELAY_SEC\x015\x02DELAY\x011\x02", {}),
    "two times": (f"TIMER_DELAY_SEC\x015\x02TIMER_DELIVER_MS\x01{NOW + 7_000}\x02", {}),
    "without waiting for the disk": ("TIMER_DELAY_SEC\x015\x02WAIT\x01false\x02", {}),
    "many properties": ("TIMER_DELAY_SEC\x015\x02" + "".join(f"n{n}\x01v\x02" for n in range(40)), {}),
}


def ok(frame: Frame) -> None:
    assert frame.code == 0, (frame.code, frame.remark)


def refused(frame: Frame, code: int, text: str) -> None:
    assert (frame.code, text in (frame.remark or "")) == (code, True), (frame.code, frame.remark)


async def update_config(client: Speaker, **values: str) -> None:
    text = "".join(f"{name}={value}\n" for name, value in values.items())
    ok(await client.ask(UpdateBrokerConfig(), text.encode()))


def shown(record: Record) -> Any:
    """All of a record but its place, and what every record has of its own."""
    head = (
        record.queue_id,
        record.flag,
        record.sys_flag,
        record.born_ms,
        record.reconsume_times,
        record.prepared_offset > 0,
    )
    return record.topic, *head, record.stored_ms, record.body, record.properties


def answered(frame: Frame) -> Any:
    ext = {name: value for name, value in frame.ext.items() if name not in ("msgId", "queueOffset")}
    return frame.code, frame.remark, list(ext.items()), list(frame.ext)


async def made(broker: Broker, slow: bool, ask: Callable[[], Any]) -> tuple[list[Any], list[Any], int]:
    """Records and answers that come of some requests, and how many of these the kernel dealt with."""
    before, fast = len(appended(broker)), broker.kernel.fast_frames
    broker.kernel.force_slow = slow
    answers = [answered(frame) for frame in await ask()]
    broker.kernel.force_slow = False
    return [shown(record) for record in appended(broker)[before:]], answers, broker.kernel.fast_frames - fast


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("kind", kernels())
def test_a_send_that_waits_is_stored_and_answered_as_in_python(tmp_path: Path, kind: str, binary: bool) -> None:
    async def main() -> None:
        clock = VirtualClock(message_ms=NOW)
        async with running(tmp_path, kind, clock=clock) as broker, speaking(broker, binary) as client:
            await make_topic(client, "t")
            taken = set()
            for name, (text, changes) in SENDS.items():

                async def send(text: str = text, changes: dict[str, Any] = changes) -> list[Frame]:
                    return [await client.send("t", b"body", 2, f"UNIQ_KEY\x01U1\x02{text}", **changes)]

                slow, fast = await made(broker, True, send), await made(broker, False, send)
                assert slow[2] == 0
                assert fast[:2] == slow[:2], name
                taken |= {name} if fast[2] else set()
            assert taken == {
                "half", "half without the flag", "half of a compressed message", "level", "seconds", "milliseconds", "time",
                "time, on the second", "last time",
            }  # fmt: skip

    run(main())


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("kind", kernels())
def test_a_transaction_ends_as_in_python(tmp_path: Path, kind: str, decision: int, binary: bool) -> None:
    async def main() -> None:
        async with running(tmp_path, kind, clock=VirtualClock(message_ms=NOW)) as broker, producing(broker) as producer:
            producer.binary = binary
            await make_topic(producer, "t")
            numbers = itertools.count()

            async def transact() -> list[Frame]:
                text = "UNIQ_KEY\x01U1\x02TRAN_MSG\x01true\x02PGROUP\x01pg\x02TAGS\x01a\x02KEYS\x01k\x02"
                half = await producer.send("t", b"%d" % (next(numbers) // 1000), 3, text, sys_flag=5, flag=-3)
                begun = Begun(int(half.ext["msgId"][-16:], 16), int(half.ext["queueOffset"]), "U1")
                end = await producer.end(begun, decision)
                once_more = await producer.end(begun, decision)
                other = await producer.end(begun, ROLLBACK if decision == COMMIT else COMMIT)
                return [half, end, once_more, other]

            slow, fast = await made(broker, True, transact), await made(broker, False, transact)
            # The op record says where the half lies in its queue.
            assert [_without_place(record) for record in fast[0]] == [_without_place(record) for record in slow[0]]
            assert fast[1] == slow[1]
            assert (slow[2], fast[2]) == (0, 2)
            assert len(broker.delivery.halves.halves) == 0
            ops = await producer.read(HALF_OP_TOPIC)
            assert bodies(ops) == [b"0,", b"1,"]
            assert [op.prepared_offset for op in ops] == [half.log_offset for half in await producer.read(HALF_TOPIC)]
            assert len(await producer.read("t", 3)) == (2 if decision == COMMIT else 0)

    run(main())


def _without_place(record: Any) -> Any:
    return (*record[:-2], b"" if record[0] == HALF_OP_TOPIC else record[-2], record[-1])


@pytest.mark.parametrize("kind", kernels())
def test_what_python_has_touched_is_no_longer_the_kernels(tmp_path: Path, kind: str) -> None:
    """A half whose producer was asked lies elsewhere: the kernel must not end the place where it was."""

    async def main() -> None:
        clock = VirtualClock(message_ms=NOW)
        async with (
            running(tmp_path, kind, clock=clock, transaction_timeout_ms=1000) as broker,
            producing(broker) as producer,
        ):
            await make_topic(producer, "t")
            first, second = await producer.begin("t", b"first"), await producer.begin("t", b"second")
            fast = broker.kernel.fast_frames
            await pass_time(broker, clock, 1.5)
            asked = await producer.asked()
            assert asked.begun.log_offset != first.log_offset
            await producer.asked()
            assert (await producer.end(first, COMMIT)).code == 0
            assert (await producer.end(asked.begun, COMMIT)).code == 0
            assert (await producer.end(second, ROLLBACK)).code == 0
            assert broker.kernel.fast_frames == fast
            assert bodies(await producer.read("t")) == [b"first"]
            assert len(broker.delivery.halves.halves) == 0

    run(main())


@pytest.mark.parametrize("kind", kernels())
def test_halves_of_the_kernel_are_asked_about_and_found_again(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        clock = VirtualClock(message_ms=NOW)
        async with running(tmp_path, kind, clock=clock) as broker, producing(broker) as producer:
            await make_topic(producer, "t")
            ended, left = await producer.begin("t", b"ended"), await producer.begin("t", b"left")
            assert (await producer.end(ended, COMMIT)).code == 0
            assert broker.kernel.fast_frames >= 3
        async with running(tmp_path, kind, clock=clock) as broker, producing(broker) as producer:
            assert [half.root for half in broker.delivery.halves.halves.below(1 << 60, 9)] == [left.log_offset]
            await pass_time(broker, clock, 40)
            question = await producer.asked()
            assert question.begun.unique == left.unique
            assert (await producer.end(question.begun, COMMIT)).code == 0
            assert bodies(await producer.read("t")) == [b"ended", b"left"]

    run(main())


@pytest.mark.parametrize("kind", kernels())
def test_settings_hold_from_the_moment_they_are_set(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with running(tmp_path, kind) as broker, producing(broker) as producer:
            await make_topic(producer, "t")
            begun = await producer.begin("t", b"before")
            await update_config(producer, rejectTransactionMessage="true", timerMaxDelaySec="10")
            refused(await producer.half("t", b"after"), 16, "rejectTransactionMessage")
            refused(
                await producer.send("t", b"x", 0, "UNIQ_KEY\x01U\x02TIMER_DELAY_SEC\x0111\x02"), 13, "timerMaxDelaySec"
            )
            ok(await producer.send("t", b"x", 0, "UNIQ_KEY\x01U\x02TIMER_DELAY_SEC\x0110\x02"))
            ok(await producer.end(begun, COMMIT))
            await update_config(producer, rejectTransactionMessage="false", timerWheelEnable="false")
            ok(await producer.half("t", b"again"))
            refused(
                await producer.send("t", b"x", 0, "UNIQ_KEY\x01U\x02TIMER_DELAY_SEC\x015\x02"), 1, "timerWheelEnable"
            )

    run(main())


@pytest.mark.parametrize("kind", kernels())
def test_without_the_role_nothing_waits(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with running(tmp_path, kind) as broker, producing(broker) as producer:
            await make_topic(producer, "t")
            begun = await producer.begin("t", b"x")
            await broker.end_role()
            refused(await producer.end(begun, COMMIT), 14, "not the master")
            refused(await producer.half("t", b"y"), 14, "not the master")
            await broker.begin_role()
            ok(await producer.end(begun, COMMIT))
            assert bodies(await producer.read("t")) == [b"x"]

    run(main())


async def _delivered(client: Speaker, clock: VirtualClock, broker: Broker, count: int) -> list[bytes]:
    for _ in range(100):
        found = bodies(await client.read("t"))
        if len(found) == count:
            return found
        await pass_time(broker, clock, 1)
    raise AssertionError(f"{count} messages do not come")


@pytest.mark.parametrize("kind", kernels())
def test_what_the_kernel_has_parked_is_delivered(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        clock = VirtualClock(message_ms=NOW)
        async with running(tmp_path, kind, clock=clock) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            fast = broker.kernel.fast_frames
            ok(await client.send("t", b"level", 0, "UNIQ_KEY\x01U1\x02DELAY\x012\x02"))
            ok(await client.send("t", b"timer", 0, "UNIQ_KEY\x01U2\x02TIMER_DELAY_MS\x012500\x02"))
            assert broker.kernel.fast_frames == fast + 2
            assert await client.read("t") == []
            assert await _delivered(client, clock, broker, 2) == [b"timer", b"level"]

    run(main())
