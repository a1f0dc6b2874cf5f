"""First bytes: what they are told to be, whole and in pieces, and what is wrong with them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.errors import ProtocolError
from kappamq.net.serving.opening import OPENING_BYTES_MAX, Kind, Opening, recognise
from kappamq.protocol.frame import Frame
from tests.net.openings import HELLO, HELLO_H2, SIGNATURE, V1, V2, V2_IPV6, client_hello, v2

FRAME = Frame(code=105, ext={"topic": "t"}).encode()
SOURCE = ("192.0.2.7", 56324)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (FRAME, Opening(Kind.FRAMES)),
        (Frame(code=105, binary=True).encode(), Opening(Kind.FRAMES)),
        (b"\xff\xff\xff\xff", Opening(Kind.FRAMES)),
        (b"SSH-2.0-OpenSSH_9.6\r\n", Opening(Kind.FRAMES)),  # nothing that we know: the receiver says what is wrong
        (b"PROXIES", Opening(Kind.FRAMES)),
        (b"GET / HTTP/1.1\r\n", Opening(Kind.HTTP_1)),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0", Opening(Kind.HTTP_2)),
        (HELLO, Opening(Kind.TLS)),
        (HELLO_H2, Opening(Kind.TLS, inside=(b"h2",))),
        (client_hello("http/1.1", "h2"), Opening(Kind.TLS, inside=(b"http/1.1", b"h2"))),
        (b"\x16" * 300, Opening(Kind.TLS)),  # no hello: OpenSSL will say so
        (b"\x16\x03\x01\x00\x05hello", Opening(Kind.TLS)),
        (V1 + FRAME, Opening(Kind.PROXY, len(V1), SOURCE)),
        (b"PROXY TCP6 2001:db8::7 ::1 1 2\r\n", Opening(Kind.PROXY, 32, ("2001:db8::7", 1))),
        (b"PROXY UNKNOWN\r\n", Opening(Kind.PROXY, 15)),
        (b"PROXY UNKNOWN whatever it likes\r\n", Opening(Kind.PROXY, 33)),
        (V2 + FRAME, Opening(Kind.PROXY, len(V2), SOURCE)),
        (V2_IPV6, Opening(Kind.PROXY, len(V2_IPV6), ("2001:db8::7", 56324))),
        (v2(0x20, 0x00, b""), Opening(Kind.PROXY, 16)),  # a health check of the proxy itself
        (v2(0x20, 0x11, bytes(12)), Opening(Kind.PROXY, 28)),
        (v2(0x21, 0x31, bytes(216)), Opening(Kind.PROXY, 232)),  # a UNIX socket: no address of use
    ],
)
def test_first_bytes_are_recognised_however_they_come(data: bytes, expected: Opening) -> None:
    assert recognise(data) == expected
    assert recognise(b"") == Opening(Kind.MORE, 1)
    for length in range(1, len(data)):
        partial = recognise(data[:length])
        if partial.kind is Kind.MORE:
            assert length < partial.size <= len(data), "it asks for more than there is, but never for too much"
        else:
            assert partial.kind is expected.kind or (partial.kind is Kind.FRAMES and expected.kind is Kind.FRAMES)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"PROXY " + b"x" * 101, "without an end"),
        (b"PROXY TCP4 192.0.2.7\r\n", "malformed"),
        (b"PROXY TCP4 192.0.2.7 192.0.2.9 1 2 3\r\n", "malformed"),
        (b"PROXY TCP4 nobody 192.0.2.9 1 2\r\n", "malformed.*nobody"),
        (b"PROXY TCP4 ::1 ::1 1 2\r\n", "malformed"),
        (b"PROXY TCP6 192.0.2.7 ::1 1 2\r\n", "malformed"),
        (b"PROXY TCP4 192.0.2.7 192.0.2.9 65536 2\r\n", "malformed"),
        (b"PROXY TCP4 192.0.2.7 192.0.2.9 -1 2\r\n", "malformed"),
        (b"PROXY TCP4 192.0.2.7 192.0.2.9 1 \r\n", "malformed"),
        (b"PROXY UDP4 192.0.2.7 192.0.2.9 1 2\r\n", "malformed"),
        (b"PROXY \r\n", "malformed"),
        (b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n", "a zone"),
        (b"PROXY TCP6 fe80::1 ::1%eth0 1 2\r\n", "a zone"),
        (b"PROXY TCP6 fe80::1%x\n2026-01-01\tERROR\x1b[31m ::1 1 2\r\n", "a zone"),
        (v2(0x31, 0x11, bytes(12)), "unknown version or command"),
        (v2(0x22, 0x11, bytes(12)), "unknown version or command"),
        (v2(0x21, 0x11, bytes(11)), "addresses have 11 bytes; 12 are needed"),
        (v2(0x21, 0x21, bytes(35)), "addresses have 35 bytes; 36 are needed"),
        (SIGNATURE + struct.pack(">BBH", 0x21, 0x11, 65_535), f"65551 bytes, the limit is {OPENING_BYTES_MAX}"),
    ],
)
def test_a_bad_proxy_header_says_what_is_wrong(data: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        recognise(data)


def test_of_a_huge_hello_only_the_beginning_is_waited_for() -> None:
    begin = b"\x16\x03\x01\x40\x00\x01"
    assert recognise(begin) == Opening(Kind.MORE, OPENING_BYTES_MAX)
    assert recognise(begin + bytes(OPENING_BYTES_MAX)).kind is Kind.TLS


@given(st.sampled_from([b"", V1[:11], V2[:12], HELLO_H2[:60], HELLO_H2[:-8], b"PRI"]), st.binary(max_size=200))
def test_anything_is_recognised_or_refused_and_never_asks_for_too_much(begin: bytes, rest: bytes) -> None:
    try:
        opening = recognise(begin + rest)
    except ProtocolError:
        return
    if opening.kind is Kind.MORE:
        assert len(begin + rest) < opening.size <= OPENING_BYTES_MAX
    else:
        assert opening.size <= len(begin + rest)
