"""The kernel alone, twin against compiled: CPU per message inside the process, no sockets and no disk.

    python -m benchmarks.kernel [--messages 200000] [--runs 5] [--kernel twin|native]

A cycle is what the broker does with a turn of its loop: burst, take, dispatch, and now and then the entries and index rows
that go to files. `python -m benchmarks kernel` measures the same ratio with a whole broker around it.
"""

from __future__ import annotations

import argparse
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from kappamq.native import load
from kappamq.native.layout import DONE, FOUND

TOPIC = "BenchmarkTest"
QUEUES = 8
BORN = bytes([10, 0, 0, 1, 0, 0, 200, 1])
NOW = 1_700_000_000_000
LOG_BYTES = 1 << 30
PULL_COUNT = 32


@dataclass(frozen=True)
class Measured:
    scenario: str
    kernel: str
    microseconds: float  # CPU per message
    fingerprint: int  # of everything the kernel produced: the same work, or the number means nothing


def make_kernel(module: ModuleType) -> Any:
    kernel = module.Kernel(
        segment_bytes=LOG_BYTES, store_host=bytes([127, 0, 0, 1, 0, 0, 42, 159]), region="DefaultRegion", cluster="DefaultCluster",
        trace_on=True, tail_crc=True, message_bytes_max=4 << 20, frame_bytes_max=16 << 20, header_bytes_max=256 << 10,
        pending_bytes_max=8 << 20, transfer_bytes_max=256 << 10, transfer_count_max=PULL_COUNT,
    )  # fmt: skip
    kernel.set_topic(TOPIC, QUEUES, QUEUES, 3)
    kernel.set_row(1, "consumers", TOPIC, False, 100, None)
    kernel.accepting = True
    kernel.open_segment(0, LOG_BYTES)
    return kernel


# -- requests ----------------------------------------------------------------------------------------------------------


def fields(number: int, properties: str, **changed: str) -> dict[str, str]:
    return {
        "a": "benchmark_producer", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % QUEUES), "f": "0",
        "g": str(NOW + number % 1000), "h": "0", "i": properties, "j": "0", "k": "false", "m": "false", "n": "broker-a", **changed,
    }  # fmt: skip


def json_frame(code: int, ext: dict[str, str], opaque: int, body: bytes) -> bytes:
    pairs = ",".join(f'"{name}":"{value}"' for name, value in ext.items())
    text = f'{{"code":{code},"extFields":{{{pairs}}},"flag":0,"language":"JAVA","opaque":{opaque},'
    head = (
        f'{text}"serializeTypeCurrentRPC":"JSON","version":479}}'.replace("\x01", "\\u0001")
        .replace("\x02", "\\u0002")
        .encode()
    )
    return struct.pack(">ii", 4 + len(head) + len(body), len(head)) + head + body


def binary_frame(code: int, ext: dict[str, str], opaque: int, body: bytes) -> bytes:
    pairs = b"".join(
        struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", len(value)) + value.encode()
        for name, value in ext.items()
    )
    head = struct.pack(">hBhiiii", code, 0, 479, opaque, 0, 0, len(pairs)) + pairs
    return struct.pack(">iI", 4 + len(head) + len(body), 1 << 24 | len(head)) + head + body


def properties(number: int) -> str:
    key = f"7F0000011A2B18B4AAC2{number & 0xFFFFFFFFFFFF:012X}"
    return f"KEYS\x01key{number:06d}\x02UNIQ_KEY\x01{key}\x02WAIT\x01true\x02TAGS\x01TagA\x02"


def send(number: int, body: bytes, binary: bool = False) -> bytes:
    return (binary_frame if binary else json_frame)(310, fields(number, properties(number)), number, body)


def batch(number: int, members: int, body: bytes) -> bytes:
    parts = []
    for member in range(members):
        text = properties(number * members + member).encode()
        parts.append(
            struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, 0, len(body))
            + body
            + struct.pack(">H", len(text))
            + text
        )
    return json_frame(320, fields(number, properties(number), m="true"), number, b"".join(parts))


def pull(number: int, offset: int) -> bytes:
    ext = {
        "consumerGroup": "consumers", "topic": TOPIC, "queueId": str(number % QUEUES), "queueOffset": str(offset),
        "maxMsgNums": str(PULL_COUNT), "sysFlag": "2", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "1",
        "subscription": "*", "expressionType": "TAG",
    }  # fmt: skip
    return json_frame(11, ext, number, b"")


# -- measuring ---------------------------------------------------------------------------------------------------------


