"""Bit flips under a running broker: each is noticed within one pass of the scrub, or lies where nothing can notice it.

A store is filled once. Each round starts a broker on a copy, flips one bit of one file behind its back, lets the scrub make one pass,
and reads every message. Bytes are chosen by kind of file, so that small files get their share. What must hold:

- a flip in a byte that a checksum or a second copy covers is reported, or the broker has written that byte anew meanwhile;
- every message whose record was not hit is delivered unchanged, and no message is delivered with another body than was sent;
- derived files are repaired: a second pass finds nothing more, and neither does `store verify` after the stop;
- nothing crashes, nothing stalls.

    python -m benchmarks flips --count 500 --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kappamq.broker.broker import Broker
from kappamq.broker.upkeep import scrub as scrub_module
from kappamq.native.layout import MAGIC_BLANK
from kappamq.protocol.records import batch
from kappamq.protocol.records.entries import entry_position
from kappamq.protocol.records.record import iter_records
from kappamq.store.log.log_reader import Damage, LogReader
from kappamq.store.reader import StoreReader
from kappamq.store.timer.entries import SLOT, SLOTS, STAMPED_BYTES, UNIT, TimerCheckpoint, read_stamp
from kappamq.store.verify.report import Kind
from kappamq.store.verify.verify import verify
from tests.broker.running import Speaker, running, speaking

SIZES: dict[str, Any] = {
    "segment_bytes": 64 << 10,
    "queue_file_entries": 100,
    "index_slots": 97,
    "index_entries": 400,
    "message_bytes_max": 16 << 10,
    "timer_file_bytes": 4096,
    "scrub_bytes_per_second": 1 << 30,
}
ROUND_S = 60.0


@dataclass(frozen=True)
class Stretch:
    """Bytes [start, stop) of a file, all of one kind. `covered`: a flip in them must be reported."""

    kind: str
    path: Path  # below the store
    start: int
    stop: int
    covered: bool


@dataclass
class Summary:
    rounds: int = 0
    wrong: list[str] = field(default_factory=list)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)  # (kind, outcome) -> how many

    def table(self) -> str:
        kinds = sorted({kind for kind, _outcome in self.outcomes})
        columns = ["reported", "written anew", "not noticed", "wrong"]
        lines = [f"| bytes hit | flips | {' | '.join(columns)} |", f"|---|{'---|' * (len(columns) + 1)}"]
        for kind in kinds:
            row = [self.outcomes[kind, column] for column in columns]
            lines.append(f"| {kind} | {sum(row)} | {' | '.join(map(str, row))} |")
        return "\n".join(lines)


# -- the store -----------------------------------------------------------------------------------------------------------


async def fill(root: Path, mode: str) -> dict[tuple[str, int], list[bytes]]:
    """A store with all kinds of files in use; what its queues hold."""
    sent: dict[tuple[str, int], list[bytes]] = {}
    async with running(root, mode, store=SIZES) as broker, speaking(broker) as client:
        await client.subscribe("g", "plain")
        for number in range(420):
            topic, queue_id = ("plain", "tagged", "other")[number % 3], number % 2
            # Some records as a Java broker writes them by default: their headers have no checksum.
            broker.kernel.tail_crc = number % 4 != 0
            body = b"%s %d " % (topic.encode(), number) + b"." * (number * 7 % 400)
            text = f"UNIQ_KEY\x01U{number:05d}\x02TAGS\x01tag{number % 5}\x02KEYS\x01k{number} all"
            await stored(client, topic, body, queue_id, text)
            sent.setdefault((topic, queue_id), []).append(body)
        broker.kernel.tail_crc = True
        for number in range(10):
            members = [b"member %d.%d" % (number, place) for place in range(3)]
            answer = await client.send_batch("batch", batch.encode([batch.Member(body=body) for body in members]))
            assert answer.code == 0, answer
            sent.setdefault(("batch", 0), []).extend(members)
        in_a_while = broker.clock.message_ms() + 3_600_000
        for number in range(20):
            await stored(
                client, "plain", b"later %d" % number, 0, f"UNIQ_KEY\x01L{number}\x02DELAY\x01{17 + number % 2}"
            )
            await stored(
                client,
                "plain",
                b"timer %d" % number,
                0,
                f"UNIQ_KEY\x01T{number}\x02TIMER_DELIVER_MS\x01{in_a_while + number * 700}",
            )
        await broker.upkeep.write_derived()
    # Once more, so that every snapshot has a .bak.
    async with running(root, mode, store=SIZES) as broker, speaking(broker) as client:
        for number in range(5):
            await stored(client, "plain", b"again %d" % number, 1, f"UNIQ_KEY\x01A{number}")
            sent["plain", 1].append(b"again %d" % number)
    return sent


async def stored(client: Speaker, topic: str, body: bytes, queue_id: int, text: str) -> None:
    answer = await client.send(topic, body, queue_id, text)
    assert answer.code == 0, answer


def stretches(root: Path) -> list[Stretch]:
    """Every file of the store, by what its bytes are."""
    found = [*_log(root), *_queues(root), *_index(root), *_beside(root), *_timers(root)]
    return [stretch for stretch in found if stretch.stop > stretch.start]


def _log(root: Path) -> list[Stretch]:
    found: list[Stretch] = []
    reader = LogReader(root / "commitlog")
    size = reader.segment_bytes
    for item in reader.scan():
        assert not isinstance(item, Damage), item
        path = Path("commitlog") / f"{item.offset - item.offset % size:020d}"
        at = item.offset % size
        if b"__CRC32#\x01" in reader.read(item.offset, item.size)[-20:]:
            found.append(Stretch("log: record", path, at, at + item.size, True))
            continue
        body = at + 88
        found.append(Stretch("log: header and properties without tail CRC", path, at, body, False))
        found.append(Stretch("log: body without tail CRC", path, body, body + len(item.record.body), True))
        found.append(
            Stretch(
                "log: header and properties without tail CRC", path, body + len(item.record.body), at + item.size, False
            )
        )
    assert {stretch.kind for stretch in found} >= {"log: record", "log: body without tail CRC"}, "both kinds of records"
    last: dict[Path, int] = {}
    for stretch in found:
        last[stretch.path] = stretch.stop
    for path, stop in last.items():
        data = (root / path).read_bytes()
        if len(data) > stop + 8 and struct.unpack_from(">i", data, stop + 4)[0] == MAGIC_BLANK:
            found.append(Stretch("log: end mark", path, stop, stop + 8, True))
            stop += 8
        found.append(Stretch("log: padding and prepared space", path, stop, len(data), False))
    reader.close()
    return found


def _queues(root: Path) -> list[Stretch]:
    found: list[Stretch] = []
    with StoreReader(root) as reader:
        bytes_each = reader.queue_files.file_bytes
        for queue in reader.queues():
            for path in sorted((root / "consumequeue" / queue.topic / str(queue.queue_id)).iterdir()):
                first = int(path.name)
                stop = min(bytes_each, max(0, queue.max * 20 - first))
                place = path.relative_to(root)
                found.append(Stretch("queue: entries", place, 0, stop, True))
                found.append(Stretch("queue: prepared space", place, stop, bytes_each, False))
    return found


def _index(root: Path) -> list[Stretch]:
    found: list[Stretch] = []
    slots, entries = SIZES["index_slots"], SIZES["index_entries"]
    with StoreReader(root, index_slots=slots, index_entries=entries) as reader:
        for info in reader.index_infos():
            path = Path("index") / info.name
            used = entry_position(slots, info.entries + 1)
            first = entry_position(slots, 1)
            found.append(Stretch("index: header", path, 0, 40, True))
            found.append(Stretch("index: slots", path, 40, entry_position(slots, 0), True))
            found.append(Stretch("index: entries", path, first, first + 12, True))
            found.append(Stretch("index: entries", path, first + 16, used, True))
            found.append(Stretch("index: prepared space", path, entry_position(slots, 0), first, False))
            found.append(Stretch("index: prepared space", path, first + 12, first + 16, False))
            found.append(Stretch("index: prepared space", path, used, entry_position(slots, entries), False))
    return found


def _beside(root: Path) -> list[Stretch]:
    found = [
        Stretch("checkpoint", Path("checkpoint"), 0, 40, True),
        Stretch("checkpoint: padding", Path("checkpoint"), 40, 4096, False),
        Stretch("position file", Path("kappamq.position"), 0, (root / "kappamq.position").stat().st_size, True),
    ]
    for path in sorted((root / "config").iterdir()):
        if ".json" in path.name:
            kind = "snapshot: .bak" if path.name.endswith(".bak") else "snapshot"
            found.append(
                Stretch(kind, path.relative_to(root), 0, path.stat().st_size, b'"textCrc"' in path.read_bytes())
            )
    return found


def _timers(root: Path) -> list[Stretch]:
    check = root / "config" / "timercheck"
    data = check.read_bytes()
    found = [
        Stretch("timer checkpoint", check.relative_to(root), 0, STAMPED_BYTES, True),
        Stretch("timer checkpoint: padding", check.relative_to(root), STAMPED_BYTES, len(data), False),
    ]
    point, first = TimerCheckpoint.decode(data), read_stamp(data, "").first
    used: set[int] = set()
    for path in sorted((root / "timerlog").iterdir()):
        start, size = int(path.name), path.stat().st_size
        stop = min((size - 16) // UNIT.size * UNIT.size, max(0, point.log_position - start))
        found.append(Stretch("timer log: units", path.relative_to(root), max(0, first - start), stop, True))
        found.append(Stretch("timer log: prepared space", path.relative_to(root), stop, size, False))
    with (root / "timerwheel").open("rb") as wheel:
        for second in range(point.read_ms // 1000, point.read_ms // 1000 + 4 * 3600):
            wheel.seek(second % SLOTS * SLOT.size)
            if SLOT.unpack(wheel.read(SLOT.size))[0] == second:
                used.add(second % SLOTS)
    for place in sorted(used):
        found.append(
            Stretch("timer wheel: pending slots", Path("timerwheel"), place * SLOT.size, (place + 1) * SLOT.size, True)
        )
    free = [place for place in range(0, SLOTS, 9973) if place not in used]
    for place in free:
        found.append(
            Stretch("timer wheel: other slots", Path("timerwheel"), place * SLOT.size, (place + 1) * SLOT.size, False)
        )
    return found


# -- a round -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flip:
    stretch: Stretch
    position: int
    bit: int

    def __str__(self) -> str:
        return f"{self.stretch.kind}: bit {self.bit} of byte {self.position} of {self.stretch.path}"


def choose(dice: random.Random, found: list[Stretch]) -> Flip:
    """A kind, then one of its bytes, then a bit: each with the same chance."""
    kind = dice.choice(sorted({stretch.kind for stretch in found}))
    of_kind = [stretch for stretch in found if stretch.kind == kind]
    place = dice.randrange(sum(stretch.stop - stretch.start for stretch in of_kind))
    for stretch in of_kind:
        if place < stretch.stop - stretch.start:
            return Flip(stretch, stretch.start + place, dice.randrange(8))
        place -= stretch.stop - stretch.start
    raise AssertionError


def apply(root: Path, flip: Flip) -> int:
    """Flip it in the file: what the byte is now."""
    fd = os.open(root / flip.stretch.path, os.O_RDWR)
    try:
        value = os.pread(fd, 1, flip.position)[0] ^ 1 << flip.bit
        os.pwrite(fd, bytes([value]), flip.position)
        return value
    finally:
        os.close(fd)


def byte_at(root: Path, flip: Flip) -> int | None:
    data = (root / flip.stretch.path).open("rb")
    with data:
        data.seek(flip.position)
        found = data.read(1)
    return found[0] if found else None


async def drain(client: Speaker, broker: Broker, topic: str, queue_id: int) -> list[tuple[int, bytes]]:
    """(number, body) of everything a consumer gets from a queue."""
    low, end, _next, _stored = broker.kernel.queue_state(topic, queue_id)
    found: list[tuple[int, bytes]] = []
    offset = low
    while offset < end:
        answer = await client.pull(topic, offset, queue_id, explicit=True, timeout=ROUND_S)
        following = int(answer.ext["nextBeginOffset"])
        assert following > offset, f"{topic}/{queue_id} stalls at {offset}: {answer}"
        if answer.code == 0:
            found += [(record.queue_offset, record.body) for record in iter_records(answer.body, check_crc=False)]
        offset = following
    return found


async def one_round(
    root: Path, mode: str, flip: Flip, sent: dict[tuple[str, int], list[bytes]]
) -> tuple[str, list[str]]:
    """(outcome, what was not as it must be)."""
    wrong: list[str] = []
    in_log = flip.stretch.kind.startswith("log: ") and "padding" not in flip.stretch.kind
    async with running(root, mode, store=SIZES) as broker, speaking(broker) as client:
        broker.scrubber.is_busy = lambda: False
        flipped = apply(root, flip)
        found = await broker.scrubber.run_pass()
        reported = bool(found)
        for key, bodies in sent.items():
            got = await drain(client, broker, *key)
            expected = list(enumerate(bodies))
            if got != expected:
                missing = [pair for pair in expected if pair not in got]
                if not in_log or len(missing) > 3 or any(pair not in expected for pair in got if not in_log):
                    wrong.append(f"{key}: {len(got)} of {len(expected)} delivered, missing {missing[:3]}")
        if found and not in_log:
            again = await broker.scrubber.run_pass()
            if again:
                wrong.append(f"a second pass still finds {[str(problem) for problem in again[:3]]}")
    rewritten = byte_at(root, flip) != flipped
    outcome = "reported" if reported else "written anew" if rewritten else "not noticed"
    if flip.stretch.covered and outcome == "not noticed":
        wrong.append("nobody noticed it")
    if not flip.stretch.covered and reported and not in_log:
        wrong.append(f"reported although nothing covers it: {[str(problem) for problem in found[:3]]}")
    report = verify(root, index_slots=SIZES["index_slots"], index_entries=SIZES["index_entries"])
    left = [
        problem
        for problem in report.problems
        if not (in_log and problem.kind in (Kind.LOG, Kind.QUEUE, Kind.INDEX, Kind.TIMER))
    ]
    if left:
        wrong.append(f"store verify still finds {[str(problem) for problem in left[:3]]}")
    return ("wrong" if wrong else outcome), wrong


def run(folder: Path, count: int, seed: int, mode: str = "native", say: Any = None) -> Summary:
    """`count` rounds; the same seed makes the same flips (in a store that differs in its times only)."""
    scrub_module._SHARE = 1  # nobody else needs the core here
    folder.mkdir(parents=True, exist_ok=True)
    template, place = folder / "template", folder / "store"
    sent = asyncio.run(fill(template, mode))
    found = stretches(template)
    assert verify(template, index_slots=SIZES["index_slots"], index_entries=SIZES["index_entries"]).problems == []
    dice = random.Random(seed)
    summary = Summary()
    for number in range(count):
        flip = choose(dice, found)
        subprocess.run(["cp", "-a", "--sparse=always", str(template), str(place)], check=True)
        try:
            outcome, wrong = asyncio.run(asyncio.wait_for(one_round(place, mode, flip, sent), ROUND_S))
        except Exception as error:
            outcome, wrong = "wrong", [f"{type(error).__name__}: {error}"]
        shutil.rmtree(place)
        summary.rounds += 1
        summary.outcomes[flip.stretch.kind, outcome] += 1
        summary.wrong += [f"round {number}: {flip}: {text}" for text in wrong]
        if say is not None:
            say(f"{number} {outcome}: {flip} {wrong or ''}")
    return summary


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks flips", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500, help="how many flips")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kernel", choices=["native", "twin"], default="native")
    parser.add_argument("--verbose", action="store_true", help="a line for each flip")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kappamq-flips-") as folder:
        summary = run(
            Path(folder) / "flips", options.count, options.seed, options.kernel, print if options.verbose else None
        )
    print(summary.table())
    for text in summary.wrong:
        print(text)
    print(
        f"{summary.rounds} flips with seed {options.seed} in {time.monotonic() - began:.0f} s: {len(summary.wrong)} violations"
    )
    return 1 if summary.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
