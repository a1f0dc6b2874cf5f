"""What a polite client feels of hostile ones: its sends alone, and while others send the worst requests that the limits admit."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bench import Bench, Figure
from benchmarks.hostile.server import Probe
from benchmarks.loader import SEND, Load, Running
from benchmarks.process import LOAD_CORE, Child, ProcessFailed
from benchmarks.servers import nameserver

RATE = 400
PEERS = 8
GOAL_MS = 20.0
TURN_MS = 50.0
READY_S_MAX = 120.0
UNDISTURBED = os.SCHED_FIFO if os.geteuid() == 0 else os.SCHED_OTHER
"""All threads of broker and polite client come before everything else on the machine, where that is allowed: what other programs do
is not to be counted. With a low nice value alone, a thread that holds the interpreter still waits for tens of milliseconds."""


def run(bench: Bench) -> list[Figure]:
    """p99.9 of sends at a steady rate, without and with hostile peers, and the CPU of the longest turn."""
    seconds = max(2.0, 10 * bench.size.seconds)
    sends = Load(mode=SEND, connections=4, topic="polite", rate=RATE, seconds=seconds, warmup=bench.size.warmup)
    with bench.folder(on_disk=False) as home, nameserver(home / "names") as names:
        probe = Probe(home / "probe")
        with _broker(home, names) as server:
            ready = {**server.wait_for_json(READY_S_MAX)[0], "nameserver": names}
            bench.say("hostile: polite sends alone")
            alone, loop_alone = _polite(server, ready["broker"], sends, home / "alone", probe)
            peers = _peers(home, ready, seconds + 2, bench.size.hostile)
            peers.wait_for("ready", READY_S_MAX)
            bench.say("hostile: polite sends beside hostile peers")
            beside, loop_beside = _polite(server, ready["broker"], sends, home / "beside", probe)
            peers.wait_for('"sent"', READY_S_MAX)
            found = json.loads(peers.printed.splitlines()[-1])
            peers.kill()
    return _figures(alone, beside, loop_alone, loop_beside, found)


def _broker(home: Path, names: str) -> Child:
    command = [sys.executable, "-m", "benchmarks.hostile.server", str(home / "probe"), "broker", "--json"]
    command += ["--listen", "127.0.0.1", "--port", "0", "--nameserver", names, "--data", str(home / "store")]
    command += ["--set", "brokerName=broker-a", "--set", "brokerIP1=127.0.0.1"]
    return Child(command, home / "server", env=_old_code(), policy=UNDISTURBED, priority=1)


def _old_code() -> Mapping[str, str]:
    """`KAPPAMQ_HOSTILE_SOURCE=dir` measures the servers of another source tree, to compare with."""
    source = os.environ.get("KAPPAMQ_HOSTILE_SOURCE")
    return {"PYTHONPATH": source} if source else {}


def _peers(home: Path, ready: dict[str, Any], seconds: float, only: str) -> Child:
    command = [sys.executable, "-m", "benchmarks.hostile.peers", ready["broker"], ready["nameserver"]]
    command += ["--connections", str(PEERS), "--seconds", str(seconds), "--only", only]
    # They share a core with the polite client, and give way to it: what it feels is to be the broker's doing.
    return Child(command, home / "peers", cores=LOAD_CORE)


class Loop(NamedTuple):
    """What the loop of the broker has seen meanwhile, in milliseconds."""

    turn_ms: float  # CPU of the longest turn
    p999_ms: float  # by which a look at the clock came late
    longest_ms: float


def _polite(server: Child, address: str, load: Load, home: Path, probe: Probe) -> tuple[Any, Loop]:
    probe.begin_anew()
    loaded = Running(address, load, home, (server.pid,), policy=UNDISTURBED, priority=2).result()
    if loaded.errors or loaded.wrong:
        raise ProcessFailed(f"polite sends were refused: {loaded.errors}, {loaded.wrong} wrong answers")
    return loaded, Loop(probe.longest_s * 1000, probe.late_ms(0.999), probe.late_ms(1.0))


def _figures(alone: Any, beside: Any, loop_alone: Loop, loop_beside: Loop, found: dict[str, Any]) -> list[Figure]:
    added_ms = (beside.p999_us - alone.p999_us) / 1000
    shape = f"{RATE} sends/s, {PEERS} hostile connections, {found['sent']} hostile requests"
    closed = sum(found["closed"].values())
    wrong = json.dumps({name: found[name] for name in ("closed", "silent", "without_text") if found[name]})[:200]
    name = "hostile"
    return [
        Figure(name, "p50 alone", alone.p50_us / 1000, "ms"),
        Figure(name, "p50 beside hostile peers", beside.p50_us / 1000, "ms"),
        Figure(name, "p99 alone", alone.p99_us / 1000, "ms"),
        Figure(name, "p99 beside hostile peers", beside.p99_us / 1000, "ms"),
        Figure(name, "p99.9 alone", alone.p999_us / 1000, "ms"),
        Figure(name, "p99.9 beside hostile peers", beside.p999_us / 1000, "ms"),
        Figure(name, "p99.9, added by hostile peers", added_ms, "ms", at_most=GOAL_MS, note=shape),
        Figure(name, "longest, beside hostile peers", beside.max_us / 1000, "ms"),
        Figure(name, "loop late alone, p99.9", loop_alone.p999_ms, "ms"),
        Figure(name, "loop late beside hostile peers, p99.9", loop_beside.p999_ms, "ms"),
        Figure(
            name,
            "loop late, p99.9 added",
            loop_beside.p999_ms - loop_alone.p999_ms,
            "ms",
            at_most=GOAL_MS,
            note="the same without network and client",
        ),
        Figure(name, "loop late beside hostile peers, longest", loop_beside.longest_ms, "ms"),
        Figure(name, "CPU of the longest turn alone", loop_alone.turn_ms, "ms"),
        Figure(name, "CPU of the longest turn", loop_beside.turn_ms, "ms", at_most=TURN_MS),
        Figure(
            name, "connections closed instead of refused", closed, "", at_most=0, note=wrong if wrong != "{}" else ""
        ),
    ]
