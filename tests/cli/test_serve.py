"""The servers as a user starts them: real processes, real signals."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SMALL, run_kappamq

ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("KAPPAMQ_NAMESERVER", "NAMESRV_ADDR")}
SET = [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]


@contextmanager
def started(*arguments: str, **environment: str) -> Iterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    """A server that has said it is ready; stopped at the end, and it must stop in good order."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kappamq", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **environment},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            _, err = process.communicate(timeout=30)
            raise AssertionError(f"did not start: {err}")
        yield json.loads(line), process
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        assert "Traceback" not in err
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def ended(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kappamq", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env={**ENVIRONMENT, **environment}, timeout=60, check=False
    )


MEMORY = """
import ctypes, sys
from kappamq.cli.serve import give_memory_back

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
if sys.argv[1] == "tamed":
    give_memory_back()
lesson = bytearray(16 << 20)
del lesson
before = libc.mallinfo2().hblkhd
block = bytearray(8 << 20)
print(libc.mallinfo2().hblkhd - before >= 8 << 20)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="another C library than glibc")
@pytest.mark.parametrize("how", ["tamed", "wild"])
def test_large_blocks_of_memory_go_back_to_the_system(how: str) -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY, how], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(how == "tamed"), "a block of its own, that is gone when it is freed"


def test_up_tells_where_it_is_and_works(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with started(*UP, "--data", str(data), "--json") as (told, process):
        # "Ready in under a second", counted in CPU time: the wall clock of a busy test machine says nothing about us.
        assert cpu_seconds(process.pid) < 1.5
        assert set(told) == {"nameserver", "broker", "data"}
        assert told["data"] == str(data)
        assert run_kappamq("send", "-n", told["nameserver"], "-t", "tea", "-b", "first flush").exit_code == 0
        port = int(told["broker"].rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port - 2), 5).close()
    assert (data / "commitlog").is_dir()

    # And again: what was stored is still there.
    with started(*UP, "--data", str(data), "--json") as (told, _):
        ran = run_kappamq("tail", "tea", "-n", told["nameserver"], "--from", "start", "--no-follow", "-o", "json")
        assert [row["body"] for row in ran.json] == ["first flush"]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


UP = ["up", "--nameserver-port", "0", "--broker-port", "0", "--listen", "127.0.0.1", *SET]


def test_data_from_the_environment_and_ctrl_c(tmp_path: Path) -> None:
    with started(*UP, "-o", "json", KAPPAMQ_HOME=str(tmp_path / "home")) as (told, process):
        assert told["data"] == str(tmp_path / "home")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_explicit_ports_that_are_taken_are_errors(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        for option in ("--nameserver-port", "--broker-port"):
            done = ended(*UP, "--data", str(tmp_path), option, str(port), "--json")
            assert done.returncode == 3, done.stderr
            told = json.loads(done.stderr.splitlines()[-1])
            assert f"port {port} is in use" in told["error"]
            assert done.stdout == ""


def test_a_data_directory_that_is_in_use_or_unusable(tmp_path: Path) -> None:
    with started(*UP, "--data", str(tmp_path / "d"), "--json"):
        done = ended(*UP, "--data", str(tmp_path / "d"))
        assert done.returncode == 7
        assert "in use" in done.stderr
        assert "Traceback" not in done.stderr
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "x"):
        done = ended(*UP, "--data", str(place))
        assert done.returncode == 7, done.stderr
        assert f"{tmp_path / 'file'} is a file" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_usual_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("127.0.0.1", 9876))
            server.listen()
        except OSError:
            pass  # somebody else has it, which does as well
        listen = ["up", "--broker-port", "0", "--listen", "127.0.0.1", *SET]
        process = subprocess.Popen(
            [sys.executable, "-m", "kappamq", *listen, "--data", str(tmp_path), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["nameserver"]
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=30)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
    port = address.rpartition(":")[2]
    warning = f"port 9876 is in use, using {port} instead: export KAPPAMQ_NAMESERVER={address}"
    assert warning in [json.loads(line).get("warning") for line in err.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--set", "listenPortt=1"], "did you mean listenPort?"),
        (["--set", "aclEnable=true"], "the broker would be open"),
        (["--set", "flushDiskType=MAYBE"], "ASYNC_FLUSH or SYNC_FLUSH"),
        (["--listen", "192.0.2.7"], "cannot listen on"),
        (["--broker-port", "1"], "3..65534"),
        (["--nameserver-port", "29871", "--broker-port", "29873"], "cannot share port 29871"),
        (["-c", "/no/such/broker.conf"], "cannot read /no/such/broker.conf"),
    ],
)
def test_wrong_settings_start_nothing(tmp_path: Path, arguments: list[str], text: str) -> None:
    ran = run_kappamq("up", "--data", str(tmp_path / "d"), "--nameserver-port", "0", "--broker-port", "0", *arguments)
    assert ran.exit_code == 3, ran
    assert text in ran.err
    assert not (tmp_path / "d").exists()


def test_a_bad_file_is_told_whole(tmp_path: Path) -> None:
    config = tmp_path / "bad.conf"
    config.write_text("listenPort=x\nteapot=1\nflushDiskType=MAYBE\n")
    for command in ("broker", "up"):
        ran = run_kappamq(command, "-c", str(config), "--data", str(tmp_path / "d"), "-o", "json")
        assert ran.exit_code == 3
        for text in ("line 1: listenPort", "line 2: unknown property teapot", "line 3: flushDiskType"):
            assert text in ran.problem["error"]


def test_a_name_server_and_a_broker_on_their_own(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    lines = [f"{name}={value}" for name, value in SMALL.items()]
    config.write_text(
        "\n".join([*lines, f"storePathRootDir={tmp_path / 'store'}", "teapot=1", "sendMessageThreadPoolNums=4"])
    )
    listen = ["--listen", "127.0.0.1", "--port", "0", "--json"]
    with started("nameserver", *listen, "--data", str(tmp_path / "ns")) as (names, _):
        broker = ["broker", "-c", str(config), "-n", names["nameserver"], *listen]
        with started(*broker) as (told, _):
            assert (told["name"], told["data"]) == ("broker-a", str(tmp_path / "store"))
            assert told["nameservers"] == [names["nameserver"]]
            ran = run_kappamq("send", "-n", names["nameserver"], "-t", "tea", "-b", "x", "-o", "json")
            assert ran.json[0]["broker"] == "broker-a"
        done = ended(*broker, "--strict")
        assert done.returncode == 3
        assert "teapot" in done.stderr


def test_unknown_properties_are_named(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("brokerNmae=x\nsendMessageThreadPoolNums=4\n")
    with started(*UP, "--data", str(tmp_path / "d"), "-c", str(config), "--json") as (_, process):
        assert process.stderr is not None
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
    assert "brokerNmae (did you mean brokerName?)" in said
    assert "sendMessageThreadPoolNums" in said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_before_it_was_ready(number: signal.Signals, code: int) -> None:
    program = """
