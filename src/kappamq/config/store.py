"""Configuration of the store. File names and sizes follow RocketMQ: either broker opens the other's directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kappamq.config.checks import GIB, KIB, MIB, at_least, between, one_of
from kappamq.errors import ConfigError

END_MARK_BYTES = 8  # int32 remaining bytes + int32 blank magic at the end of a commit-log file


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    root: Path  # the data directory, with commitlog/, consumequeue/, index/ and config/

    # Sizes of the files. They are part of the format: a store can only be opened with the sizes it was written with.
    segment_bytes: int = 1 * GIB  # larger: fewer files, retention frees space in bigger steps
    queue_file_entries: int = 300_000  # larger: fewer files per queue, more disk for small queues
    index_slots: int = 5_000_000  # more: shorter chains per key, 4 bytes each on disk per index file
    index_entries: int = 20_000_000  # more: fewer index files, 20 bytes each on disk per index file
    timer_file_bytes: int = 100 * MIB  # 52 bytes for each timed message
    index_enabled: bool = True  # off: sends cost a little less, but messages cannot be found by key

    message_bytes_max: int = 4 * MIB  # larger: bigger messages, but one sender can hold more memory

    # Durability. "sync" answers a send when fdatasync has returned, "async" as soon as it is in the page cache.
    flush: Literal["async", "sync"] = "async"  # when a send is answered: sync is as durable as the disk, and slower
    flush_interval_ms: int = 500  # async only. larger: less disk traffic, more to lose in a power failure
    sync_flush_timeout_ms: int = 5000  # larger: senders wait longer for a slow disk, smaller: they get code 10
    queue_flush_interval_ms: int = 1000  # larger: fewer writes of queues and index, longer recovery
    # larger: less to sync; a start after a power failure has more of the log to enter into queues and index again
    queue_sync_interval_ms: int = 30_000
    unflushed_bytes_max: int = 256 * MIB  # written but not flushed. larger: tolerates slower disks, more to lose
    tail_crc: bool = True  # checksums of whole records, not only bodies; costs 20 bytes and one CRC a message
    check_crc_on_recovery: bool = True  # off: faster start after a crash, damage is found by consumers instead

    skip_damage: bool = False  # open a log with damage in its middle without it; off: refuse, a backup may help

    # The scrub reads the whole store periodically, detects data changed by the disk, and repairs what can be rebuilt from the log.
    scrub_enabled: bool = True  # off: damage is found only when it is read
    scrub_interval_hours: int = 24  # between passes; one begins after each start. larger: damage is found later
    scrub_bytes_per_second: int = 8 * MIB  # larger: damage is found sooner, more load on the disk

    # Retention.
    retention_hours: int = 72  # larger: more disk, more to replay
    delete_hours: tuple[int, ...] = (4,)  # hours of day (local time) when expired files are deleted
    clean_interval_ms: int = 10_000  # smaller: the disk guard and retention check more often
    delete_files_max: int = 10  # files deleted per round: more frees faster, and stalls the disk longer

    disk_clean_ratio: float = 0.75  # above this usage expired files are deleted at any hour

    # Disk guard: user writes are refused when disk usage exceeds the ratio AND fewer bytes than given are free.
    disk_refuse_ratio: float = 0.90  # smaller: more space is kept free
    disk_refuse_free_bytes: int = 2 * GIB  # space for the next file and for system records
    delete_unexpired_ratio: float | None = None  # above this usage unexpired files are deleted, too. None: never

    # Reading.
    transfer_bytes_max: int = 256 * KIB  # per pull. larger: fewer round trips, more memory per parked answer
    transfer_count_max: int = 1024  # per pull, whatever the client requests
    query_max: int = 64  # messages per query by key
    open_files_max: int = 2048  # descriptors for queue files. larger: faster with many queues, more of nofile

    def __post_init__(self) -> None:
        if not isinstance(self.root, Path):
            object.__setattr__(self, "root", Path(self.root))
        between("segment_bytes", self.segment_bytes, 64 * KIB, 2 * GIB - 1)
        between("queue_file_entries", self.queue_file_entries, 16, 100_000_000)
        between("index_slots", self.index_slots, 16, 500_000_000)
        between("index_entries", self.index_entries, 16, 100_000_000)
        between("timer_file_bytes", self.timer_file_bytes, 4 * KIB, 2 * GIB - 1)
        between("message_bytes_max", self.message_bytes_max, 1, 512 * MIB)
        # A record never spans two files, so one file must hold the largest record and its end mark.
        # Tests use small files, so only what cannot work at all is refused: the body with an ordinary header.
        if self.message_bytes_max + 4 * KIB + END_MARK_BYTES > self.segment_bytes:
            raise ConfigError(
                f"message_bytes_max={self.message_bytes_max} does not fit into segment_bytes={self.segment_bytes}: "
                f"a record must fit into one file; make the file larger or the messages smaller"
            )
        one_of("flush", self.flush, ("async", "sync"))
        for name in ("flush_interval_ms", "queue_flush_interval_ms", "queue_sync_interval_ms", "clean_interval_ms"):
            between(name, getattr(self, name), 1, 3_600_000)
        between("sync_flush_timeout_ms", self.sync_flush_timeout_ms, 10, 600_000)
        at_least("unflushed_bytes_max", self.unflushed_bytes_max, 64 * KIB)
        between("scrub_interval_hours", self.scrub_interval_hours, 0, 24 * 366)
        between("scrub_bytes_per_second", self.scrub_bytes_per_second, 64 * KIB, 16 * GIB)
        between("retention_hours", self.retention_hours, 0, 24 * 366 * 100)
        between("delete_files_max", self.delete_files_max, 1, 10_000)
        for hour in self.delete_hours:
            between("delete_hours", hour, 0, 23)
        between("disk_clean_ratio", self.disk_clean_ratio, 0.01, 1.0)
        between("disk_refuse_ratio", self.disk_refuse_ratio, 0.01, 1.0)
        at_least("disk_refuse_free_bytes", self.disk_refuse_free_bytes, 0)
        if self.delete_unexpired_ratio is not None:
            between("delete_unexpired_ratio", self.delete_unexpired_ratio, 0.01, 1.0)
        between("transfer_bytes_max", self.transfer_bytes_max, 4 * KIB, 128 * MIB)
        between("transfer_count_max", self.transfer_count_max, 1, 100_000)
        between("query_max", self.query_max, 1, 10_000)
        between("open_files_max", self.open_files_max, 16, 1_000_000)
