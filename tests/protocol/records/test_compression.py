"""Compressed bodies: the three methods, bombs, cut-off and damaged ones."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.errors import ProtocolError
from kappamq.protocol.records.compression import COMPRESSED, Compression, compress, decompress, method_of

methods = pytest.mark.parametrize("method", Compression, ids=lambda method: method.name)


@methods
@given(body=st.binary(max_size=3000))
def test_there_and_back(method: Compression, body: bytes) -> None:
    assert decompress(compress(body, method), COMPRESSED | method.value, bytes_max=3000) == body


def test_type_0_is_zlib() -> None:
    assert method_of(COMPRESSED) is Compression.ZLIB
    assert decompress(zlib.compress(b"old"), COMPRESSED) == b"old"
    with pytest.raises(ProtocolError, match="unknown compression type 5"):
        decompress(b"", COMPRESSED | 0x500)


@methods
def test_bomb_is_stopped(method: Compression) -> None:
    bomb = compress(bytes(10_000_000), method)
    assert len(bomb) < 100_000
    with pytest.raises(ProtocolError, match="longer than 1000 bytes"):
        decompress(bomb, method.value, bytes_max=1000)
    assert len(decompress(bomb, method.value, bytes_max=10_000_000)) == 10_000_000


@methods
def test_cut_off(method: Compression) -> None:
    packed = compress(bytes(range(256)) * 20, method)
    for length in (0, 1, len(packed) // 2, len(packed) - 1):
        with pytest.raises(ProtocolError):
            decompress(packed[:length], method.value)


@methods
@given(data=st.binary(max_size=100))
def test_any_bytes_are_unpacked_or_refused(method: Compression, data: bytes) -> None:
    try:
        decompress(data, method.value, bytes_max=10_000)
    except ProtocolError:
        pass


@methods
@given(data=st.data())
def test_damaged_bodies_are_unpacked_or_refused(method: Compression, data: st.DataObject) -> None:
    packed = bytearray(compress(b"the quick brown fox " * 20, method))
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        decompress(bytes(packed), method.value, bytes_max=10_000)
    except ProtocolError:
        pass
