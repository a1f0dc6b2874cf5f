"""What operators and slaves are told about timers."""

from __future__ import annotations

import struct
from pathlib import Path

from kappamq.protocol import fastjson
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.headers.admin import GetBrokerRuntimeInfo, GetTimerCheckpoint, GetTimerMetrics
from tests.broker.running import run
from tests.broker.timing import START_MS, timed


def test_figures(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with timed(tmp_path) as it:
            assert (await it.client.ask(GetTimerCheckpoint())).body == bytes(56)
            for number in range(5):
                await it.send(b"%d" % number, TIMER_DELAY_MS=5000 + number)
            await it.send(b"x", topic="coffee", TIMER_DELAY_SEC=60)
            await it.pass_ms(5002)
            read_ms, position, offset, master, *_version = struct.unpack(
                ">7q", (await it.client.ask(GetTimerCheckpoint())).body
            )
            assert (position, offset, master) == (6 * 52, 6, 6)
            assert START_MS - 2000 <= read_ms <= START_MS + 5000
            assert read_ms % 1000 == 0
            metrics = fastjson.loads((await it.client.ask(GetTimerMetrics())).body)
            assert {topic: row["count"] for topic, row in metrics["timingCount"].items()} == {"coffee": 1, "tea": 2}
            table = KVTable.decode((await it.client.ask(GetBrokerRuntimeInfo())).body).table
            assert (table["timerCongestNum"], table["timerOffsetBehind"], table["timerReadBehind"]) == ("3", "0", "0")
            assert float(table["timerEnqueueTps"]) > 0
            assert float(table["timerDequeueTps"]) > 0

    run(scenario())
