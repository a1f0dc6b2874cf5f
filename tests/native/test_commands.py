"""The long runs of this folder begin, compare and end, at toy size."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.native.conftest import load_kernel
from tests.native.fuzz import Round

ROOT = Path(__file__).parents[2]


def test_the_fuzzer_as_a_command(native: ModuleType) -> None:
    command = [sys.executable, "-m", "tests.native.fuzz", "400", "--rounds-from", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    told = re.fullmatch(r"(\d+) frames in \d+ rounds: (\d+) fast, (\d+) left to Python, 0 failures\n", done.stdout)
    assert told is not None, done.stdout
    assert int(told[1]) >= 400
    assert int(told[2]) > 0, "kernels that take nothing are not compared"


def test_a_mistake_of_the_fuzzer_is_no_agreement() -> None:
    twin = load_kernel("twin")
    both = Round((twin, twin), 7).both
    with pytest.raises(NameError):
        both.same([lambda: not_there] * 2, "not_there", ())  # type: ignore[name-defined] # noqa: F821
    with pytest.raises(AttributeError):
        both.function("not_there")
    assert both.function("index_apply", bytearray(3), b"", 0, 1, 10, 0) == "ValueError"
