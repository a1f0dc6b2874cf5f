"""Under which address a broker is found."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest

from kappamq.broker.naming.address import Address, card_ips, outward_ip
from kappamq.errors import ConfigError
from tests.needs import needs


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
    address.learn("192.168.0.9")
    address.learn(None)
    assert address.of(None) == "192.168.0.9:7", "that is remembered"
    assert address.of("127.0.0.1") == "127.0.0.1:7", "each name server hears what it can see"
    assert address.packed[:4] == bytes((192, 168, 0, 9))


@pytest.mark.parametrize(
    ("advertise", "listen_host", "learnt", "way_out", "expected"),
    [
        (None, "0.0.0.0", "127.0.0.1", "10.0.0.5", "10.0.0.5"),
        (None, "0.0.0.0", None, "10.0.0.5", "10.0.0.5"),
        (None, "::", "::1", "10.0.0.5", "10.0.0.5"),
        (None, "0.0.0.0", "127.0.0.1", None, "127.0.0.1"),
        (None, "0.0.0.0", "192.168.0.9", "10.0.0.5", "192.168.0.9"),
        (None, "127.0.0.1", "127.0.0.1", "10.0.0.5", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0", "127.0.0.1", "10.0.0.5", "127.0.0.1"),
    ],
)
def test_ids_name_loopback_only_where_nothing_else_is_listened_to(
    monkeypatch: pytest.MonkeyPatch, advertise: str | None, listen_host: str, learnt: str | None, way_out: str | None, expected: str
) -> None:  # fmt: skip
    monkeypatch.setattr("kappamq.broker.naming.address.outward_ip", lambda: way_out)
    address = Address(advertise, 7, listen_host)
    address.learn(learnt)
    assert address.packed == socket.inet_aton(expected) + b"\0\0\0\x07"
    assert learnt is None or address.of(learnt).rpartition(":")[0] == (f"[{learnt}]" if ":" in learnt else learnt), (
        "name servers know what to do with loopback"
    )


def test_the_way_out_is_an_address_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = outward_ip()
    if found is not None:
        with socket.socket(socket.AF_INET6 if ":" in found else socket.AF_INET) as one:
            one.bind((found, 0))

    def no_network(*_: Any) -> socket.socket:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "socket", no_network)
    assert outward_ip() is None
    assert card_ips() == []


LONELY = """
import subprocess
from kappamq.broker.naming.address import card_ips, outward_ip
def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)
assert (card_ips(), outward_ip()) == ([], None), "nothing but loopback, and that is down"
for name, place in (("docker7", "172.17.0.1/16"), ("cable0", "10.9.8.7/24"), ("off0", "10.1.1.1/24")):
    ip("link", "add", name, "type", "veth", "peer", "name", "p" + name)
    ip("addr", "add", place, "dev", name)
ip("link", "set", "docker7", "up")
ip("link", "set", "cable0", "up")
assert card_ips() == ["10.9.8.7", "172.17.0.1"], card_ips()
assert outward_ip() == "10.9.8.7"
"""


@needs("root", "netns")
def test_without_a_default_route_it_is_the_address_of_a_card() -> None:
    command = ["unshare", "--net", sys.executable, "-c", LONELY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("given", ["fd00::5", "[fd00::5]"])
def test_ipv6(given: str) -> None:
    address = Address(given, 10911)
    assert (address.ip, address.of(None)) == ("fd00::5", "[fd00::5]:10911")
    assert address.packed == b"\xfd\x00" + bytes(13) + b"\x05" + (10911).to_bytes(4, "big")
    seen = Address(None, 1)
    seen.learn("::1")
    assert (seen.of("::1"), len(seen.packed)) == ("[::1]:1", 20)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("10.1.2.3:30911", "10.1.2.3:30911"),
        ("[fd00::5]:30911", "[fd00::5]:30911"),
        ("fd00::5:1", "[fd00::5:1]:10911"),
        ("localhost:30911", "127.0.0.1:30911"),
    ],
)
def test_the_port_can_be_advertised_too(given: str, expected: str) -> None:
    """Where a container or a router maps ours to another one."""
    address = Address(given, 10911)
    assert address.of(None) == address.of("192.168.0.9") == expected
    assert int.from_bytes(address.packed[-4:], "big") == int(expected.rpartition(":")[2])


@pytest.mark.parametrize("given", ["10.1.2.3:", ":10911", "10.1.2.3:x", "10.1.2.3:70000", "10.1.2.3:2", "[fd00::5]:"])
def test_a_port_that_makes_no_sense_is_said_to_be_one(given: str) -> None:
    with pytest.raises(ConfigError, match=r"(address|port) to advertise (is host or host:port|must be at least 3)"):
        Address(given, 10911)


def test_a_name_that_no_resolver_takes_cannot_be_advertised() -> None:
    with pytest.raises(ConfigError, match="cannot be resolved"):
        Address("a" * 64 + ".x", 10911)


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
