from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from kappamq import interrupts

ROOT = Path(__file__).parents[1]


def test_a_program_that_loads_ends_at_once_and_cleanly(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "kappamq", "up", "--data", str(tmp_path / "data")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:  # Python tells each module when it is loaded; the first of typer's will do
            if line.rstrip().endswith(" typer.models") or "typer._click" in line:
                process.send_signal(signal.SIGINT)
                break
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    assert err.endswith("interrupted\n")
    assert "Traceback" not in err
    assert not (tmp_path / "data").exists()


def test_later_it_is_an_exception_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        interrupts.end_at_once()
        interrupts.raise_again()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        interrupts.raise_again()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # somebody else's choice
    finally:
        signal.signal(signal.SIGINT, before)


def test_children_of_a_test_run_heed_ctrl_c() -> None:
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    child = [
        sys.executable,
        "-c",
        "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)",
    ]
    assert subprocess.run(child, capture_output=True, text=True, timeout=30, check=True).stdout == "True\n"


def test_also_of_one_that_began_with_sigint_ignored() -> None:
    """As a script begins what it puts into the background."""
    this = f"{Path(__file__).relative_to(ROOT)}::{test_children_of_a_test_run_heed_ctrl_c.__name__}"
    command = [
        "sh",
        "-c",
        "trap '' INT; exec \"$@\"",
        "sh",
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        this,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
