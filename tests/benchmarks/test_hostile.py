"""The hostile corpus: it covers every request code, stays within frames, and a broker answers all of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.hostile.corpus import BROKER, NAMESERVER, Case, cases
from benchmarks.hostile.peers import Peers
from benchmarks.hostile.server import Probe
from kappamq.config.net import NetConfig
from kappamq.local import Local
from kappamq.protocol.codes import RequestCode
from tests.waiting import eventually_async

SMALL = NetConfig(
    frame_bytes_max=1 << 20,
    header_bytes_max=64 << 10,
    request_bytes_max=16 << 10,
    request_header_bytes_max=16 << 10,
    heartbeat_bytes_max=64 << 10,
    list_bytes_max=64 << 10,
    registration_bytes_max=1 << 20,
    loose_json_bytes_max=16 << 10,
)
PROPERTIES = {
    f"net.{name}": str(getattr(SMALL, name))
    for name in (
        *(
            "frame_bytes_max",
            "header_bytes_max",
            "request_bytes_max",
            "request_header_bytes_max",
            "heartbeat_bytes_max",
        ),
        *("list_bytes_max", "registration_bytes_max", "loose_json_bytes_max"),
    )
}


def test_every_code_is_covered_and_every_case_is_one_frame() -> None:
    covered: set[str] = set()
    for case in cases(SMALL):
        covered.add(case.name.split()[0])
        assert case.server in (BROKER, NAMESERVER)
        assert len(case.frame) == 4 + int.from_bytes(case.frame[:4], "big")
    assert {code.name for code in RequestCode} - covered == {"DELETE_EXPIRED_COMMITLOG", "CLEAN_EXPIRED_CONSUMEQUEUE"}


@pytest.mark.timeout(240)
def test_everything_is_answered_and_refusals_have_a_text(tmp_path: Path) -> None:
    """With small limits, all of the corpus: nobody is closed, nothing stays without an answer."""

    async def test() -> Peers:
        properties = {**PROPERTIES, "mappedFileSizeCommitLog": str(64 << 20), "brokerName": "broker-a"}
        async with Local.at(tmp_path, nameserver_port=0, broker_port=0, properties=properties) as local:
            peers = Peers(local.broker, local.nameserver, 600)
            halves: list[list[Case]] = [[], []]
            for number, case in enumerate(cases(SMALL)):
                halves[number % 2].append(case)
            await asyncio.gather(*(peers.send_once(half) for half in halves))
            return peers

    peers = asyncio.run(asyncio.wait_for(test(), 230))
    assert not peers.closed
    assert not peers.silent
    assert not peers.without_text
    assert sum(peers.codes.values()) == peers.sent > 1000


def test_the_probe_is_seen_by_two(tmp_path: Path) -> None:
    async def test() -> None:
        here, there = Probe(tmp_path / "probe"), Probe(tmp_path / "probe")
        here.watch(asyncio.get_running_loop())
        await eventually_async(lambda: there.longest_s)
        there.longest_s = 0.0
        assert here.longest_s < 60
        await eventually_async(lambda: sum(there._late))
        assert there.late_ms(1.0) == here.late_ms(1.0)
        there.begin_anew()
        assert sum(here._late) == 0

    asyncio.run(asyncio.wait_for(test(), 30))
