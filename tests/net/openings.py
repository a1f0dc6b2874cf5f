"""First bytes of connections: PROXY headers, and what TLS clients say first."""

from __future__ import annotations

import ssl
import struct

V1 = b"PROXY TCP4 192.0.2.7 192.0.2.9 56324 10911\r\n"
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def v2(command: int, family: int, addresses: bytes, fields: bytes = b"") -> bytes:
    return SIGNATURE + struct.pack(">BBH", command, family, len(addresses) + len(fields)) + addresses + fields


V2 = v2(0x21, 0x11, bytes([192, 0, 2, 7, 192, 0, 2, 9]) + struct.pack(">HH", 56324, 10911), b"\x04\x00\x05hello")
V2_IPV6 = v2(
    0x21, 0x21, bytes.fromhex("20010db8000000000000000000000007" * 2) + struct.pack(">HH", 56324, 10911)
)  # 2001:db8::7


def client_hello(*protocols: str) -> bytes:
    """What OpenSSL opens with when it would speak these protocols inside."""
    context = ssl.create_default_context()
    if protocols:
        context.set_alpn_protocols(list(protocols))
    outgoing = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake needs two sides")


HELLO = client_hello()
HELLO_H2 = client_hello("h2")
