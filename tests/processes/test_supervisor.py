"""Brokers as processes: they start together, are started again when they end, and stop in order."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kappamq.cli.doctor.reach import ask_broker, check_own_words
from kappamq.errors import ConfigError, StoreError
from kappamq.event_loop import run
from kappamq.ports import choose_port
from kappamq.processes import supervisor as module
from kappamq.processes.plan import Shape
from kappamq.processes.supervisor import Supervisor
from tests.cli.conftest import SMALL
from tests.processes.test_child import is_running
from tests.waiting import eventually_async

GIVEN = {name: value for name, value in SMALL.items() if name != "brokerName"}


async def kappamq(*arguments: str) -> tuple[int | None, list[Any]]:
    """Run a command, in a process of its own: standard error of this one belongs to the supervisor."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "kappamq", *arguments, stdout=PIPE)
    out, _ = await process.communicate()
    return process.returncode, [json.loads(line) for line in out.splitlines()]


def made(root: Path, shape: Shape, told: list[str], **given: str) -> Supervisor:
    return Supervisor.at(root, shape, {**GIVEN, **given}, nameserver_port=0, broker_port=0, tell=told.append)


def supervised(
    root: Path, shape: Shape, work: Callable[[Supervisor, list[str]], Awaitable[None]], **given: str
) -> list[str]:
    async def main() -> list[str]:
        told: list[str] = []
        supervisor = made(root, shape, told, **given)
        await supervisor.start()
        try:
            async with asyncio.timeout(120):
                await work(supervisor, told)
        finally:
            await supervisor.stop()
        return told

    return run(main())


def test_two_brokers_share_a_topic(tmp_path: Path) -> None:
    async def work(supervisor: Supervisor, told: list[str]) -> None:
        rows = supervisor.rows()
        assert [(row.name, row.id, row.role) for row in rows] == [("broker-a", 0, "master"), ("broker-b", 0, "master")]
        assert len({row.pid for row in rows} | {os.getpid()}) == 3
        for row in rows:
            port = int(row.address.rpartition(":")[2])
            _, writer = await asyncio.open_connection("127.0.0.1", port - 2)
            writer.close()
        code, sent = await kappamq(
            "send", "-n", supervisor.nameserver, "-t", "tea", "-b", "x", "--count", "20", "-o", "json"
        )
        assert code == 0
        assert {row["broker"] for row in sent} <= {"broker-a", "broker-b"}

    assert supervised(tmp_path, Shape(brokers=2), work) == []
    assert (tmp_path / "brokers" / "a-0" / "commitlog").is_dir()
    assert (tmp_path / "brokers" / "b-0" / "commitlog").is_dir()


def test_one_that_is_killed_is_told_and_started_again_on_its_port(tmp_path: Path) -> None:
    async def work(supervisor: Supervisor, told: list[str]) -> None:
        (row,) = supervisor.rows()
        os.kill(row.pid, signal.SIGKILL)
        await eventually_async(lambda: any("is running again" in text for text in told), timeout=60)
        (again,) = supervisor.rows()
        assert (again.address, again.pid != row.pid) == (row.address, True)
        assert told[0].startswith(
            f"broker-a master (process {row.pid}) was ended by SIGKILL; it is started again in 0.5 s"
        )

    supervised(tmp_path, Shape(), work)


def test_pauses_double_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
    monkeypatch.setattr(module, "PAUSE_S_MAX", 0.03)

    async def work(supervisor: Supervisor, told: list[str]) -> None:
        (row,) = supervisor.rows()
        # Its store becomes unusable, so it ends each time before it is ready.
        folder = tmp_path / "brokers" / "a-0"
        os.kill(row.pid, signal.SIGKILL)
        folder.rename(tmp_path / "aside")
        folder.write_text("")
        await eventually_async(lambda: sum("exit code 7" in text for text in told) >= 3, timeout=90)
        ended = [text for text in told if "exit code 7" in text]
        assert "check owner and rights" in ended[0], "with its last words"
        assert [text.partition(" is started again in ")[2].partition(". ")[0] for text in ended][:3] == [
            "0.02 s",
            "0.03 s",
            "0.03 s",
        ]
        folder.unlink()
        (tmp_path / "aside").rename(folder)
        await eventually_async(lambda: any("is running again" in text for text in told), timeout=60)

    supervised(tmp_path, Shape(), work)


def test_slaves_stop_before_masters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    stop = module.Child.stop

    async def noted(child: module.Child, seconds_max: float) -> bool:
        done = await stop(child, seconds_max)
        order.append(child.label)
        return done

    async def work(supervisor: Supervisor, told: list[str]) -> None:
        assert {row.role for row in supervisor.rows()} == {"master", "slave"}

    monkeypatch.setattr(module.Child, "stop", noted)
    told = supervised(tmp_path, Shape(slaves=1), work)
    assert order == ["broker-a slave 1", "broker-a master"]
    assert not [text for text in told if "killed" in text]


