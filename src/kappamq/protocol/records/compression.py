"""Compression of message bodies. The system flag of a record names the method."""

from __future__ import annotations

import zlib
from enum import Enum
from typing import Any, Final

from kappamq.errors import ProtocolError

COMPRESSED: Final = 0x1
TYPE_MASK: Final = 0x700
BODY_BYTES_MAX: Final = 64 << 20
"""A compressed body is never decompressed beyond this."""


class BodyTooLong(ProtocolError):
    """A compressed body exceeds the caller's limit when decompressed."""


class Compression(Enum):
    """The methods, with their bits in the system flag."""

    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


def method_of(sys_flag: int) -> Compression:
    """Return the method in the flag's type bits; brokers before 5.0 wrote 0 for zlib."""
    bits = sys_flag & TYPE_MASK
    try:
        return Compression(bits) if bits else Compression.ZLIB
    except ValueError:
        raise ProtocolError(f"unknown compression type {bits >> 8}: 0 and 3 are zlib, 1 is LZ4, 2 is Zstd") from None


def compress(body: bytes, method: Compression = Compression.ZLIB, level: int = 5) -> bytes:
    """Return the compressed body; the caller sets COMPRESSED and the method's bits."""
    if method is Compression.ZLIB:
        return zlib.compress(body, level)
    packed: bytes
    if method is Compression.LZ4:
        packed = _lz4().compress(body)
    else:
        packed = _zstd().ZstdCompressor(level=level).compress(body)
    return packed


def decompress(body: bytes, sys_flag: int, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Decompress a body. Raises ProtocolError if it is damaged or truncated, BodyTooLong beyond `bytes_max` bytes."""
    method = method_of(sys_flag)
    try:
        plain, complete = _UNPACK[method](body, bytes_max + 1)
    except (MemoryError, KeyboardInterrupt, ProtocolError):
        raise
    except Exception as error:  # each library has its own errors; lz4 raises RuntimeError
        raise ProtocolError(f"the {method.name} body cannot be decompressed: {error}") from error
    if len(plain) > bytes_max:
        raise BodyTooLong(f"the {method.name} body is longer than {bytes_max} bytes when decompressed")
    if not complete:
        raise ProtocolError(f"the {method.name} body is truncated after {len(body)} bytes")
    return plain


def _unpack_zlib(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    stream = zlib.decompressobj()
    return stream.decompress(body, bytes_max), stream.eof


def _unpack_lz4(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    stream = _lz4().LZ4FrameDecompressor()
    return stream.decompress(body, max_length=bytes_max), stream.eof


def _unpack_zstd(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    zstd = _zstd()
    stream = zstd.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
    # The library has no limit of its own: feed it in small steps so that it cannot exceed ours by much.
    parts: list[bytes] = []
    length = 0
    for at in range(0, len(body), _ZSTD_STEP):
        part = stream.decompress(body[at : at + _ZSTD_STEP])
        parts.append(part)
        length += len(part)
        if length >= bytes_max or stream.eof:
            break
    return b"".join(parts), stream.eof or length >= bytes_max


_ZSTD_STEP = 1024  # this many bytes of empty blocks decompress to 32 MiB at most
_UNPACK = {Compression.ZLIB: _unpack_zlib, Compression.LZ4: _unpack_lz4, Compression.ZSTD: _unpack_zstd}


def _lz4() -> Any:
    import lz4.frame  # only clients that receive such a body need it

    return lz4.frame


def _zstd() -> Any:
    import zstandard

    return zstandard