import asyncio
from kappamq.cli.shared.options import spoken
from kappamq.cli.shared.output import Output
from kappamq.cli.serve import run_server
async def start():
    print("starting", flush=True)
    await asyncio.sleep(60)
async def stop():
    print("stopped", flush=True)
import typer
try:
    run_server(start, stop, lambda seconds: print("ready"), Output())
except typer.Exit as ended:
    raise SystemExit(ended.exit_code)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "starting\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (code, "stopped\n", "warning: stopped before it was ready\n")


STOPPING = """
import asyncio, sys
from kappamq.cli.serve import run_server
from kappamq.cli.shared.output import Output
async def start():
    pass
async def stop():
    print("stopping", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print("stopped", flush=True)
run_server(start, stop, lambda seconds: print("ready", flush=True), Output())
print("ended", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_is_sent_twice_at_once_is_one(number: signal.Signals) -> None:
    """As by `timeout`. The second may also come when the server has stopped, and its process is about to end."""
    with subprocess.Popen(
        [sys.executable, "-c", STOPPING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(2)] == ["stopped\n", "ended\n"]
        process.send_signal(number)
        process.communicate("\n", timeout=30)
        assert process.returncode == 0


def test_a_second_signal_that_comes_later_ends_it_at_once() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPPING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping\n"
        for _ in range(300):  # the first ones are within its second
            process.send_signal(signal.SIGINT)
            try:
                process.wait(0.1)
                break
            except subprocess.TimeoutExpired:
                pass
        assert process.returncode == 130


def test_a_server_that_cannot_go_on_is_stopped_and_says_why() -> None:
    program = """
import asyncio
from kappamq.cli.shared.exits import exit_for
from kappamq.cli.shared.output import Output
from kappamq.cli.serve import run_server
from kappamq.errors import StoreError
async def start():
    print("started")
async def stop():
    print("stopped")
async def failed():
    await asyncio.sleep(0)
    return StoreError("start it again")
try:
    run_server(start, stop, lambda seconds: print("ready"), Output(), failed=failed)
except StoreError as error:
    print(error)
    raise SystemExit(exit_for(error))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "started\nready\nstopped\nstart it again\n", "")


def test_a_start_after_kill_9_tells_what_it_found(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kappamq", *UP, "--data", str(tmp_path), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    assert run_kappamq("send", "-n", told["nameserver"], "-t", "tea", "-b", "x", "--count", "5").exit_code == 0
    process.kill()
    _, before = process.communicate(timeout=30)
    assert "did not stop cleanly" not in before
    with started(*UP, "--data", str(tmp_path), "--json") as (_, again):
        assert again.stderr is not None
        line = again.stderr.readline()
    assert f"the last broker (process {process.pid}) did not stop cleanly" in line
    assert "the log ends at" in line


def test_the_time_a_user_has_waited() -> None:
    program = "from kappamq.cli.serve import process_seconds as p; import time; print(p(), time.process_time())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    waited, worked = map(float, done.stdout.split())
    assert worked - 0.05 <= waited < 30


def listening_on(pid: int) -> set[str]:
    """The addresses (as /proc writes them) that a process listens on."""
    sockets = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


LOOPBACK, EVERYWHERE = "0100007F", "00000000"


def test_up_is_for_this_machine_unless_told_otherwise(tmp_path: Path) -> None:
    ports = ["--nameserver-port", "0", "--broker-port", "0", *SET, "--json"]
    with started("up", *ports, "--data", str(tmp_path / "a")) as (_, process):
        assert listening_on(process.pid) == {LOOPBACK}
    with started("up", *ports, "--data", str(tmp_path / "b"), "--listen", "0.0.0.0") as (_, process):
        assert listening_on(process.pid) == {EVERYWHERE}


def test_a_broker_that_everybody_can_reach_says_so(tmp_path: Path) -> None:
    for options, told in (((), True), (("--listen", "127.0.0.1"), False)):
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "kappamq", "broker", "-n", "none", "--port", "0", "--json", *SET, *options),
                *("--data", str(tmp_path / str(told))),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline(), "ready"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert ("without authentication" in errors) is told, errors
        assert ("--listen 127.0.0.1" in errors) is told