def test_one_that_cannot_start_stops_all(tmp_path: Path) -> None:
    (tmp_path / "brokers").mkdir()
    (tmp_path / "brokers" / "b-0").write_text("a file")
    pids: list[int] = []

    async def main() -> None:
        supervisor = made(tmp_path, Shape(brokers=2), [])
        stop = supervisor.stop

        async def noted() -> None:
            pids.extend(child.pid for child in supervisor._children.values())
            await stop()

        supervisor.stop = noted  # type: ignore[method-assign]
        with pytest.raises(
            StoreError, match=r"broker-b master .* ended with exit code 7\n(.|\n)*  error: .*check owner and rights"
        ):
            await supervisor.start()

    run(main())
    assert len(pids) == 2
    assert not any(map(is_running, pids))


def test_a_port_that_is_taken_is_an_error_if_it_was_asked_for(tmp_path: Path) -> None:
    async def main(port: int) -> None:
        supervisor = Supervisor.at(tmp_path, Shape(brokers=2), GIVEN, nameserver_port=0, broker_port=port)
        with pytest.raises(ConfigError, match=f"port {port + 11} is in use by another program"):
            await supervisor.start()

    port = choose_port("broker", "127.0.0.1", 0, 1, (-2, 0, 1, 8, 10, 11))  # and all others that are needed
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port + 11))
        taken.listen()
        run(main(port))


def test_what_can_be_seen_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is decided by --slaves"):
        made(tmp_path, Shape(), [], brokerId="1")
    with pytest.raises(ConfigError, match="must be a host without a port"):
        made(tmp_path, Shape(), [], brokerIP1="10.0.0.1:7")
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(StoreError, match=r"holds the store of a single broker.*brokers/a-0"):
        made(tmp_path, Shape(), [])


def test_a_secret_is_not_for_everybody(tmp_path: Path) -> None:
    (tmp_path / "brokers").mkdir()
    config = tmp_path / "brokers" / "a-0.conf"
    config.write_text("")
    config.chmod(0o644)

    def check(pid: int) -> None:
        assert b"hush" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert "hush-hush" in config.read_text()
        assert config.stat().st_mode & 0o777 == 0o600

    async def work(supervisor: Supervisor, told: list[str]) -> None:
        (row,) = supervisor.rows()
        check(row.pid)

    supervised(tmp_path, Shape(), work, replicationSecret="hush-hush")


async def log_end(address: str) -> int:
    about, _ = await ask_broker(address, 10.0, None)
    return int(about["commitLogMaxOffset"])


def test_a_slave_has_what_its_master_was_sent(tmp_path: Path) -> None:
    async def work(supervisor: Supervisor, told: list[str]) -> None:
        master, slave = supervisor.rows()
        assert (master.role, slave.role, slave.id) == ("master", "slave", 1)
        send = ("send", "-n", supervisor.nameserver, "-t", "tea", "-b", "x", "--count", "20", "-o", "json")
        # No retry, no wait: when all are ready, the slave is in sync.
        code, sent = await kappamq(*send)
        assert (code, {row["status"] for row in sent}, len(sent)) == (0, {"ok"}, 20)
        end = await log_end(master.address)
        assert end > 0
        await eventually_async(lambda: at_least(slave.address, end), text="the slave's log grows")
        os.kill(slave.pid, signal.SIGKILL)
        await eventually_async(lambda: any("is running again" in text for text in told), timeout=60)
        await eventually_async(lambda: sends_again(send), timeout=60, text="a send is answered again")

    async def at_least(address: str, end: int) -> bool:
        return await log_end(address) >= end

    async def sends_again(send: tuple[str, ...]) -> bool:
        code, sent = await kappamq(*send)
        return code == 0 and {row["status"] for row in sent} == {"ok"}

    told = supervised(tmp_path, Shape(slaves=1), work)
    assert not [text for text in told if "see the log of the slaves" in text]


def test_slaves_that_do_not_come_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the secret of another group."""
    monkeypatch.setattr(module, "SLAVES_S_MAX", 0.5)
    write = Supervisor._write_config

    def other_secret(supervisor: Supervisor, place: module.Place) -> Path:
        path = write(supervisor, place)
        if place.role == "slave":
            path.write_text(path.read_text().replace("of-this-group", "of-another-group"))
        return path

    monkeypatch.setattr(Supervisor, "_write_config", other_secret)

    async def work(supervisor: Supervisor, told: list[str]) -> None:
        assert told == ["broker-a master: 0 of 1 slaves follow it; see the log of the slaves"]
        about, settings = await ask_broker(supervisor.rows()[0].address, 10.0, None)
        (finding,) = (one for one in check_own_words("broker-a", about, settings) if one.what == "broker-a: copies")
        assert (finding.health, finding.text) == ("bad", "0 of 1 slaves that are awaited are connected")

    supervised(tmp_path, Shape(slaves=1), work, replicationSecret="of-this-group")
