from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from kappamq import ports
from kappamq.errors import ConfigError, KappaError, StoreLocked
from kappamq.event_loop import run
from kappamq.local import Local, LocalThread
from tests.cli.conftest import SMALL, small_local


def test_both_answer_and_both_go(tmp_path: Path) -> None:
    async def main() -> tuple[str, str]:
        async with small_local(tmp_path) as local:
            for address in (local.nameserver, local.broker):
                host, _, port = address.rpartition(":")
                socket.create_connection((host, int(port)), 5).close()
            return local.nameserver, local.broker

    for address in run(main()):
        host, _, port = address.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), 5)


def test_addresses_need_a_running_server(tmp_path: Path) -> None:
    local = small_local(tmp_path)
    assert local.data == tmp_path
    for name in ("nameserver", "broker"):
        with pytest.raises(KappaError, match="not running"):
            getattr(local, name)


def test_the_data_directory_has_one_user(tmp_path: Path) -> None:
    with LocalThread(small_local(tmp_path)), pytest.raises(StoreLocked), LocalThread(small_local(tmp_path)):
        pass
    with LocalThread(small_local(tmp_path)) as again:
        assert again.broker


def test_a_failed_start_leaves_nothing_listening(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        taken = server.getsockname()[1]
        local = Local.at(tmp_path, nameserver_port=0, broker_port=taken, host="127.0.0.1", properties=SMALL)
        with pytest.raises(ConfigError, match=f"port {taken} is in use"):
            run(local.start())
    with pytest.raises(KappaError, match="not running"):
        local.nameserver  # noqa: B018
    run(local.stop())


def test_a_port_that_somebody_takes_meanwhile_is_given_up_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[socket.socket] = []

    def then_taken(what: str, *rest: Any) -> int:
        port = choose_port(what, *rest)
        if what == "broker" and not others:
            others.append(socket.create_server(("127.0.0.1", port - 2)))
        return port

    choose_port = ports.choose_port
    monkeypatch.setattr(ports, "choose_port", then_taken)

    async def main() -> str:
        async with small_local(tmp_path) as local:
            return local.broker

    try:
        chosen = int(run(main()).rpartition(":")[2])
        assert chosen - 2 != others[0].getsockname()[1]
    finally:
        others[0].close()


def test_a_port_in_the_properties_is_explicit(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        taken = server.getsockname()[1]
        properties = {**SMALL, "listenPort": str(taken)}
        local = Local.at(tmp_path, nameserver_port=0, host="127.0.0.1", properties=properties)
        with pytest.raises(ConfigError, match="is in use"):
            run(local.start())


def test_findings_are_kept(tmp_path: Path) -> None:
    assert Local.at(tmp_path, properties={"teapot": "1"}).findings.unknown == ("teapot",)
