"""Under which address a broker is found."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from kappamq.broker.address import Address
from kappamq.errors import ConfigError


def test_what_is_advertised_wins() -> None:
    address = Address("10.1.2.3", 10911)
    assert address.of(None) == "10.1.2.3:10911"
    assert address.of("192.168.0.9") == "10.1.2.3:10911"
    assert address.packed == bytes((10, 1, 2, 3)) + (10911).to_bytes(4, "big")


def test_otherwise_the_local_end_towards_the_name_server() -> None:
    address = Address(None, 7)
    assert address.of(None) == "127.0.0.1:7", "nobody has told us yet"
    assert address.packed == b"\x7f\x00\x00\x01\x00\x00\x00\x07"
    assert address.of("192.168.0.9") == "192.168.0.9:7"
    assert address.of(None) == "192.168.0.9:7", "and that is remembered"
    assert address.packed[:4] == bytes((192, 168, 0, 9))


@pytest.mark.parametrize("given", ["fd00::5", "[fd00::5]"])
def test_ipv6(given: str) -> None:
    address = Address(given, 10911)
    assert (address.ip, address.of(None)) == ("fd00::5", "[fd00::5]:10911")
    assert address.packed == b"\xfd\x00" + bytes(13) + b"\x05" + (10911).to_bytes(4, "big")
    seen = Address(None, 1)
    assert (seen.of("::1"), len(seen.packed)) == ("[::1]:1", 20)


def test_a_name_is_looked_up_once_since_ids_hold_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def look_up(host: str, port: Any, **rest: Any) -> list[tuple[Any, ...]]:
        asked.append(host)
        if host != "tea.example":
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.9.8.7", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    address = Address("tea.example", 5)
    assert [address.of(None), address.of("1.1.1.1"), address.ip] == ["10.9.8.7:5", "10.9.8.7:5", "10.9.8.7"]
    assert asked == ["tea.example"]
    with pytest.raises(ConfigError, match=r"'nowhere\.example', cannot be resolved"):
        Address("nowhere.example", 5)
