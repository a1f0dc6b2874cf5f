from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kappamq import ports
from kappamq.errors import ConfigError
from kappamq.net.serving.server import bind
from kappamq.ports import choose_port, is_free, reachable, start_on_port

HOST = "127.0.0.1"


@contextmanager
def taken(port: int = 0) -> Iterator[int]:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HOST, port))
        server.listen()
        yield server.getsockname()[1]


def test_an_explicit_port_is_taken_as_it_is() -> None:
    with taken() as port:
        pass
    assert choose_port("broker", HOST, port, 1, (0,)) == port


def test_an_explicit_port_that_is_taken_is_an_error() -> None:
    with taken() as port, pytest.raises(ConfigError, match=f"port {port} is in use by another program; .*0 for any"):
        choose_port("broker", HOST, port, 1, (-2, 0, 1))


def test_a_taken_neighbour_is_named() -> None:
    with taken() as port, pytest.raises(ConfigError, match=f"port {port} is in use.*a broker on {port + 2} needs it"):
        choose_port("broker", HOST, port + 2, 1, (-2, 0))


def test_the_usual_port_or_a_free_one() -> None:
    with taken() as port:
        other = choose_port("broker", HOST, None, port, (-2, 0, 1))
        assert other != port
    usual = choose_port("broker", HOST, 0, 1, (-2, 0, 1))
    assert choose_port("broker", HOST, None, usual, (-2, 0, 1)) == usual


def test_any_free_pair_has_free_neighbours() -> None:
    port = choose_port("broker", HOST, 0, 1, (-2, 0, 1))
    with ExitStack() as stack:
        for offset in (-2, 0, 1):
            stack.enter_context(taken(port + offset))
        assert not is_free(HOST, port)


def test_outgoing_connections_do_not_take_it_away() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert first < 25_000 or all(choose_port("broker", HOST, 0, 1, (-2, 0, 1)) + 1 < first for _ in range(20))


@pytest.mark.parametrize("ranges", ["1024 65535", "", "many few"])
def test_where_nothing_is_known_of_outgoing_connections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ranges: str
) -> None:
    (tmp_path / "range").write_text(ranges)
    monkeypatch.setattr(ports, "open", lambda _name: (tmp_path / "range").open(), raising=False)
    assert is_free(HOST, choose_port("broker", HOST, 0, 1, (-2, 0, 1)))


def test_no_free_port_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda host, port: False)
    with pytest.raises(ConfigError, match="no free port"):
        choose_port("broker", HOST, 0, 1, (0,))


@pytest.mark.parametrize(("host", "text"), [("192.0.2.1", "cannot listen on"), ("no such host", "not an address")])
def test_addresses_that_are_not_ours(host: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        is_free(host, 12345)


@pytest.mark.parametrize(
    ("listening", "connect"),
    [
        ("0.0.0.0:1", "127.0.0.1:1"),
        ("[::]:1", "[::1]:1"),
        (":::1", "[::1]:1"),
        ("10.0.0.1:1", "10.0.0.1:1"),
        (":1", "127.0.0.1:1"),
    ],
)
def test_reachable(listening: str, connect: str) -> None:
    assert reachable(listening) == connect


def test_a_port_that_is_taken_in_between_is_given_up_for_another() -> None:
    tried: list[int] = []
    with ExitStack() as stack:

        async def start(port: int) -> socket.socket:
            tried.append(port)
            if len(tried) < 3:
                stack.enter_context(taken(port))  # somebody else is quicker
            return stack.enter_context(bind(HOST, port, 1))

        listening = asyncio.run(start_on_port("broker", HOST, 0, 1, (-2, 0, 1), start))
        assert listening.getsockname()[1] == tried[2]
        assert len(set(tried)) == 3


def test_but_not_for_one_that_was_asked_for_nor_for_other_errors() -> None:
    with taken() as port:
        pass
    with ExitStack() as stack:

        async def start(port: int) -> socket.socket:
            stack.enter_context(taken(port))
            return bind(HOST, port, 1)

        with pytest.raises(ConfigError, match=f"port {port} is in use"):
            asyncio.run(start_on_port("broker", HOST, port, 1, (0,), start))

    async def fail(port: int) -> None:
        raise ConfigError("no such certificate")

    with pytest.raises(ConfigError, match="no such certificate"):
        asyncio.run(start_on_port("broker", HOST, 0, 1, (0,), fail))
