"""`python -m benchmarks.hostile.peers BROKER NAMESERVER`: sends the corpus, and prints as JSON what came back.

Each connection has the whole corpus in an order of its own, one request after the other. Answers are counted by code; connections
that the server closed, and requests without an answer, by the name of the case. With `--only` just the cases whose names contain
the text, and with `--each FILE` one case after the other, with the CPU that the longest turn of the loop used meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from pathlib import Path

from benchmarks.hostile.corpus import BROKER, Case, cases
from benchmarks.hostile.server import Probe
from kappamq.protocol.frame import decode

PATIENCE_S = 20.0


class Peers:
    def __init__(self, broker: str, nameserver: str, seconds: float) -> None:
        self._address = {True: broker, False: nameserver}
        self._until = time.monotonic() + seconds
        self.sent = 0
        self.codes: Counter[int] = Counter()
        self.closed: Counter[str] = Counter()
        self.silent: Counter[str] = Counter()
        self.without_text: Counter[str] = Counter()
        self.slowest: dict[str, float] = {}

    async def go_on(self, corpus: list[Case]) -> None:
        """Send these again and again until the time is over."""
        connections: dict[bool, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        while True:
            for case in corpus:
                if time.monotonic() > self._until:
                    for _reader, writer in connections.values():
                        writer.close()
                    return
                await self._one(case, connections)

    async def send_once(self, corpus: list[Case]) -> None:
        """Each of these once, over a connection of their own."""
        connections: dict[bool, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        for case in corpus:
            await self._one(case, connections)
        for _reader, writer in connections.values():
            writer.close()

    async def _one(
        self, case: Case, connections: dict[bool, tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    ) -> None:
        place = case.server == BROKER
        if place not in connections:
            host, _, port = self._address[place].rpartition(":")
            connections[place] = await asyncio.open_connection(host, int(port), limit=1 << 20)
        reader, writer = connections[place]
        self.sent += case.times
        began = time.monotonic()
        try:
            writer.write(case.frame * case.times)
            async with asyncio.timeout(PATIENCE_S):
                await writer.drain()
            for _ in range(case.times):
                async with asyncio.timeout(PATIENCE_S):
                    await self._answer(reader, case)
            self.slowest[case.name] = max(self.slowest.get(case.name, 0.0), time.monotonic() - began)
            return
        except TimeoutError:
            self.silent[case.name] += 1
        except (OSError, asyncio.IncompleteReadError):
            self.closed[case.name] += 1
        connections.pop(place)
        writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, case: Case) -> None:
        while True:
            head = await reader.readexactly(4)
            frame = decode(head + await reader.readexactly(int.from_bytes(head, "big")))
            if frame.is_response:
                self.codes[frame.code] += 1
                if frame.code and not frame.remark:
                    self.without_text[case.name] += 1
                return


async def main(options: argparse.Namespace) -> dict[str, object]:
    corpus = [case for case in cases() if options.only in case.name]
    peers = Peers(options.broker, options.nameserver, options.seconds)
    if options.each is not None:
        return {"turns_ms": await _each(peers, corpus, Probe(options.each)), **_report(peers)}
    print("ready", flush=True)  # all of the corpus is made
    dice = random.Random(options.seed)
    await asyncio.gather(*(peers.go_on(dice.sample(corpus, len(corpus))) for _ in range(options.connections)))
    return _report(peers)


async def _each(peers: Peers, corpus: list[Case], probe: Probe) -> dict[str, float]:
    found: dict[str, float] = {}
    connections: dict[bool, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
    for case in corpus:
        probe.longest_s = 0.0
        await peers._one(case, connections)
        await asyncio.sleep(0.005)
        found[case.name] = probe.longest_s * 1000
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _report(peers: Peers) -> dict[str, object]:
    slowest = sorted(peers.slowest.items(), key=lambda item: -item[1])[:20]
    return {
        "sent": peers.sent,
        "codes": peers.codes,
        "closed": peers.closed,
        "silent": peers.silent,
        "without_text": peers.without_text,
        "slowest_s": dict(slowest),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile.peers", description=__doc__)
    parser.add_argument("broker")
    parser.add_argument("nameserver")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--each", type=Path)
    return parser


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(_parser().parse_args()))), flush=True)