def run_sends(module: ModuleType, bursts: list[bytes], messages_per_burst: int, cycles: int) -> tuple[float, int]:
    """(CPU seconds per message, fingerprint) of feeding the bursts in turn."""
    kernel = make_kernel(module)
    fingerprint = 0
    spent = 0
    for cycle in range(cycles):
        if kernel.append_offset > LOG_BYTES - (16 << 20):
            kernel.open_segment(0, LOG_BYTES)
        data = bursts[cycle % len(bursts)]
        begun = time.process_time_ns()
        _consumed, verdict, acks, *_ = kernel.burst(data, 0, BORN, NOW)
        start, records = kernel.take()
        eaten, _woken = kernel.dispatch(records, start)
        if cycle % 16 == 15:
            kernel.take_entries(1000)
            kernel.take_index()
        spent += time.process_time_ns() - begun
        assert verdict == DONE
        assert eaten == len(records)
        fingerprint = zlib.crc32(records, zlib.crc32(acks, fingerprint))
    return spent / (cycles * messages_per_burst) / 1e9, fingerprint


def run_pulls(module: ModuleType, cycles: int) -> tuple[float, int]:
    """(CPU seconds per message, fingerprint) of answering pulls of 32 messages of 100 bytes, eight in a burst."""
    kernel = make_kernel(module)
    per_queue = PULL_COUNT * 4
    kernel.burst(b"".join(send(number, b"x" * 100) for number in range(per_queue * QUEUES)), 0, BORN, NOW)
    start, records = kernel.take()
    kernel.map_segment(0, records)
    kernel.dispatch(records, start)
    burst = b"".join(pull(number, number % 4 * PULL_COUNT) for number in range(QUEUES))
    spent, fingerprint = 0, 0
    for _ in range(cycles):
        begun = time.process_time_ns()
        replies = kernel.burst(burst, 0, BORN, NOW)[4]
        spent += time.process_time_ns() - begun
        fingerprint = zlib.crc32(replies[:100], fingerprint)
    assert kernel.pull(TOPIC, 0, 0, PULL_COUNT, None, 1, False, False)[0] == FOUND
    return spent / (cycles * QUEUES * PULL_COUNT) / 1e9, fingerprint


def scenarios(messages: int) -> dict[str, Callable[[ModuleType], tuple[float, int]]]:
    small, large = b"x" * 100, b"x" * 1024

    def sends(per_burst: int, body: bytes, binary: bool = False) -> Callable[[ModuleType], tuple[float, int]]:
        bursts = [b"".join(send(first * per_burst + n, body, binary) for n in range(per_burst)) for first in range(32)]
        return lambda module: run_sends(module, bursts, per_burst, max(messages // per_burst, 1))

    batches = [batch(number, 32, small) for number in range(32)]
    return {
        "1 frame, 100 B": sends(1, small),
        "64 frames, 100 B": sends(64, small),
        "64 frames, 1 KiB": sends(64, large),
        "64 binary frames, 100 B": sends(64, small, True),
        "batch of 32, 100 B": lambda module: run_sends(module, batches, 32, max(messages // 32, 1)),
        "pulls of 32, 100 B": lambda module: run_pulls(module, max(messages // (QUEUES * PULL_COUNT), 1)),
    }


def measure(messages: int, runs: int, kinds: tuple[str, ...]) -> list[Measured]:
    """The best of `runs` interleaved runs of each scenario with each kernel."""
    results = []
    for name, run in scenarios(messages).items():
        best: dict[str, tuple[float, int]] = {}
        for _ in range(runs):
            for kind in kinds:
                best[kind] = min(best.get(kind, (float("inf"), 0)), run(load(kind)))
        results += [Measured(name, kind, seconds * 1e6, fingerprint) for kind, (seconds, fingerprint) in best.items()]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kernel", choices=("twin", "native"))
    options = parser.parse_args()
    kinds = (options.kernel,) if options.kernel else ("twin", "native")
    results = measure(options.messages, options.runs, kinds)
    print("CPU microseconds per message: burst, append, dispatch, keys; best of", options.runs)
    for name in dict.fromkeys(result.scenario for result in results):
        row = {result.kernel: result for result in results if result.scenario == name}
        figures = "  ".join(f"{kind} {row[kind].microseconds:8.3f}" for kind in kinds)
        ratio = f"  {row['twin'].microseconds / row['native'].microseconds:5.1f}x" if len(row) == 2 else ""
        same = "" if len({result.fingerprint for result in row.values()}) == 1 else "  NOT THE SAME WORK"
        print(f"{name:26} {figures}{ratio}{same}")


if __name__ == "__main__":
    main()
