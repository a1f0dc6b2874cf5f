"""The local checks of `kappamq doctor`. Each returns its finding, and advice unless it is "ok"."""

from __future__ import annotations

import ctypes
import enum
import errno
import math
import os
import resource
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from kappamq.config.net import NetConfig
from kappamq.config.store import StoreConfig

_FALLOCATE_BYTES = 1 << 20
_SLOW_SYNC_MS = 50.0
_EARLIEST_SANE_S = 1_700_000_000  # late 2023: an earlier clock was never set
_TIME_UNSYNCHRONISED = 5  # adjtimex(2): TIME_ERROR


class Health(enum.StrEnum):
    OK = "ok"
    NOTE = "note"  # works, but slower or less safely than it could
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    health: Health
    text: str
    advice: str = ""


def ok(what: str, text: str) -> Finding:
    return Finding(what, Health.OK, text)


def note(what: str, text: str, advice: str) -> Finding:
    return Finding(what, Health.NOTE, text, advice)


def bad(what: str, text: str, advice: str) -> Finding:
    return Finding(what, Health.BAD, text, advice)


# --- this machine -----------------------------------------------------------------------------------------------------


def kernel() -> Finding:
    from kappamq import native

    try:
        native.load("native")
    except ImportError as error:
        return note(
            "kernel",
            f"no compiled kernel ({error}); the pure-Python twin is used",
            "same results, several times slower. Install a C compiler and reinstall: pip install --force-reinstall "
            "--no-deps kappamq (with -v it says what went wrong)",
        )
    return ok("kernel", "compiled")


def event_loop() -> Finding:
    from importlib.util import find_spec

    if find_spec("uvloop") is None:
        return note("event loop", "uvloop is not installed; asyncio's own loop is used", "pip install uvloop")
    return ok("event loop", "uvloop")


def open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = NetConfig().connections_max + StoreConfig(root=Path("/")).open_files_max
    shown = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    # Servers raise the soft limit to the hard one themselves, so only the hard one matters.
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        return ok("open files", f"limit {shown} (soft {soft}, raised at start)")
    return note(
        "open files",
        f"limit {shown}; {wanted} are needed for the connections that the broker allows",
        f"`ulimit -Hn {wanted}`, or LimitNOFILE={wanted} in the systemd unit; or allow fewer connections with "
        f"--set net.connections_max=...",
    )


