"""Addresses as text and bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.errors import ProtocolError
from kappamq.protocol import address


@given(st.ip_addresses(), st.integers(0, 65535))
def test_there_and_back(ip: object, port: int) -> None:
    text = str(ip)
    packed = address.pack_ip(text)
    assert address.pack_ip(address.unpack_ip(packed)) == packed
    assert address.split(address.join(text, port)) == (text, port)


def test_forms() -> None:
    assert address.pack_ip("10.0.0.1") == bytes([10, 0, 0, 1])
    assert address.pack_ip("::ffff:10.0.0.1") == bytes([10, 0, 0, 1])
    assert address.pack_ip("fe80::1%eth0") == address.pack_ip("fe80::1")
    assert address.join("::1", 5) == "[::1]:5"
    assert address.split("broker-a:10911") == ("broker-a", 10911)
    assert address.split("münchen.example:1") == ("münchen.example", 1)
    assert address.split("[fe80::1%eth0]:1") == ("fe80::1%eth0", 1)


@pytest.mark.parametrize(
    "text",
    ["", "a", ":1", "a:", "a:x", "a:65536", "a:-1", "a:١", "a:999999", "a" * 64 + ".x:1", "a..b:1", "x." * 128 + "x:1"],
)
def test_not_an_address(text: str) -> None:
    with pytest.raises(ProtocolError):
        address.split(text)


@pytest.mark.parametrize("character", ["\n", "\r", "\x1b", "\0", "\x7f", "\x9b", "\u2028"])
def test_no_control_characters_in_an_address(character: str) -> None:
    with pytest.raises(ProtocolError, match="control characters") as caught:
        address.split(f"10.0.0.1{character}ERROR forged:1")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", ["", "localhost", "1.2.3", "1.2.3.4.5", "x" * 1000])
def test_not_an_ip(text: str) -> None:
    with pytest.raises(ProtocolError):
        address.pack_ip(text)


def test_wrong_number_of_bytes() -> None:
    with pytest.raises(ProtocolError):
        address.unpack_ip(b"12345")


def test_loopback() -> None:
    assert all(map(address.is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(address.is_loopback, ("10.0.0.1", "example", "")))
