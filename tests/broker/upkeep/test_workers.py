"""Writers take turns, readers do not, and a stop waits for both."""

from __future__ import annotations

import asyncio
import threading

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


def test_a_stop_waits_for_what_was_handed_in() -> None:
    async def test() -> None:
        workers, done = Workers(), list[str]()
        workers.write(done.append, "written")
        workers.read(done.append, "read")
        workers.stop()
        workers.stop()  # a second time does nothing
        assert sorted(done) == ["read", "written"]

    asyncio.run(asyncio.wait_for(test(), 30))
