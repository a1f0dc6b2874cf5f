"""Bytes of long ranges: all of them, in order, whatever a broker gives at a time, and no more asked for than lanes allow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq import Message
from kappamq.client.pulling import raw_reads
from kappamq.client.pulling.raw_reads import Pace, read_in_lanes, read_in_turn
from kappamq.errors import Busy
from kappamq.message import PulledBytes, PullStatus
from kappamq.protocol.records.record import iter_records
from kappamq.testing import BrokerKit


class Queue:
    """A queue of one-byte records [low, high) that gives at most `most` at a time."""

    def __init__(self, low: int, high: int, most: int) -> None:
        self.low, self.high, self.most = low, high, most
        self.asking = self.asking_most = 0

    async def pull(self, offset: int, *, count: int) -> PulledBytes:
        self.asking += 1
        self.asking_most = max(self.asking, self.asking_most)
        await asyncio.sleep(0)
        self.asking -= 1
        if offset < self.low:
            return self._answer(PullStatus.OFFSET_ILLEGAL, self.low)
        if offset >= self.high:
            return self._answer(PullStatus.NO_NEW, offset)
        stop = min(offset + min(count, self.most), self.high)
        return self._answer(PullStatus.FOUND, stop, bytes(number % 256 for number in range(offset, stop)))

    def _answer(self, status: PullStatus, next_offset: int, data: bytes = b"") -> PulledBytes:
        return PulledBytes(status=status, next_offset=next_offset, min_offset=self.low, max_offset=self.high, data=data)


async def each(parts: AsyncIterator[list[PulledBytes]]) -> AsyncIterator[PulledBytes]:
    async for answers in parts:
        assert answers, "an answer at least"
        for answer in answers:
            yield answer


async def collect(queue: Queue, start: int, stop: int, lanes: int, stripe: int) -> list[PulledBytes]:
    return [answer async for answer in each(read_in_lanes(queue.pull, start, stop, lanes=lanes, stripe=stripe))]


@given(
    st.integers(0, 30), st.integers(0, 60), st.integers(1, 9), st.integers(0, 60), st.integers(0, 60), st.integers(1, 4),
    st.integers(1, 20),
)  # fmt: skip
def test_everything_that_is_there_comes_once_and_in_order(
    low: int, size: int, most: int, start: int, count: int, lanes: int, stripe: int
) -> None:
    queue = Queue(low, low + size, most)
    answers = asyncio.run(collect(queue, start, start + count, lanes, stripe))
    found = b"".join(answer.data for answer in answers)
    assert found == bytes(range(max(start, low), max(low, start, min(start + count, low + size))))
    assert queue.asking_most <= lanes


class QueueWithHole(Queue):
    """A file of the queue is missing: RocketMQ answers that there is nothing, and names the entry behind it."""

    async def pull(self, offset: int, *, count: int) -> PulledBytes:
        if 30 <= offset < 70:
            return self._answer(PullStatus.NO_NEW, 70)
        return await super().pull(offset, count=min(count, 30 - offset) if offset < 30 else count)


@pytest.mark.parametrize("lanes", [0, 1, 4])
def test_a_hole_in_a_queue_is_not_its_end(lanes: int) -> None:
    queue = QueueWithHole(0, 100, 7)

    async def read() -> list[PulledBytes]:
        parts = read_in_lanes(queue.pull, 0, 120, lanes=lanes, stripe=20) if lanes else read_in_turn(queue.pull, 0, 120)
        return [answer async for answer in each(parts)]

    answers = asyncio.run(read())
    assert b"".join(answer.data for answer in answers) == bytes([*range(30), *range(70, 100)])
    assert (answers[-1].status, answers[-1].next_offset) == (PullStatus.NO_NEW, 100), "the end is told once"
    assert [answer.next_offset for answer in answers if answer.status is PullStatus.NO_NEW][-2] == 70


def test_several_pulls_are_under_way_at_once() -> None:
    queue = Queue(0, 200, 5)
    asyncio.run(collect(queue, 0, 200, 4, 20))
    assert queue.asking_most == 4


def test_a_queue_that_sends_readers_back_ends_the_reading() -> None:
    async def back(offset: int, *, count: int) -> PulledBytes:
        return PulledBytes(status=PullStatus.OFFSET_ILLEGAL, next_offset=0, min_offset=0, max_offset=0)

    async def read() -> list[PulledBytes]:
        return [answer async for answer in each(read_in_lanes(back, 10, 20))]

    assert [(answer.status, answer.next_offset) for answer in asyncio.run(read())] == [(PullStatus.NO_NEW, 10)]


def test_answers_come_as_soon_as_they_are_there() -> None:
    """The first does not wait for the rest of its stripe."""

    async def first_only(offset: int, *, count: int) -> PulledBytes:
        if offset:
            await asyncio.Event().wait()
        return PulledBytes(status=PullStatus.FOUND, next_offset=1, min_offset=0, max_offset=100, data=b"x")

    async def read() -> list[PulledBytes]:
        async with aclosing(read_in_lanes(first_only, 0, 100)) as answers:
            return await anext(answers)

    (answer,) = asyncio.run(asyncio.wait_for(read(), 10))
    assert answer.next_offset == 1


def test_answers_that_came_meanwhile_come_together() -> None:
    """Whoever takes them in another thread waits once for all of them."""

    async def read() -> list[int]:
        sizes = []
        async for answers in read_in_lanes(Queue(0, 80, 5).pull, 0, 80, lanes=4, stripe=20):
            sizes.append(len(answers))
            for _ in range(20):  # time for the lanes to go on
                await asyncio.sleep(0)
        return sizes

    sizes = asyncio.run(read())
    assert sum(sizes) == 16
    assert sizes[-3:] == [4, 4, 4]


@pytest.mark.parametrize("lanes", [1, 4])
def test_what_is_read_ahead_is_bounded_in_bytes(lanes: int) -> None:
    """Whatever the size of messages, and however slow the reader is."""
    answer, ahead, pulled, used, most = 1000, 5000, 0, 0, 0

    async def pull(offset: int, *, count: int) -> PulledBytes:
        nonlocal pulled, most
        await asyncio.sleep(0)
        pulled += answer
        most = max(most, pulled - used)
        return PulledBytes(
            status=PullStatus.FOUND, next_offset=offset + 1, min_offset=0, max_offset=10_000, data=bytes(answer)
        )

    async def read() -> None:
        nonlocal used
        at = 0
        async for got in each(read_in_lanes(pull, 0, 200, lanes=lanes, stripe=50, bytes_ahead=ahead)):
            used, at = used + len(got.data), at + 1
            assert got.next_offset == at
            for _ in range(20):  # time for the lanes to do what they may
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(read(), 30))
    assert used == 200 * answer
    assert ahead <= most <= 2 * ahead + (lanes + 1) * answer  # what waits, and the list that the reader has in hand


def test_the_pace_holds_for_all_lanes_together() -> None:
    rate, answer, lanes = 20_000, 500, 4
    pulled: list[tuple[float, int]] = []

    async def pull(offset: int, *, count: int) -> PulledBytes:
        pulled.append((asyncio.get_running_loop().time(), len(pulled) * answer))
        return PulledBytes(
            status=PullStatus.FOUND, next_offset=offset + 1, min_offset=0, max_offset=100, data=bytes(answer)
        )

    async def read() -> int:
        return len([got async for got in each(read_in_lanes(pull, 0, 20, lanes=lanes, stripe=5, pace=Pace(rate)))])

    assert asyncio.run(asyncio.wait_for(read(), 30)) == 20
    began = pulled[0][0]
    for moment, before in pulled:
        assert before <= (moment - began) * rate + lanes * answer + 1


def test_a_broker_that_says_again_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so where its disk was too slow: this is not the end of the queue."""
    monkeypatch.setattr(raw_reads, "PAUSES_S", (0.0, 0.0))
    queue, refusals = Queue(0, 40, 10), 2

    async def pull(offset: int, *, count: int) -> PulledBytes:
        nonlocal refusals
        if offset == 20 and refusals:
            refusals -= 1
            return PulledBytes(status=PullStatus.NO_MATCH, next_offset=offset, min_offset=0, max_offset=40)
        return await queue.pull(offset, count=count)

    async def read(reading: Callable[..., AsyncIterator[list[PulledBytes]]]) -> bytes:
        return b"".join([answer.data async for answer in each(reading(pull, 0, 40))])

    for reading in (read_in_lanes, read_in_turn):
        refusals = 2
        assert asyncio.run(read(reading)) == bytes(range(40))
        refusals = 3
        with pytest.raises(Busy, match="message 20"):
            asyncio.run(read(reading))


