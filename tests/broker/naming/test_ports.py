"""Three listening sockets, or none."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kappamq.broker.naming import ports
from kappamq.broker.naming.ports import bind_free_ports, bind_ports, close_all
from kappamq.errors import ConfigError
from kappamq.net.serving.server import bind
from tests.broker.running import run, running, speaking

HOST = "127.0.0.1"


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def test_all_or_none() -> None:
    first, second, third = bind_free_ports(HOST, 5)
    port = port_of(first)
    assert (port_of(second), port_of(third)) == (port - 2, port + 1)
    first.close()
    with pytest.raises(ConfigError, match=f"port {port - 2} is in use"):
        bind_ports(HOST, port, 5)
    second.close()
    with pytest.raises(ConfigError, match=f"port {port + 1} is in use"):
        bind_ports(HOST, port, 5)
    third.close()
    again = bind_ports(HOST, port, 5)  # the first sockets of the failed tries are closed
    assert [port_of(listener) for listener in again] == [port, port - 2, port + 1]
    close_all(again)
    bind(HOST, port, 5).close()


def test_any_free_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first choice has a neighbour that is taken."""
    taken: list[socket.socket] = []

    def unlucky(host: str, port: int, backlog: int) -> socket.socket:
        if port and not taken:
            taken.append(bind(host, port, 1))
        return bind(host, port, backlog)

    async def test() -> None:
        monkeypatch.setattr(ports, "bind", unlucky)
        async with running(tmp_path) as broker:
            (neighbour,) = taken
            assert broker.port - 2 != port_of(neighbour)
            assert len(broker.server._sockets) == 2
            bind(HOST, port_of(neighbour) + 2, 1).close()  # the first try listens no more
            async with speaking(broker) as client:
                assert (await client.send("t", b"x")).code == 0
            neighbour.close()

    run(test())


def test_some_time_it_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    def only_any(host: str, port: int, backlog: int) -> socket.socket:
        if port:
            raise ConfigError(f"port {port} is in use")
        made.append(bind(host, port, backlog))
        return made[-1]

    monkeypatch.setattr(ports, "bind", only_any)
    with pytest.raises(OSError, match="no free port"):
        bind_free_ports(HOST, 1)
    assert made
    assert all(listener.fileno() == -1 for listener in made), "all of them are closed"
