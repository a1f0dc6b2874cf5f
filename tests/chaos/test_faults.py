"""A pause and a cut in every test run, and the relays that the cuts are made of."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.servers import nameserver
from tests.chaos import faults
from tests.chaos.network import HOST, Network
from tests.waiting import eventually_async


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_leader_that_is_cut_off_takes_nothing_with_it(tmp_path: Path) -> None:
    with nameserver(tmp_path / "names") as names:
        summary = asyncio.run(faults.run(tmp_path, names, 1, 4711, only="leader unheard"))
    assert summary.wrong == []
    assert summary.faults == {"leader unheard": 1}
    assert summary.acked > 0


def test_what_is_cut_waits_and_the_other_way_goes_on() -> None:
    async def test() -> None:
        heard: list[bytes] = []
        far: list[asyncio.StreamWriter] = []

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far.append(writer)
            while data := await reader.read(100):
                heard.append(data)

        server = await asyncio.start_server(listen, HOST, 0)
        network = Network(["a", "b"])
        port = network.route("a", "b", server.sockets[0].getsockname()[1])
        network.route("b", "a", 9)
        await network.start()
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"one")
        await eventually_async(lambda: heard == [b"one"])
        network.cut("a", "b")
        writer.write(b"two")
        far[0].write(b"back")
        assert await reader.readexactly(4) == b"back"
        assert heard == [b"one"]
        network.heal()
        await eventually_async(lambda: heard == [b"one", b"two"])
        writer.close()
        await network.stop()
        server.close()

    asyncio.run(asyncio.wait_for(test(), 60))
