"""Recognises the protocol from the first bytes of a connection, including a PROXY header. Pure.

A frame begins with its length, so its first bytes differ from all other protocols. With the PROXY protocol (versions 1
and 2) load balancers tell for whom they connect; its header precedes everything else, including TLS. Whether it is
trusted is decided by the server.
"""

from __future__ import annotations

import enum
import ipaddress
import struct
from typing import Final, NamedTuple

from kappamq.errors import ProtocolError

Address = tuple[str, int]

OPENING_BYTES_MAX: Final = 4096
"""How far we look. A longer PROXY header is refused; of a longer TLS hello only the beginning is examined."""

_PROXY_1: Final = b"PROXY "
_PROXY_1_BYTES_MAX: Final = 107  # the longest line that the protocol allows, with its end
_PROXY_2: Final = b"\r\n\r\n\0\r\nQUIT\n"
_PROXY_2_HEAD: Final = struct.Struct(">12sBBH")
_TCP4, _TCP6 = 0x11, 0x21
_HTTP_2: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HTTP_1: Final = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"CONNECT ", b"PATCH ")
_SIGNATURES: Final = (_PROXY_1, _PROXY_2, _HTTP_2, *_HTTP_1)
_FIRST_BYTES: Final = frozenset(signature[0] for signature in _SIGNATURES)
_TLS_HANDSHAKE: Final = 0x16  # content type of the record that opens a TLS connection
_ALPN: Final = 16  # TLS extension: which protocols the client would speak inside


class Kind(enum.Enum):
    FRAMES = "frames"  # RocketMQ's remoting protocol, or an unknown one
    MORE = "more"  # not enough bytes yet
    PROXY = "proxy"
    TLS = "tls"
    HTTP_1 = "http/1"
    HTTP_2 = "http/2"


class Opening(NamedTuple):
    kind: Kind
    size: int = 0  # PROXY: size of the header, to be removed. MORE: how many bytes are needed at least
    source: Address | None = None  # PROXY: the client's address; None: the proxy itself, or unknown
    inside: tuple[bytes, ...] = ()  # TLS: the protocols the client offers (ALPN)


def recognise(data: bytes) -> Opening:
    """Return what a connection opens with. Raises ProtocolError for a PROXY header that is malformed or too long."""
    if not data:
        return Opening(Kind.MORE, 1)
    if data[0] == _TLS_HANDSHAKE:
        return _tls(data)
    if data[0] not in _FIRST_BYTES:
        return Opening(Kind.FRAMES)
    if data.startswith(_PROXY_1):
        return _proxy_1(data)
    if data.startswith(_PROXY_2):
        return _proxy_2(data)
    if data.startswith(_HTTP_2):
        return Opening(Kind.HTTP_2)
    if data.startswith(_HTTP_1):
        return Opening(Kind.HTTP_1)
    if any(signature.startswith(data) for signature in _SIGNATURES):
        return Opening(Kind.MORE, len(data) + 1)
    return Opening(Kind.FRAMES)


def _proxy_1(data: bytes) -> Opening:
    """`PROXY TCP4 192.0.2.1 192.0.2.9 56324 10911\\r\\n`"""
    end = data.find(b"\r\n", 0, _PROXY_1_BYTES_MAX)
    if end < 0:
        if len(data) >= _PROXY_1_BYTES_MAX:
            raise ProtocolError(f"PROXY header without an end in its first {_PROXY_1_BYTES_MAX} bytes")
        return Opening(Kind.MORE, len(data) + 1)
    words = data[:end].decode("latin-1").split(" ")
    if words[1] == "UNKNOWN":
        return Opening(Kind.PROXY, end + 2)
    version = {"TCP4": 4, "TCP6": 6}.get(words[1])
    if version is None or len(words) != 6:
        raise ProtocolError(f"malformed PROXY header {data[:end]!r}")
    if b"%" in data[:end]:
        # A zone is meaningful on the proxy's machine only, and may contain any bytes.
        raise ProtocolError(f"PROXY header {data[:end]!r} with a zone in an address: remove the % and what follows")
    try:
        source, target = (ipaddress.ip_address(word) for word in words[2:4])
        ports = [int(word) for word in words[4:] if word.isascii() and word.isdecimal() and len(word) <= 5]
    except ValueError as error:
        raise ProtocolError(f"malformed PROXY header {data[:end]!r}: {error}") from None
    if source.version != version or target.version != version or len(ports) != 2 or max(ports) > 65_535:
        raise ProtocolError(f"malformed PROXY header {data[:end]!r}")
    return Opening(Kind.PROXY, end + 2, (str(source), ports[0]))


def _proxy_2(data: bytes) -> Opening:
    """Signature, version and command, family, length; then addresses and ports; then fields that are ignored."""
    if len(data) < _PROXY_2_HEAD.size:
        return Opening(Kind.MORE, _PROXY_2_HEAD.size)
    _, command, family, length = _PROXY_2_HEAD.unpack_from(data)
    size = _PROXY_2_HEAD.size + length
    if command not in (0x20, 0x21):
        raise ProtocolError(f"PROXY header of an unknown version or command (0x{command:02x})")
    if size > OPENING_BYTES_MAX:
        raise ProtocolError(f"PROXY header of {size} bytes, the limit is {OPENING_BYTES_MAX}")
    if len(data) < size:
        return Opening(Kind.MORE, size)
    ip_bytes = {_TCP4: 4, _TCP6: 16}.get(family)
    if command == 0x20 or ip_bytes is None:
        return Opening(Kind.PROXY, size)  # the proxy itself (a health check), or not TCP: no source address
    if length < 2 * ip_bytes + 4:
        raise ProtocolError(f"PROXY header whose addresses have {length} bytes; {2 * ip_bytes + 4} are needed")
    start = _PROXY_2_HEAD.size
    source = ipaddress.ip_address(data[start : start + ip_bytes])
    (port,) = struct.unpack_from(">H", data, start + 2 * ip_bytes)
    return Opening(Kind.PROXY, size, (str(source), port))


def _tls(data: bytes) -> Opening:
    """Parse a TLS record with the client's hello. A malformed one is left to the TLS library, whose error is more precise."""
    if len(data) < 5:
        return Opening(Kind.MORE, 5)
    if data[1] != 3:
        return Opening(Kind.TLS)
    size = 5 + int.from_bytes(data[3:5], "big")
    if len(data) < min(size, OPENING_BYTES_MAX):
        return Opening(Kind.MORE, min(size, OPENING_BYTES_MAX))
    try:
        return Opening(Kind.TLS, inside=_offered_inside(data[5:size]))
    except (IndexError, ValueError):
        return Opening(Kind.TLS)


def _offered_inside(hello: bytes) -> tuple[bytes, ...]:
    """Find the ALPN extension of a ClientHello. Raises IndexError if it ends too early."""
    position = 4 + 2 + 32  # handshake header, version, random
    position += 1 + hello[position]  # session id
    position += 2 + _two(hello, position)  # cipher suites
    position += 1 + hello[position]  # compression
    position += 2  # bytes of all extensions
    while position + 4 <= len(hello):
        kind, size = _two(hello, position), _two(hello, position + 2)
        position += 4
        if kind == _ALPN:
            return _names(hello[position + 2 : position + size])
        position += size
    return ()


def _names(data: bytes) -> tuple[bytes, ...]:
    found, position = [], 0
    while position < len(data):
        size = data[position]
        found.append(data[position + 1 : position + 1 + size])
        position += 1 + size
    return tuple(found)


def _two(data: bytes, position: int) -> int:
    return data[position] << 8 | data[position + 1]
