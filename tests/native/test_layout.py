"""The numbers that are written down twice are the same numbers."""

from __future__ import annotations

import re
from pathlib import Path

from kappamq.native import layout

HEADER = (Path(layout.__file__).with_name("kernel.h")).read_text()


def constants() -> dict[str, int]:
    """Every NAME = expression and #define NAME expression of kernel.h that is a plain number."""
    found = re.findall(r"\b([A-Z][A-Z0-9_]+)\s*=\s*(-?[0-9a-fA-Fx<* ]+?)\s*[,}\n]", HEADER)
    found += re.findall(r"#define ([A-Z0-9_]+) (0x[0-9A-F]+)u", HEADER)
    found += [
        (name, f"1 << {bits}") for name, bits in re.findall(r"#define ([A-Z_]+) \(\(int64_t\)1 << ([0-9]+)\)", HEADER)
    ]
    return {name: number(text) for name, text in found}


def number(text: str) -> int:
    if "<<" in text:
        left, right = text.split("<<")
        return number(left) << number(right)
    product = 1
    for factor in text.split("*"):
        product *= int(factor, 0)
    return product


def test_kernel_h_repeats_the_layout() -> None:
    ours = {name: value for name, value in vars(layout).items() if name.isupper() and isinstance(value, int)}
    theirs = constants()
    shared = ours.keys() & theirs.keys()
    assert len(shared) > 40, "kernel.h has changed its form: teach this test to read it"
    for name in shared:
        assert ours[name] & 0xFFFFFFFFFFFFFFFF in (
            theirs[name] & 0xFFFFFFFFFFFFFFFF,
            theirs[name] - (1 << 32) & 0xFFFFFFFFFFFFFFFF,
        ), name


def test_sizes() -> None:
    theirs = constants()
    assert layout.ENTRY.size == theirs["ENTRY_BYTES"] == 20
    assert layout.INDEX_PENDING.size == theirs["INDEX_PENDING_BYTES"] == 20
    assert len(layout.TAIL_CRC_NAME) + 11 == layout.TAIL_CRC_BYTES
    assert len(layout.BATCH_NAME) + 11 == layout.BATCH_PROPERTY_BYTES
