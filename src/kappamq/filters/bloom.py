"""Where a consumer's filter stands in RocketMQ's bit maps.

We do not make bit maps. But consumerFilter.json names these positions, and a Java broker that finds others than it would choose
throws the file away.
"""

from __future__ import annotations

from typing import Final

BITS: Final = 112
"""For 32 consumers, of which a fifth may be taken for one another: RocketMQ's defaults."""
HASHES: Final = 3

_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def positions(group: str, topic: str) -> list[int]:
    """The bits of this group's filter on this topic."""
    value = murmur3(f"{group}#{topic}".encode())
    first, second = value & 0xFFFFFFFF, value >> 32
    found = []
    for number in range(1, HASHES + 1):
        combined = (first + number * second) & 0xFFFFFFFF
        found.append((combined ^ 0xFFFFFFFF if combined >> 31 else combined) % BITS)
    return found


def murmur3(data: bytes) -> int:
    """The lower half of MurmurHash3 x64 128 with seed 0."""
    one = two = 0
    blocks = len(data) // 16 * 16
    for at in range(0, blocks, 16):
        one ^= _mix(int.from_bytes(data[at : at + 8], "little"), _C1, 31, _C2)
        one = (_rotated(one, 27) + two) * 5 + 0x52DCE729 & _MASK
        two ^= _mix(int.from_bytes(data[at + 8 : at + 16], "little"), _C2, 33, _C1)
        two = (_rotated(two, 31) + one) * 5 + 0x38495AB5 & _MASK
    rest = data[blocks:].ljust(16, b"\0")
    one ^= _mix(int.from_bytes(rest[:8], "little"), _C1, 31, _C2)
    two ^= _mix(int.from_bytes(rest[8:], "little"), _C2, 33, _C1)
    one, two = one ^ len(data), two ^ len(data)
    one = one + two & _MASK
    two = two + one & _MASK
    return _final(one) + _final(two) & _MASK


def _mix(value: int, before: int, bits: int, after: int) -> int:
    return _rotated(value * before & _MASK, bits) * after & _MASK


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 64 - bits) & _MASK


def _final(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
