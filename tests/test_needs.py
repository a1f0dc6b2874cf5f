"""The rule that a missing need skips loudly for a user and fails in CI, tried on a test run of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

ROOT = Path(__file__).parent.parent


def run_pytest(tmp_path: Path, *, ci: bool) -> subprocess.CompletedProcess[str]:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_it.py").write_text(
        "from tests.needs import needs\n"
        "@needs('disk:999999G')\n"
        "def test_needs_much(): pass\n"
        "@needs('disk:1M')\n"
        "def test_needs_little(): pass\n"
    )
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT} {ROOT / 'src'}\nmarkers = needs: x\n")
    environment = {**os.environ, "CI": "true" if ci else ""}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )


def test_skips_loudly_for_a_user(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, ci=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 skipped" in done.stdout
    assert "NOT TESTED" in done.stdout
    assert "1 test(s) skipped, missing on this machine: 999999G of free disk" in done.stdout


def test_fails_in_ci(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, ci=True)
    assert done.returncode == 1, done.stdout
    assert "nothing may be skipped" in done.stdout


def test_unknown_need_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown need"):
        needs.missing("teapot")


def test_require_ends_a_program_with_the_reason() -> None:
    with pytest.raises(SystemExit, match="999999G"):
        needs.require("disk:999999G")