def test_an_error_ends_the_other_pulls() -> None:
    running = 0

    async def failing(offset: int, *, count: int) -> PulledBytes:
        nonlocal running
        if offset == 0:
            raise OSError("no broker")
        running += 1
        try:
            await asyncio.Event().wait()
        finally:
            running -= 1
        raise AssertionError

    async def read() -> None:
        async for _ in read_in_lanes(failing, 0, 100, lanes=3, stripe=10):
            pass

    with pytest.raises(OSError, match="no broker"):
        asyncio.run(read())
    assert running == 0


@pytest.mark.parametrize("wrong", [{"lanes": 0}, {"stripe": 0}])
def test_sizes_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    async def read() -> None:
        async for _ in read_in_lanes(Queue(0, 1, 1).pull, 0, 1, **wrong):
            pass

    with pytest.raises(ValueError, match="at least 1"):
        asyncio.run(read())


def test_bytes_of_a_real_queue(kappamq_broker: BrokerKit) -> None:
    with kappamq_broker.admin() as admin:
        admin.create_topic("tea", queues=1)
    with kappamq_broker.producer() as producer:
        producer.send_batch([Message("tea", b"cup %d" % number) for number in range(100)])
    with kappamq_broker.pull_consumer(group="audit") as consumer:
        (queue,) = consumer.queues("tea")
        answers = list(consumer.read_bytes(queue, 10, 90, lanes=3, stripe=16))
        bodies = [record.body for answer in answers for record in iter_records(answer.data)]
        assert bodies == [b"cup %d" % number for number in range(10, 90)]
        assert consumer.pull_bytes(queue, 100).status is PullStatus.NO_NEW
