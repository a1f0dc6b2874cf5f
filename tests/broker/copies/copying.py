"""A master and slaves, real brokers on loopback, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kappamq.broker.broker import Broker
from kappamq.config.copies import SLAVE, CopiesConfig
from tests.broker.running import running
from tests.waiting import eventually_async


def copies_port(master: Broker) -> str:
    return f"127.0.0.1:{master.port + 1}"


@asynccontextmanager
async def slave_of(
    master: Broker,
    root: Path,
    mode: str = "twin",
    *,
    broker_id: int = 1,
    copies: dict[str, Any] | None = None,
    **changes: Any,
) -> AsyncIterator[Broker]:
    config = CopiesConfig(**({"role": SLAVE, "master_address": copies_port(master)} | (copies or {})))
    async with running(root, mode, copies=config, broker_id=broker_id, **changes) as slave:
        yield slave


async def caught_up(master: Broker, *slaves: Broker) -> None:
    """Every slave has, and shows, what the master has written by now."""
    master.writer.end_turn()
    end = master.store.log.end
    for slave in slaves:
        await eventually_async(
            lambda slave=slave: slave.store.marks.dispatched.offset >= end,  # type: ignore[misc]
            text="the slave has what the master has",
        )


def log_bytes(broker: Broker, start: int, end: int) -> bytes:
    """The log of a broker, end marks and all."""
    parts = []
    while start < end:
        part = broker.store.pread(start, end - start)
        assert part, f"the log cannot be read at {start}"
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def same_logs(*brokers: Broker) -> None:
    start = max(broker.store.log.min for broker in brokers)
    end = min(broker.store.log.end for broker in brokers)
    assert end > start, "nothing to compare"
    first, *others = (log_bytes(broker, start, end) for broker in brokers)
    for other in others:
        assert first == other
