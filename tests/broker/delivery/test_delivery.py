"""Delivery: what its features need is there before and after the store is opened."""

from __future__ import annotations

from pathlib import Path

from tests.broker.running import run, running


def test_every_request_of_delivery_has_a_handler(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            assert all(broker.bursts.handlers[code] for code in broker.delivery.handlers())

    run(scenario())
