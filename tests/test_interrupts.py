from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from kappamq import interrupts


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