def clock() -> Finding:
    now = time.time()
    if now < _EARLIEST_SANE_S:
        return bad(
            "clock",
            f"the clock shows {time.strftime('%Y-%m-%d', time.gmtime(now))}",
            "set the clock: store times, retention and delays follow it",
        )
    state = _adjtimex()
    if state == _TIME_UNSYNCHRONISED:
        return note(
            "clock",
            "not synchronised with a time server",
            "run chrony or systemd-timesyncd: brokers with different clocks store messages with inconsistent times",
        )
    return ok("clock", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def _adjtimex() -> int:
    """Return the kernel's clock status; 0 where it is not available."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        buffer = ctypes.create_string_buffer(512)  # struct timex with modes = 0: read only
        return int(libc.adjtimex(buffer))
    except (OSError, AttributeError):
        return 0


# --- the data directory -----------------------------------------------------------------------------------------------


def data_directory(root: Path, why: str) -> list[Finding]:
    """Check permissions, space, preallocation and speed of the disk. Leaves no files behind. `why`: why this directory is used."""
    place = root
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return [
            bad(
                "data directory",
                f"{place} is a file ({why})",
                f"{root} must be a directory; choose another with --data",
            )
        ]
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".kappamq-doctor-") as file:
            written = f"{root} is writable" if place == root else f"{root} does not exist yet and can be created"
            found = [
                ok("data directory", f"{written} ({why})"),
                _space(place),
                _fallocate(file.fileno()),
                _sync(file.fileno()),
            ]
    except OSError as error:
        who = f"user {os.geteuid()}"
        return [
            bad(
                "data directory",
                f"{place} is not writable by {who}: {error.strerror or error} ({root} is {why})",
                f"chown it to {who}, or choose another directory with --data",
            )
        ]
    if (root / "lock").exists():
        found.append(_lock(root))
    return found + _clock_of_store(root)


def _clock_of_store(root: Path) -> list[Finding]:
    """Report whether the clock was set while a broker had the store open; nothing if it was not."""
    from kappamq.cli.shared.output import counted, when
    from kappamq.store.reader import StoreReader

    if not (root / "commitlog").is_dir():
        return []
    steps = StoreReader(root).clock_steps().steps
    if not steps:
        return []
    last = steps[-1]
    by = f" by {abs(last.step_ms) / 1000:g} s" if last.step_ms else ""
    direction = "" if not last.step_ms else " forward" if last.step_ms > 0 else " back"
    return [
        note(
            "clock of the store",
            f"the clock was set {counted(len(steps), 'time')} since the start of the log, last{direction}{by} to {when(last.to_ms)}",
            "store times before and after are out of order; delays and timers follow the clock. If this was not on purpose, check the "
            "time synchronisation (chronyc tracking, timedatectl)",
        )
    ]


def _space(place: Path) -> Finding:
    usage = shutil.disk_usage(place)
    config = StoreConfig(root=place)
    # Like df and the broker: space reserved for root is neither used nor free.
    usable = usage.used + usage.free
    used = usage.used / usable if usable else 1.0
    from kappamq.cli.shared.output import size

    text = f"{size(usage.free)} free, {math.ceil(100 * used)}% used on the disk of {place}"
    if usage.free < 2 * config.segment_bytes:
        return bad(
            "disk space",
            text,
            f"a log file has {config.segment_bytes >> 20} MiB and the next one is preallocated: free some space, or "
            "use smaller files for a new store (--set mappedFileSizeCommitLog=104857600)",
        )
    if used >= config.disk_refuse_ratio and usage.free < config.disk_refuse_free_bytes:
        return bad("disk space", text, "the broker refuses messages: free some space or shorten fileReservedTime")
    if used >= config.disk_clean_ratio:
        return note("disk space", text, "expired files will be deleted at any hour; watch it")
    return ok("disk space", text)


def _fallocate(fd: int) -> Finding:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(_FALLOCATE_BYTES))
    except (OSError, AttributeError):
        return note("preallocation", "is not available on this system", "files are filled with zeros: slower")
    if done == 0:
        return ok("preallocation", "fallocate works")
    code = ctypes.get_errno()
    if code in (errno.EOPNOTSUPP, errno.ENOSYS):
        return note(
            "preallocation",
            "this file system has no fallocate",
            "log files are filled with zeros instead, which takes seconds each; ext4 or xfs do better",
        )
    return bad("preallocation", os.strerror(code), "log files cannot be created here: free space, or use another disk")


def _sync(fd: int) -> Finding:
    times = []
    for number in range(3):
        os.pwrite(fd, b"x" * 4096, number * 4096)
        began = time.perf_counter()
        os.fdatasync(fd)
        times.append((time.perf_counter() - began) * 1000)
    best = min(times)
    if best > _SLOW_SYNC_MS:
        return note(
            "disk sync", f"fdatasync takes {best:.1f} ms", "with flushDiskType=SYNC_FLUSH every send waits for it"
        )
    return ok("disk sync", f"fdatasync takes {best:.1f} ms")


def _lock(root: Path) -> Finding:
    from kappamq.errors import StoreError, StoreLocked
    from kappamq.store.lock import StoreLock

    try:
        with StoreLock(root):
            pass
    except StoreLocked as error:
        return ok("lock", str(error).split(":")[0])
    except StoreError as error:
        return bad("lock", str(error), "chown the data directory to the user that runs the broker")
    return ok("lock", "no broker has the data directory open")
