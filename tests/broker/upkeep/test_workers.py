"""Writers take turns, and so does what computes; readers do not. A stop waits for all of them."""

from __future__ import annotations

import asyncio
import threading
import time

from kappamq.broker.upkeep.workers import Workers


def test_writers_take_turns_and_readers_do_not() -> None:
    async def test() -> None:
        workers, done = Workers(), list[int]()
        first_may_go, meet = threading.Event(), threading.Barrier(2, timeout=10)

        def first() -> None:
            assert first_may_go.wait(10)
            done.append(0)

        writes = [workers.write(first), *(workers.write(done.append, number) for number in range(1, 20))]
        await asyncio.gather(*(workers.read(meet.wait) for _ in range(2)))  # both at once, while a write is stuck
        assert done == []
        first_may_go.set()
        await asyncio.gather(*writes)
        assert done == list(range(20))
        workers.stop()

    asyncio.run(asyncio.wait_for(test(), 30))


def test_only_one_computes_at_a_time() -> None:
    async def test() -> None:
        workers, running, most = Workers(), list[int](), list[int]()

        def compute(number: int) -> int:
            running.append(number)
            most.append(len(running))
            time.sleep(0)  # another thread may go on here
            running.remove(number)
            return number

        assert await asyncio.gather(*(workers.compute(compute, number) for number in range(100))) == list(range(100))
        assert set(most) == {1}
        workers.stop()

    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_stop_waits_for_what_was_handed_in() -> None:
    async def test() -> None:
        workers, done = Workers(), list[str]()
        workers.write(done.append, "written")
        workers.read(done.append, "read")
        workers.compute(done.append, "computed")
        workers.stop()
        workers.stop()  # a second time does nothing
        assert sorted(done) == ["computed", "read", "written"]

    asyncio.run(asyncio.wait_for(test(), 30))
