"""Entries that are only on disk: lent to the kernel within bounds, and read before they are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.pulling import lending
from tests.broker.operating import make_topic
from tests.broker.pulling.test_pull import bodies, send, with_each_kernel
from tests.broker.running import run, running, speaking


@with_each_kernel
def test_loans_are_bounded(tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "_LENT_MAX", 3)

    async def test() -> None:
        async with running(tmp_path, kernel) as broker, speaking(broker) as client:
            await make_topic(client, "t", 8)
            for queue_id in range(8):
                await send(client, 5, queue_id=queue_id)
        async with running(tmp_path, kernel) as broker, speaking(broker) as client:
            for _ in range(2):
                for queue_id in range(8):
                    assert bodies(await client.pull("t", 1, queue_id, explicit=True)) == [1, 2, 3, 4]
            assert list(broker.pulls.lending._lent) == [("t", 5), ("t", 6), ("t", 7)]

    run(test())


@with_each_kernel
def test_entries_are_read_before_they_are_needed(tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "_ENTRIES_AT_ONCE", 10)
    monkeypatch.setattr(lending, "_ENTRIES_AHEAD", 40)

    async def test() -> None:
        async with running(tmp_path, kernel) as broker, speaking(broker) as client:
            await send(client, 200)
        async with running(tmp_path, kernel) as broker, speaking(broker) as client:
            fetched: list[tuple[int, int]] = []
            worker = broker.pulls.lending._worker

            def watched(work: Any, *arguments: Any) -> Any:
                if work.__name__ == "read":
                    fetched.append(arguments[2:])
                return worker(work, *arguments)

            broker.pulls.lending._worker = watched
            for offset in range(0, 100, 5):
                assert bodies(await client.pull("t", offset, explicit=True, count_max=5)) == list(
                    range(offset, offset + 5)
                )
            assert fetched == [(10, 40), (50, 40), (90, 40)]
            await client.pull("t", 5, explicit=True, count_max=5)
            assert fetched[3:] == [(15, 40)], "who goes back begins anew"

    run(test())
