"""A chunk whose coordinator is gone for good does not keep the log for ever, and can be decided all the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kappamq.broker.batches.renewing import TIMEOUTS
from kappamq.broker.broker import Broker
from kappamq.clock import VirtualClock
from kappamq.config.broker import BrokerConfig
from tests.broker.batches.batching import Batcher
from tests.broker.batches.test_time_passes import FILES
from tests.broker.operating import make_topic
from tests.broker.running import Speaker, on_disk, run, running, speaking
from tests.store.stores import kernels
from tests.waiting import eventually_async

HOUR_S = BrokerConfig().batch_transaction_timeout_ms / 1000
TRANSACTION = "a" * 32


async def cleaned(broker: Broker, client: Speaker) -> int:
    """Write several files, and have the old ones deleted."""
    answers = await asyncio.gather(*(client.send("other", bytes(4000)) for _ in range(60)))
    assert not any(answer.code for answer in answers)
    await on_disk(broker)
    return await broker.upkeep.delete_expired(asked=True)


@pytest.mark.parametrize("kernel", kernels())
def test_what_waits_for_long_is_copied(tmp_path: Path, kernel: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        clock = VirtualClock()
        net = {"idle_s": 0}
        async with running(tmp_path, kernel, clock=clock, store=FILES, net=net) as broker, speaking(broker) as client:
            for topic in ("t", "other"):
                await make_topic(client, topic, 1)
            broker.metadata.commit("scope", ["s", "me", "gone"])
            it = Batcher(client)
            chunks = [await it.stage(0, TRANSACTION, body) for body in (b"one", b"two", b"three")]
            at = broker.delivery.batches.renewing.needed_from
            clock.advance((TIMEOUTS - 1) * HOUR_S)
            await cleaned(broker, client)
            assert broker.delivery.batches.renewing.needed_from == at, "that may be a long repair"
            clock.advance(2 * HOUR_S)
            for _ in range(3):
                before = broker.store.log.min
                assert await cleaned(broker, client) > 0
                assert broker.store.log.min > max(before, at)
            assert "scope s: its coordinator has not decided" in caplog.text
            assert "3 of them were copied" in caplog.text
        async with running(tmp_path, kernel, clock=clock, store=FILES, net=net) as broker, speaking(broker) as client:
            assert await cleaned(broker, client) > 0
            (staged,) = broker.delivery_tables.staged.table.values()
            assert [chunk.place for chunk in staged.chunks.values()] == [place for place, _crc in chunks]
            places = [chunks[number][0] for number in (2, 0)]
            # It is back, and had decided before it went.
            broker.metadata.commit("chunks-decided", [TRANSACTION, places])
            broker.delivery.batches.participant._on_decided()
            await eventually_async(lambda: staged.is_published, text="published")
            assert [record.body for record in await client.read("t")] == [b"three", b"one"]
            assert broker.delivery.batches.renewing.needed_from == broker.kernel.append_offset

    run(test())
