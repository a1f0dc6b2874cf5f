"""Tests run in random order, and the order can be had again: the seed is shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def collected(*options: str) -> tuple[list[str], int]:
    """Which tests of a folder would run, in order, and the seed that was shown."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests/filters",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        *options,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    seed = re.search(r"^This order again: --randomly-seed=(\d+)$", done.stdout, re.M)
    assert seed is not None, done.stdout
    return re.findall(r"^tests/.*::.*$", done.stdout, re.M), int(seed[1])


@pytest.mark.timeout(240)
def test_the_order_is_random_and_can_be_had_again() -> None:
    tests, seed = collected()
    assert len(tests) > 50
    assert collected(f"--randomly-seed={seed}") == (tests, seed)
    others, _ = collected(f"--randomly-seed={seed + 1}")
    assert others != tests
    assert sorted(others) == sorted(tests)
