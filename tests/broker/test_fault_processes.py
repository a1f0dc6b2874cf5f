"""Real processes whose disk fails under them (strace), and data directories that cannot be used: exit code and text."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kappamq.net.channel import Channel
from kappamq.protocol.codes import ResponseCode
from tests.broker.running import Speaker, run
from tests.cli.conftest import run_kappamq
from tests.needs import needs
from tests.store.small_disk import remount, small_disk
from tests.waiting import eventually_async as eventually

SMALL = {
    "mappedFileSizeCommitLog": 1 << 20,
    "maxMessageSize": 64 << 10,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "brokerName": "b",
}
UP = ["up", "--nameserver-port", "0", "--broker-port", "0", "--listen", "127.0.0.1", "--json"]
UP += [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("KAPPAMQ_NAMESERVER", "NAMESRV_ADDR")}


@contextmanager
def up(data: Path, *arguments: str, strace: list[str] | None = None) -> Iterator[int]:
    """A broker process, perhaps under strace; gives its port. Ends with it."""
    command = [sys.executable, "-m", "kappamq", *UP, "--data", str(data), *arguments]
    if strace is not None:
        # -D: strace stands aside, so that the process we start, and signal, is the broker.
        command = ["strace", "-D", "-f", "-qq", "-o", "/dev/null", *strace, *command]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate(timeout=30)[1]
        yield int(json.loads(line)["broker"].rpartition(":")[2])
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        assert "Traceback" not in err, err
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


async def speaker(port: int) -> Speaker:
    return Speaker(await Channel.connect(f"127.0.0.1:{port}"))


@needs("strace")
def test_fdatasync_fails_in_a_real_process(tmp_path: Path) -> None:
    """From the 20th of the group-commit thread on; other threads do not get that far."""
    stored = []

    async def use(port: int) -> None:
        client = await speaker(port)
        for number in range(100):
            answer = await client.send("t", b"%d" % number)
            if answer.code != 0:
                break
            stored.append(b"%d" % number)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, "sooner or later"
        assert "fdatasync" in (answer.remark or "")
        assert 0 < len(stored) < 100
        assert (await client.send("t", b"x")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert [record.body for record in await client.read("t")] == stored, "reading goes on"
        client.channel.close()

    async def use_again(port: int) -> None:
        client = await speaker(port)
        found = [record.body for record in await client.read("t")]
        assert found[: len(stored)] == stored
        assert (await client.send("t", b"again")).code == 0
        client.channel.close()

    inject = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=20+"]
    sync = ("--set", "flushDiskType=SYNC_FLUSH")
    with up(tmp_path, *sync, strace=inject) as port:
        run(use(port))
    with up(tmp_path, *sync) as port:
        run(use_again(port))


@needs("strace")
def test_a_slow_disk_under_a_real_process(tmp_path: Path) -> None:
    async def use(port: int) -> None:
        client = await speaker(port)
        answers = await asyncio.gather(*(client.send("t", b"%d" % number) for number in range(20)))
        assert ResponseCode.FLUSH_DISK_TIMEOUT in {answer.code for answer in answers}
        assert {answer.code for answer in answers} <= {0, ResponseCode.FLUSH_DISK_TIMEOUT}

        async def all_there() -> bool:
            return len(await client.read("t")) == 20

        await eventually(all_there, text="late, but on disk")
        client.channel.close()

    delay = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_exit=400000"]
    with up(tmp_path, "--set", "flushDiskType=SYNC_FLUSH", "--set", "syncFlushTimeout=150", strace=delay) as port:
        run(use(port))


# --- a data directory that cannot be used -------------------------------------------------------------------------------


def refused(code: int, *texts: str, arguments: list[str]) -> None:
    """The command ends with this code and says these things, without a stack trace."""
    ran = run_kappamq(*arguments)
    assert ran.exit_code == code, ran
    told(ran.err, *texts)
    assert ran.out == ""


def told(err: str, *texts: str) -> None:
    assert "Traceback" not in err
    for text in texts:
        assert text in err.splitlines()[-1], err


@needs("root", "setpriv")
@pytest.mark.parametrize("kind", ["up", "broker"])
def test_a_data_directory_without_rights(tmp_path: Path, kind: str) -> None:
    start = UP if kind == "up" else ["broker", "--port", "0", "--listen", "127.0.0.1", "-n", "none", "--json"]
    # Root without the right to overlook rights is like anybody else.
    command = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", sys.executable, "-m", "kappamq", *start]
    tmp_path.chmod(0o555)
    done = subprocess.run(
        [*command, "--data", str(tmp_path / "data")],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False,
    )  # fmt: skip
    tmp_path.chmod(0o755)
    assert done.returncode == 7, done.stderr
    told(done.stderr, "Permission denied", str(tmp_path / "data"), "owner and rights")


@needs("loop")
def test_a_read_only_file_system() -> None:
    with small_disk(32 << 20) as root:
        with up(root / "data"):
            pass
        remount(root, "ro")
        refused(7, "Read-only file system", arguments=[*UP, "--data", str(root / "data")])
        refused(7, "read-only file system", arguments=[*UP, "--data", str(root / "new")])


@needs("loop")
def test_a_disk_that_is_too_small() -> None:
    with small_disk(4 << 20) as root:
        large = ["--set", f"mappedFileSizeCommitLog={64 << 20}"]
        refused(7, "disk is full", "Free some space", arguments=[*UP, *large, "--data", str(root / "data")])


@contextmanager
def a_foreign_lock(root: Path) -> Iterator[int]:
    """As a Java broker takes it: an OS lock on the first byte of `lock`, held by another process; its id."""
    program = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'w')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(root / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"

    try:
        yield holder.pid
    finally:
        holder.communicate(timeout=10)


def test_another_broker_has_the_directory(tmp_path: Path) -> None:
    with up(tmp_path / "ours"):
        refused(7, "in use by process", arguments=[*UP, "--data", str(tmp_path / "ours")])
    (tmp_path / "javas").mkdir()
    with a_foreign_lock(tmp_path / "javas") as pid:
        refused(
            *(7, f"in use by process {pid}", "another data directory"),
            arguments=[*UP, "--data", str(tmp_path / "javas")],
        )


@pytest.mark.parametrize(
    ("spoil", "texts"),
    [
        (lambda root: [root.mkdir(), (root / "commitlog").write_text("")], ["commitlog", "File exists"]),
        (
            lambda root: [(root / "commitlog").mkdir(parents=True), (root / "commitlog" / "notes").write_text("x")],
            ["commitlog/notes", "move it to another folder"],
        ),
        (
            lambda root: [
                (root / "commitlog").mkdir(parents=True),
                (root / "commitlog" / f"{0:020d}").write_bytes(b"x" * 5000),
            ],
            ["5000 bytes", "mappedFileSizeCommitLog"],
        ),
        (
            lambda root: [(root / "index").mkdir(parents=True), (root / "index" / "notes").write_text("x")],
            ["index/notes", "move it to another folder"],
        ),
    ],
    ids=["file for a folder", "foreign file", "wrong size", "foreign index"],
)
def test_what_lies_there_is_not_ours(tmp_path: Path, spoil: Callable[[Path], object], texts: list[str]) -> None:
    root = tmp_path / "data"
    spoil(root)
    refused(7, *texts, arguments=[*UP, "--data", str(root)])


@pytest.mark.parametrize(("kind", "code"), [("up", 7), ("broker", 7)])
def test_a_file_where_the_data_directory_should_be(tmp_path: Path, kind: str, code: int) -> None:
    start = UP if kind == "up" else ["broker", "--port", "0", "--listen", "127.0.0.1", "-n", "none", "--json"]
    (tmp_path / "data").write_text("a file")
    refused(code, str(tmp_path / "data"), arguments=[*start, "--data", str(tmp_path / "data")])


# --- what an operator writes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"listenPort=ten\n", ["listenPort", "ten"]),
        (b"listenPort=99999\n", ["listenPort", "99999"]),
        (b"flushDiskType=SOMETIMES\n", ["flushDiskType", "SYNC_FLUSH"]),
        (b"brokerName=\\u00zz\n", ["broker.conf", "line 1"]),
        (b"mappedFileSizeCommitLog=1000\n", ["mappedFileSizeCommitLog"]),
        (b"brokerName=a/../b\n", ["brokerName"]),
        (b"fileReservedTime=-5\n", ["fileReservedTime"]),
        (b"\xff\xfe\x00broken", ["broker.conf"]),
        (b"brokerRole=SLAVE\n", ["brokerRole"]),
        (b"namesrvAddr=nowhere:port\n", ["namesrvAddr", "host:port"]),
    ],
    ids=lambda value: value.decode("latin-1").strip()[:30] if isinstance(value, bytes) else "",
)
def test_a_broker_conf_that_cannot_be_meant(tmp_path: Path, content: bytes, texts: list[str]) -> None:
    (tmp_path / "broker.conf").write_bytes(content)
    arguments = ["broker", "-c", str(tmp_path / "broker.conf"), "--data", str(tmp_path / "data"), "--json"]
    refused(3, *texts, arguments=arguments)
    assert not (tmp_path / "data").exists(), "nothing was started"


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("mappedFileSizeComitLog=5", "did you mean mappedFileSizeCommitLog?"),
        ("store.flush=maybe", "sync"),
        ("store.segment_bytes=12", "segment_bytes"),
        ("net.connections_max=0", "connections_max"),
        ("net.tls_mode=enforcing", "tls_cert"),
        ("tls.server.certPath=/nowhere.pem", "tls_key"),
    ],
)
def test_bad_set_values(tmp_path: Path, setting: str, text: str) -> None:
    refused(3, text, arguments=[*UP, "--set", setting, "--data", str(tmp_path / "data")])
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("setting", ["mappedFileSizeCommitLog", "=5"])
def test_what_is_no_setting_is_a_wrong_argument(tmp_path: Path, setting: str) -> None:
    refused(2, "property=value", arguments=[*UP, "--set", setting, "--data", str(tmp_path / "data")])
    assert not (tmp_path / "data").exists()
