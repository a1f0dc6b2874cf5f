"""Long work in short pieces."""

from __future__ import annotations

import asyncio

from kappamq.broker.slices import in_slices


def test_all_items_come_in_order_and_others_have_a_turn() -> None:
    turns = 0

    async def somebody_else() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> list[list[int]]:
        task = asyncio.create_task(somebody_else())
        try:
            return [list(some) async for some in in_slices(range(10), 4)]
        finally:
            task.cancel()

    assert asyncio.run(main()) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert turns >= 2


def test_nothing_gives_nothing() -> None:
    async def main() -> list[object]:
        return [some async for some in in_slices([])]

    assert asyncio.run(main()) == []
