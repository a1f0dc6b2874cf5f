"""Long work in short pieces."""

from __future__ import annotations

import asyncio

from kappamq.broker.upkeep.slices import in_slices, rows, spliced
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.admin import TopicOffset, TopicStatsTable


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


def test_answers_are_put_together_from_rows() -> None:
    offsets = [{MessageQueue("t", "b", number): TopicOffset(number, 9)} for number in range(3)]
    whole = TopicStatsTable({queue: offset for some in offsets for queue, offset in some.items()}, 1.5)
    parts = [rows(some) for some in offsets] + [rows({})]
    assert spliced(TopicStatsTable(put_tps=1.5).encode(), "offsetTable", parts) == whole.encode()
    assert spliced(b'{"list":[],"n":1}', "list", [b"1,2", b"", b"3"]) == b'{"list":[1,2,3],"n":1}'
