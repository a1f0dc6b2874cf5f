"""Two kernels, one history: whatever the compiled one answers, the twin must answer, byte for byte.

    python -m tests.native.fuzz [frames] [--seed N] [--rounds-from N] [--extension FILE]

A round is one seed: fresh kernels, some 200 frames in bursts cut anywhere, and everything else that the broker and the store
do with a kernel in between. After each step the two are compared. The first difference raises `Difference`, which names the
seed; seeds that once failed are kept in seeds.txt.
"""

from __future__ import annotations

import argparse
import importlib.util
import struct
import sys
import time
from random import Random
from types import ModuleType
from typing import Any

from kappamq.native import load, pure
from kappamq.native.layout import (
    BAD,
    DONE,
    FULL,
    HALF_OP_TOPIC,
    HALF_TOPIC,
    LEFT,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    HalfEnded,
    HalfOpened,
)
from kappamq.native.pure_append import NoRecord
from kappamq.native.pure_record import java_hash
from tests.native import frames

FRAMES_PER_ROUND = 200
HOSTS = [bytes([127, 0, 0, 1, 0, 0, 42, 159]), bytes(range(16)) + bytes([0, 0, 200, 1])]


class Difference(AssertionError):
    pass


def load_extension(path: str) -> ModuleType:
    """The kernel from a file of its own: a build with sanitizers, or without SIMD."""
    spec = importlib.util.spec_from_file_location("kappamq.native._kernel", path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _copied(value: Any) -> Any:
    """What a kernel lends, a buffer of its own, as the bytes that its twin returns."""
    if type(value) is tuple:
        return tuple(bytes(one) if isinstance(one, memoryview) else one for one in value)
    return value


class Both:
    """A kernel of each kind; every call goes to both, and they must agree on result or exception.

    A name that does not exist is a mistake in this harness: it would fail alike on both sides, and nothing would be compared."""

    def __init__(self, modules: tuple[ModuleType, ModuleType], seed: int, **settings: Any) -> None:
        self._seed = seed
        self._modules = modules
        self._kernels = [module.Kernel(**settings) for module in modules]

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            return self.same(
                [lambda kernel=kernel: getattr(kernel, name)(*args) for kernel in self._kernels], name, args
            )

        return call

    def function(self, name: str, *args: Any) -> Any:
        return self.same([lambda module=module: getattr(module, name)(*args) for module in self._modules], name, args)

    def get(self, name: str) -> Any:
        return self.same([lambda kernel=kernel: getattr(kernel, name) for kernel in self._kernels], name, ())

    def set(self, name: str, value: Any) -> None:
        for kernel in self._kernels:
            setattr(kernel, name, value)

    def same(self, calls: list[Any], name: str, args: tuple[Any, ...]) -> Any:
        results = []
        for call in calls:
            try:
                results.append(("returned", _copied(call())))
            except (NameError, AttributeError):
                raise
            except Exception as error:
                # The twin's NoRecord is a ValueError for whoever calls.
                kind = "ValueError" if isinstance(error, NoRecord) else type(error).__name__
                results.append((kind, error.args if kind == "SegmentFull" else ()))
        if results[0] != results[1] or repr(results[0]) != repr(
            results[1]
        ):  # repr: True is not 1, a list is not a tuple
            raise Difference(f"seed {self._seed}: {name}{args!r:.3000}\n  {results[0]!r:.3000}\n  {results[1]!r:.3000}")
        kind, value = results[0]
        return value if kind == "returned" else kind


class Round:
    def __init__(self, modules: tuple[ModuleType, ModuleType], seed: int) -> None:
        r = self.r = Random(seed)
        self.later = Random(-1 - seed)  # for what was added later: the history of a kept seed stays what it was
        self.segment_bytes = r.choice([1 << 14, 1 << 16, 1 << 18])
        self.both = Both(
            modules, seed, segment_bytes=self.segment_bytes, store_host=r.choice(HOSTS), region=r.choice(["DefaultRegion", 'r"é', ""]),
            cluster=r.choice(["DefaultCluster", "ç"]), trace_on=r.random() < 0.5, tail_crc=r.random() < 0.7,
            message_bytes_max=r.choice([100] + [4096, 1 << 22] * 4), frame_bytes_max=r.choice([3000] + [1 << 16, 1 << 24] * 4),
            header_bytes_max=r.choice([500] + [1 << 16] * 9), pending_bytes_max=r.choice([1, 2000, 1 << 20]),
            transfer_bytes_max=r.choice([100, 1000, 1 << 18]), transfer_count_max=r.choice([1, 4, 32]),
        )  # fmt: skip
        self.segments: dict[int, bytearray] = {}
        self.unread: list[tuple[int, int]] = []  # halves whose keys nobody has looked up
        self.fed = 0
        self.now = 1_700_000_000_000
        both = self.both
        for topic in frames.TOPICS:
            if topic != "unknown":
                both.set_topic(
                    topic,
                    r.choice([1] + [8] * 9),
                    r.choice([1] + [8] * 9),
                    r.choice([3] * 17 + [1, 2, 0]) | (4 if topic == "folded" else 0),
                )
        for number in range(r.choice([3, 40, 80])):
            both.set_row(
                number, r.choice(frames.GROUPS[:2]), r.choice(frames.TOPICS[:5]), r.random() < 0.4, 100, self.codes()
            )
        both.set("delays_ms", r.choice([(), (1000, 5000, 10000), tuple(range(18))]))
        both.set("accepting", True)
        self.opened: dict[int, tuple[int, int, str, str]] = {}
        self.ended = 0
        self.let_wait()
        self.open(r.choice([0, 0, self.segment_bytes * 1000]))

    def codes(self) -> frozenset[int] | None:
        r = self.r
        if r.random() < 0.5:
            return None
        hashes = [java_hash(tag.encode()) for tag in frames.TAGS]
        return frozenset(r.sample([*hashes, 0, 5, 1 << 40, -(1 << 31)], r.randrange(4)))

    def open(self, start: int) -> None:
        self.segments[start] = bytearray(self.segment_bytes)
        self.both.map_segment(start, self.segments[start])
        self.both.open_segment(start, start + self.segment_bytes)
        self.position = start

    # -- steps ---------------------------------------------------------------------------------------------------------

    def run(self, frame_count: int) -> None:
        r = self.r
        steps = [
            (self.burst, 30), (self.write, 12), (self.entries, 5), (self.pull, 8), (self.append, 3), (self.scan, 3),
            (self.append_group, 3), (self.append_batch, 3),
            (self.settings, 4), (self.tables, 3), (self.split, 2), (self.index, 2), (self.odd_calls, 1),
        ]  # fmt: skip
        weighted = [step for step, weight in steps for _ in range(weight)]
        while self.fed < frame_count:
            r.choice(weighted)()
        self.write()
        self.compare()

    def burst(self) -> None:
        r = self.r
        count = r.choice([1, 1, 2, 5, 16])
        data = b"".join([frames.frame(r) for _ in range(count)])
        self.fed += count
        self.feed(r, data)
        if self.later.random() < 0.5:
            self.waiting()

    def waiting(self) -> None:
        """Messages that are not for consumers yet, and transactions that end."""
        r = self.later
        made = []
        for _ in range(r.choice([1, 2, 5])):
            if self.opened and r.random() < 0.6:
                known = self.opened[r.choice(list(self.opened))]
                made.append(frames.end_frame(r, known))
            else:
                made.append(frames.waiting_frame(r, self.now))
        self.feed(r, b"".join(made))
        if self.opened and r.random() < 0.05:
            self.both.forget_half(r.choice(list(self.opened)))
        if r.random() < 0.02:
            self.let_wait()

    def let_wait(self) -> None:
        r = self.later
        self.both.let_wait(
            r.random() < 0.95, r.choice([0, 5000, 86_400_000, 1 << 40]), r.choice([0, 3, 18, 18, 63]), r.choice(["broker-a", "ç b", ""])
        )  # fmt: skip

    def noted(self, notes: list[tuple[Any, ...]]) -> None:
        for note in notes:
            if isinstance(note, HalfOpened):
                log_offset, queue_offset, size, group, _topic = note
                if len(self.opened) > 50:
                    del self.opened[next(iter(self.opened))]
                self.opened[log_offset] = log_offset, queue_offset, group, ""
                self.unread.append((log_offset, size))
            elif isinstance(note, HalfEnded):
                self.ended += 1
                if self.later.random() < 0.8:  # else it is ended again
                    self.opened.pop(note.log_offset, None)

    def feed(self, r: Random, data: bytes) -> None:
        cut = len(data) if r.random() < 0.7 else r.randrange(len(data) + 1)
        kind = r.choice([bytes, bytes, bytearray])
        data, later = kind(data[:cut]), data[cut:]
        position = tries = 0
        born = r.choice(HOSTS)
        while True:
            self.now += r.randrange(3)
            before = position
            result = self.both.burst(data, position, born, self.now)
            position, verdict = result[0], result[1]
            self.noted(result[7])
            if verdict == LEFT:
                position += 4 + int.from_bytes(data[position : position + 4], "big")
            elif verdict == FULL:
                tries = tries + 1 if position == before else 0
                self.write()
                if tries == 1:
                    self.roll()
                elif tries > 1:
                    break  # larger than a segment
            elif verdict == DONE and later:
                data, later, position = kind(data[position:] + later), b"", 0  # the rest comes with the next read
            elif verdict in (DONE, BAD):
                break
        self.compare()

    def write(self) -> None:
        start, data = self.both.take()
        assert start == self.position
        at = start % self.segment_bytes
        segment = self.segments[start - at]
        segment[at : at + len(data)] = data
        self.position += len(data)
        for log_offset, size in self.unread:
            record = bytes(segment[log_offset % self.segment_bytes :][:size])
            key = record[record.rindex(b"__transactionId__\x01") + 18 :].partition(b"\x02")[0].decode()
            if log_offset in self.opened:
                self.opened[log_offset] = (*self.opened[log_offset][:3], key)
        self.unread.clear()
        first = int.from_bytes(data[:4], "big")
        if first < len(data) and self.r.random() < 0.03:
            self.both.dispatch(data[first:], start + first)  # numbering jumps
        eaten, _woken = self.both.dispatch(data, start)
        assert eaten == len(data), "dispatch stopped in what the kernel appended itself"
        if data and self.r.random() < 0.1:
            self.both.dispatch(memoryview(data), start)
        good, _why, _records, _ms = self.both.function("scan", data, start, True)
        assert good == len(data), "scan refuses what the kernel appended itself"
        self.compare()

    def roll(self) -> None:
        at = self.position % self.segment_bytes
        start = self.position - at
        self.segments[start][at : at + 8] = struct.pack(">iI", self.segment_bytes - at, 0xCBD43194)
        self.open(start + self.segment_bytes)

    def entries(self) -> None:
        r = self.r
        self.both.set("tail_bytes_max", r.choice([1 << 24, 100, 0]))
        self.both.take_entries(r.choice([1, 3, 100, 0, -1]))
        self.both.take_index()

    def pull(self) -> None:
        r = self.r
        topic = r.choice(frames.TOPICS)
        queue_id, offset = r.choice([0, 0, 1, 3, 7, -1]), r.choice([0, 0, 1, 5, r.randrange(50), -1, 1 << 40])
        if r.random() < 0.2:
            low = max(offset - r.randrange(4), 0)
            entry = struct.pack(">qiq", r.randrange(1 << 20), r.choice([91, 400, -1]), r.randrange(-5, 5))
            real = self.both.tail_entries(r.choice(frames.TOPICS), r.choice([0, 1, 3]), r.randrange(9), 9)
            entries = [real[at : at + 20] for at in range(0, len(real), 20)] + [entry] * r.choice([0, 1, 5])
            r.shuffle(entries)
            self.both.lend_entries(topic, queue_id, low, b"".join(entries))
        for warm in (False, True):
            self.both.pull(
                topic, queue_id, offset, r.choice([1, 32, 1000]), self.codes(), r.randrange(99), r.random() < 0.5, warm
            )
            self.both.fetch(topic, queue_id, offset, r.choice([1, 32, 1000]), warm)
        self.both.tail_entries(topic, queue_id, offset, r.choice([0, 1, 5]))

    def append(self) -> None:
        *member, now = self.any_append()
        self.both.append(*member, now)

    def append_group(self) -> None:
        members = [tuple(self.any_append()[:-1]) for _ in range(self.r.choice([0, 1, 2, 2, 5]))]
        if self.segment_bytes > 200_000 and self.r.random() < 0.03:
            # more than memory keeps of a queue when it runs short
            members = [("tea", 1, 0, 0, self.now, HOSTS[0], 0, 0, b"x", b"")] * 1100
        self.both.append_group(members, self.now)

    def append_batch(self) -> None:
        r = self.r
        topic, queue_id, _flag, _sys_flag, born_ms, born, _times, prepared, *_ = self.any_append()
        note = tuple(self.any_append()[:-1])
        self.both.append_batch(
            note, topic, queue_id, born_ms, born, prepared, frames.batch_body(r) if r.random() < 0.9 else b"", self.now
        )

    def any_append(self) -> list[Any]:
        """Arguments of `append`, good and bad."""
        r = self.r

        def number(bits: int) -> int:
            top = 1 << (bits - 1)
            return top if r.random() < 0.01 else r.choice([0, 1, -1, top - 1, -top])

        text = (
            b"DELAY\x01"
            + r.choice([b"1", b"3", b"99", b"0", b"x", b"-1", b"1234567890"])
            + b"\x02TAGS\x01\xff\xe4\x02KEYS\x01\xe4\xb8 \xf0\x9f"
        )
        queue_id, flags = r.choice([0, 1, 2, 2, 70000, -1]), r.choice([0, 1, 4, 8, 12, 0x701, -1])
        return [
            r.choice(frames.TOPICS), queue_id, number(32), flags, number(64), r.choice(HOSTS), number(32), number(64), frames.body(r),
            r.choice([frames.properties(r).encode(), r.randbytes(20), text]), r.choice([self.now] * 9 + [(1 << 63) - 1]),
        ]  # fmt: skip

    def scan(self) -> None:
        """Log bytes as recovery sees them: from any record on, torn, damaged, with a file's end mark or zeros behind."""
        r = self.r
        start, segment = r.choice(list(self.segments.items()))
        data = bytearray(segment)
        for _ in range(r.choice([0, 0, 1, 3])):
            at = r.randrange(max(1, min(len(data), self.position - start)))
            data[at] ^= 1 << r.randrange(8)
        end = len(data) if r.random() < 0.3 else r.randrange(len(data))
        for check in (True, False):
            good, *_ = self.both.function("scan", memoryview(data)[:end], start, check)
            begin = r.randrange(good + 1) if r.random() < 0.1 else good
            self.both.function("scan", data[begin:end], start + begin, check)
        wanted = self.later.choice([(), (b"TAGS",), (b"KEYS", b"a", b"WAIT"), (b"a",) * 9])
        self.both.function("property_rows", bytes(data[good:end]), wanted)
        if self.later.random() < 0.3:
            self.number(data[:end])
        if r.random() < 0.3:
            self.both.dispatch(bytes(data[:end]), start)
            self.compare()

    def number(self, data: bytearray) -> None:
        """The same bytes as another broker's, sometimes after a cut."""
        if self.later.random() < 0.5:
            self.both.rewind()  # refused alike while something is pending
        for topic in frames.TOPICS if self.later.random() < 0.3 else ():
            for queue_id in (0, 1, 2):
                self.both.set_queue_min(topic, queue_id, self.later.choice([0, 1 << 57]))
        self.both.number(bytes(data))
        self.compare()

    def settings(self) -> None:
        r, both = self.r, self.both
        both.set("log_min", r.choice([0, 0, self.position // 2, self.position]))
        both.set("hot_from", r.choice([0, 0, self.position // 2, self.position]))
        both.mark_warm(r.choice([0, 0, 0, 1, 256, 256 + 7, 1 << 57, -1]), r.random() < 0.5)
        both.set("index_enabled", r.random() < 0.9)
        both.set("accepting", r.random() < 0.97)
        both.set("force_slow", r.random() < 0.01)
        both.set("tail_crc", r.random() < 0.7)
        both.set("store_host", r.choice(HOSTS))

    def tables(self) -> None:
        r, both = self.r, self.both
        topic, queue_id = r.choice(frames.TOPICS), r.choice([0, 1, 7])
        if self.later.random() < 0.1:
            self.forget(topic)
        both.watch(topic, queue_id, r.random() < 0.8)
        kind = r.random()
        if kind < 0.1:
            low = r.randrange(40)
            both.set_queue(topic, queue_id, low, low + r.randrange(-1, 10))
        elif kind < 0.2:
            both.set_queue_min(topic, queue_id, r.randrange(10))
        elif kind < 0.6:
            both.set_row(r.randrange(99), r.choice(frames.GROUPS), topic, r.random() < 0.4, 100, self.codes())
        elif kind < 0.8:
            both.drop_row(r.choice(frames.GROUPS), topic, r.random() < 0.4)
        elif kind < 0.9:
            both.set_topic(topic, 8, 8, r.choice([3] * 17 + [1, 2, 0]) | (4 if topic == "folded" else 0))
        elif len(self.segments) > 1:
            start = next(iter(self.segments))
            both.map_segment(start, None if r.random() < 0.5 else self.segments[start])

    def forget(self, topic: str) -> None:
        """As when a topic is deleted; with something left in it more often than not."""
        r, both = self.later, self.both
        if r.random() < 0.9:
            both.set_topic(topic, 0, 0, 0)
        if r.random() < 0.5:
            for queue_id in both.queue_ids(topic):
                both.watch(topic, queue_id, False)
                end = both.queue_state(topic, queue_id).next
                both.set_queue(topic, queue_id, end, end)
        both.forget_topic(topic)
        both.queue_ids(topic)
        if topic != "unknown" and r.random() < 0.8:
            both.set_topic(topic, 8, 8, 3 | (4 if topic == "folded" else 0))

    def split(self) -> None:
        body = frames.batch_body(self.r)
        self.both.function("split_batch", body, self.r.random() < 0.5)
        self.both.function("plain_batch", body)

    def index(self) -> None:
        r = self.r
        pending = self.both.take_index()
        slots, capacity = 4 * r.choice([1, 7, 64]), r.choice([3, 10, 100])
        begin = r.choice([0, self.now - 5000, self.now + 5000])
        copies = [bytearray(slots), bytearray(slots)]
        results = [
            module.index_apply(table, pending, 0, 1, capacity, begin)
            for module, table in zip(self.both._modules, copies, strict=True)
        ]
        if results[0] != results[1] or copies[0] != copies[1]:
            raise Difference(f"seed {self.both._seed}: index_apply {results!r:.3000}")
        entries = bytearray(results[0][0])
        more = self.later
        if entries and more.random() < 0.3:
            entries[more.randrange(len(entries))] ^= 1 << more.randrange(8)
        number, last = more.choice([1, 1, 5]), more.choice([0, 0, self.position // 2])
        linked = [
            module.index_link(table, bytes(entries), number, last)
            for module, table in zip(self.both._modules, copies, strict=True)
        ]
        if linked[0] != linked[1] or copies[0] != copies[1]:
            raise Difference(f"seed {self.both._seed}: index_link {linked!r:.3000}")

    def odd_calls(self) -> None:
        r, both = self.r, self.both
        r.choice(
            [
                lambda: both.set_queue("tea", r.choice([-1, 1 << 31]), 0, 0),
                lambda: both.set_queue("tea", 1, 5, (1 << 57) + 1),
                lambda: both.set_topic(r.choice(["x" * 40000, "a\0b"]), 1, 1, 3),
                lambda: both.map_segment(1, b""),
                lambda: both.burst(b"", 0, b"123", 0),
                lambda: both.lend_entries("tea", 0, 0, b"123"),
                lambda: both.append("\ud800", 0, 0, 0, 0, HOSTS[0], 0, 0, b"", b"", 0),
                lambda: both.function("index_apply", bytearray(3), b"", 0, 1, 10, 0),
                lambda: both.function("index_apply", bytearray(4), b"x" * 20, 7, 1, 10, 0),
            ]
        )()

    def compare(self) -> None:
        both = self.both
        for name in (
            "append_offset",
            "fast_frames",
            "left_frames",
            "put_count",
            "put_bytes",
            "get_count",
            "get_bytes",
        ):
            both.get(name)
        both.dirty_queues()
        for topic in (HALF_TOPIC, HALF_OP_TOPIC, TIMER_TOPIC, SCHEDULE_TOPIC):
            for queue_id in both.queue_ids(topic):
                both.queue_state(topic, queue_id)
        for topic in frames.TOPICS:
            for queue_id in both.queue_ids(topic):
                both.queue_state(topic, queue_id)
            for group in frames.GROUPS:
                both.asked(group, topic, self.later.choice([0, 1, 3, 7, -1]))


def run_round(modules: tuple[ModuleType, ModuleType], seed: int, frame_count: int = FRAMES_PER_ROUND) -> Round:
    history = Round(modules, seed)
    history.run(frame_count)
    return history


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("frames", type=int, nargs="?", default=20_000)
    parser.add_argument("--seed", type=int, help="run this one round only")
    parser.add_argument("--rounds-from", type=int, default=0)
    parser.add_argument("--extension", help="file of the compiled kernel, if it is not the installed one")
    options = parser.parse_args()
    native = load_extension(options.extension) if options.extension else load("native")
    modules = (native, pure)
    if options.seed is not None:
        run_round(modules, options.seed)
        return 0
    fed = fast = left = 0
    seed, started, failures = options.rounds_from, time.monotonic(), 0
    while fed < options.frames:
        try:
            history = run_round(modules, seed)
            fed += history.fed
            fast += history.both.get("fast_frames")
            left += history.both.get("left_frames")
        except Exception as error:
            failures += 1
            print(f"{type(error).__name__} in seed {seed}: {error}", file=sys.stderr)
            if failures == 5:
                break
        seed += 1
        if seed % 500 == 0:
            print(f"{fed} frames, {seed - options.rounds_from} rounds, {time.monotonic() - started:.0f} s", flush=True)
    print(
        f"{fed} frames in {seed - options.rounds_from} rounds: {fast} fast, {left} left to Python, {failures} failures"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
