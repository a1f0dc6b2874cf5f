"""A store for tests: small files, either kernel, real frames through the real kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kappamq import native
from kappamq.config.store import StoreConfig
from kappamq.protocol.records.record import Record, iter_records
from kappamq.store.files import Files
from kappamq.store.message_store import MessageStore
from tests.waiting import eventually

BOOT = "this boot"
BORN = bytes((127, 0, 0, 1)) + (4711).to_bytes(4, "big")
START_MS = 1_700_000_000_000


Grown = Callable[[list[tuple[str, int]]], None]


def kernels() -> list[str]:
    """The kernels that exist here."""
    try:
        native.load("native")
    except ImportError:
        return ["twin"]
    return ["twin", "native"]


def config(root: Path, **changes: Any) -> StoreConfig:
    small: dict[str, Any] = {
        "segment_bytes": 64 << 10,
        "queue_file_entries": 64,
        "index_slots": 97,
        "index_entries": 1000,
        "message_bytes_max": 16 << 10,
    }
    return StoreConfig(root=root, **(small | changes))


def make(
    settings: StoreConfig, kind: str = "twin", files: Files | None = None, grown: Grown = lambda queues: None
) -> MessageStore:
    module = native.load(kind)
    kernel = module.Kernel(
        segment_bytes=settings.segment_bytes, store_host=BORN, region="r", cluster="c", trace_on=True, tail_crc=settings.tail_crc,
        message_bytes_max=settings.message_bytes_max, frame_bytes_max=16 << 20, header_bytes_max=256 << 10,
        pending_bytes_max=32 << 10, transfer_bytes_max=settings.transfer_bytes_max, transfer_count_max=1024,
    )  # fmt: skip
    return MessageStore(settings, module, kernel, files, grown)


@contextmanager
def opened(
    settings: StoreConfig,
    kind: str = "twin",
    boot: str = BOOT,
    clean: bool = True,
    files: Files | None = None,
    grown: Grown = lambda queues: None,
    **how: Any,
) -> Iterator[MessageStore]:
    store = make(settings, kind, files, grown)
    store.recovered = store.open(boot, **how)  # type: ignore[attr-defined]
    try:
        yield store
    finally:
        store.close(clean)


def drop_oldest(store: MessageStore, count: int) -> None:
    """The log loses its first files; as in a broker, only those that the flusher is done with."""
    store.request_flush()

    def is_on_disk() -> bool:
        store.flush_done()
        return store.marks.flushed.offset == store.log.end

    eventually(is_on_disk)
    for _ in range(count):
        store.log.discard(store.log.detach(store.log.min))


def make_room(store: MessageStore, now_ms: int) -> None:
    """The kernel has no room: write what is pending, and if that was not it, go on in the next file."""
    before = store.log.end
    store.write(now_ms)
    if store.log.end == before:
        store.roll()


class Writer:
    """Appends numbered messages and remembers what must be readable."""

    def __init__(self, store: MessageStore, now_ms: int = START_MS) -> None:
        self.store = store
        self.now_ms = now_ms
        self.expected: dict[tuple[str, int], list[bytes]] = {}

    def send(self, body: bytes, topic: str = "t", queue_id: int = 0, properties: bytes = b"") -> int:
        self.now_ms += 1
        full = self.store.kernel_module.SegmentFull
        while True:
            try:
                log_offset, _offset, _size = self.store.kernel.append(
                    topic, queue_id, 0, 0, self.now_ms, BORN, 0, 0, body, properties, self.now_ms
                )
                break
            except full:
                make_room(self.store, self.now_ms)
        self.expected.setdefault((topic, queue_id), []).append(body)
        return int(log_offset)

    def batch(self, bodies: list[bytes], topic: str = "t", queue_id: int = 0) -> None:
        self.now_ms += 1
        full = self.store.kernel_module.SegmentFull
        while True:
            try:
                members = [(topic, queue_id, 0, 0, self.now_ms, BORN, 0, 0, body, b"") for body in bodies]
                self.store.kernel.append_group(members, self.now_ms)
                break
            except full:
                make_room(self.store, self.now_ms)
        self.expected.setdefault((topic, queue_id), []).extend(bodies)

    def write(self) -> None:
        self.store.write(self.now_ms)

    def write_derived(self) -> None:
        """What upkeep does every second."""
        while True:
            work = self.store.collect()
            self.store.write_derived(work)
            if work.complete:
                return


def read(store: MessageStore, topic: str = "t", queue_id: int = 0) -> list[Record]:
    """Every message of a queue, the way a consumer gets it: through pulls."""
    low, end, _next, stored = store.kernel.queue_state(topic, queue_id)
    records: list[Record] = []
    offset = low
    for _ in range(100_000):
        if offset >= end:
            return records
        verdict, payload = store.kernel.pull(topic, queue_id, offset, 32, None, 1, False, True)
        if verdict == 6:
            count = min(64, stored - offset)  # what lies behind `stored` is in memory only
            store.kernel.lend_entries(topic, queue_id, offset, store.queues.read(topic, queue_id, offset, count))
            verdict, payload = store.kernel.pull(topic, queue_id, offset, 32, None, 1, False, True)
        assert verdict == 0, f"pull of {topic}/{queue_id} at {offset} says {verdict} {payload}"
        header_bytes = int.from_bytes(payload[5:8], "big")
        found = list(iter_records(payload[8 + header_bytes :]))
        records += found
        offset = found[-1].queue_offset + 1
    raise AssertionError("a queue without end")


def bodies(store: MessageStore, topic: str = "t", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in read(store, topic, queue_id)]


def check(store: MessageStore, writer: Writer) -> None:
    for (topic, queue_id), expected in writer.expected.items():
        records = read(store, topic, queue_id)
        assert [record.body for record in records] == expected, f"{topic}/{queue_id}"
        assert [record.queue_offset for record in records] == list(range(len(expected)))


def flush(store: MessageStore) -> None:
    """Wait until the log is on disk as far as it is written."""
    store.request_flush()
    eventually(lambda: store.flush_done() or store.marks.flushed.offset == store.log.end, pause=0.0005)
