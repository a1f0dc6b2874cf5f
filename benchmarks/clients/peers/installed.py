"""Clients from PyPI and servers from Maven, Debian and Go, in the cache outside the repository; fetched once per machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.process import BROKER_CORE, Child, ProcessFailed
from benchmarks.spark import kafka
from tests.interop import jars
from tests.interop.process import free_port

CLIENTS: Final = ("confluent-kafka==2.16.1", "aiokafka==0.14.0", "redis==8.1.0", "nats-py==2.16.0")
REDIS_PACKAGES: Final = ("redis-tools", "liblzf1", "libjemalloc2", "liblua5.1-0", "lua-cjson", "lua-bitop")
NATS: Final = "github.com/nats-io/nats-server/v2@v2.15.2"
FETCH_S_MAX: Final = 580
READY_S_MAX: Final = 30.0


def python() -> Path:
    """The interpreter of an environment that has the clients. Raises jars.Missing."""
    place = jars.cache() / f"clients-py{sys.version_info[0]}.{sys.version_info[1]}"
    wanted = "\n".join(CLIENTS)
    done = place / "installed.txt"
    with jars.only_one_process(place.with_name(place.name + ".lock")):
        if not done.exists() or done.read_text() != wanted:
            shutil.rmtree(place, ignore_errors=True)
            venv.create(place, with_pip=True, symlinks=True)
            _run([str(place / "bin/python"), "-m", "pip", "install", "--quiet", *CLIENTS], place, "clients from PyPI")
            done.write_text(wanted)
    return place / "bin/python"


def _run(command: Sequence[str], home: Path, what: str, env: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=home,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=FETCH_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise jars.Missing(f"{what} cannot be had: {error}") from None
    if done.returncode != 0:
        raise jars.Missing(f"{what} cannot be had:\n{(done.stdout + done.stderr)[-2000:]}")


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache that is complete or not there."""
    place = jars.cache() / name
    with jars.only_one_process(place.with_name(place.name + ".lock")):
        if not place.exists():
            part = place.with_name(place.name + ".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            make(part)
            part.rename(place)
    return place


def _unpack_redis(place: Path) -> None:
    # Unpacked, not installed: no service shall be started on this machine.
    _run(["apt-get", "download", *REDIS_PACKAGES], place, "redis of Debian")
    for package in place.glob("*.deb"):
        _run(["dpkg", "-x", str(package), str(place)], place, "redis of Debian")


def _build_nats(place: Path) -> None:
    _run(
        ["go", "install", NATS], place, "nats-server", {"GOBIN": str(place), "GOPATH": str(place.with_name("go-path"))}
    )


@contextmanager
def redis(home: Path) -> Iterator[str]:
    """Writes go to its append-only file, which is synced every second: a power failure may lose as much as with ours."""
    place = _made("redis-debian", _unpack_redis)
    port = free_port()
    libraries = ":".join(str(path.parent) for path in place.rglob("*.so.*"))
    command = [str(next(place.rglob("redis-check-rdb")).resolve()), "--port", str(port), "--bind", "127.0.0.1"]
    command += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--dir", str(home)]
    # redis-check-rdb is the server's own binary; it acts by the name it is called by.
    server = home / "redis-server"
    shutil.copy(command[0], server)
    with _running([str(server), *command[1:]], home, port, {"LD_LIBRARY_PATH": libraries}) as address:
        yield address


@contextmanager
def nats(home: Path) -> Iterator[str]:
    place = _made(f"nats-server-{NATS.rpartition('@')[2]}", _build_nats)
    port = free_port()
    command = [str(place / "nats-server"), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(home / "js")]
    with _running(command, home, port, {}) as address:
        yield address


@contextmanager
def kafka_server(home: Path) -> Iterator[str]:
    with kafka.running(home) as server:
        for task in Path(f"/proc/{server.child.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), BROKER_CORE)
        yield f"127.0.0.1:{server.port}"


@contextmanager
def _running(command: Sequence[str], home: Path, port: int, env: dict[str, str]) -> Iterator[str]:
    with Child(command, home / "run", cores=BROKER_CORE, env=env) as child:
        deadline = time.monotonic() + READY_S_MAX
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if not child.running or time.monotonic() > deadline:
                    raise ProcessFailed(f"{command[0]} is not ready:\n{child.complaint()}") from None
                time.sleep(0.05)
        yield f"127.0.0.1:{port}"
