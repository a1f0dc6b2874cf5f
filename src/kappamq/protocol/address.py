"""Addresses as text (`10.0.0.1:10911`, `[::1]:10911`) and as the bytes inside a record; names are never resolved."""

from __future__ import annotations

import ipaddress

from kappamq.config.checks import could_be_host
from kappamq.errors import ProtocolError


def pack_ip(text: str) -> bytes:
    """Return the 4 or 16 bytes of a numeric address. An IPv4-mapped IPv6 address becomes IPv4."""
    try:
        parsed = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        raise ProtocolError(f"{text[:60]!r} is not a numeric IP address") from None
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.packed


def unpack_ip(data: bytes) -> str:
    """Return the text of 4 or 16 address bytes."""
    if len(data) not in (4, 16):
        raise ProtocolError(f"an address must have 4 or 16 bytes, got {len(data)}")
    return str(ipaddress.ip_address(data))


def join(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(text: str) -> tuple[str, int]:
    """Parse `host:port`, with or without brackets around the host. Raises ProtocolError."""
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not (port.isascii() and port.isdigit() and len(port) <= 5) or int(port) > 0xFFFF:
        raise ProtocolError(f"{text[:80]!r} is not an address like 10.0.0.1:10911")
    if not host.isprintable():
        raise ProtocolError(f"the address {text[:80]!r} contains control characters")
    if not could_be_host(host):
        raise ProtocolError(f"{text[:80]!r} is not an address like 10.0.0.1:10911: no host has such a name")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return whether this is a numeric loopback address, or its name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
