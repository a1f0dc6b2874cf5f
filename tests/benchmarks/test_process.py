"""Children: pinned, measured, and never left behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks.process import LOAD_CORE, Child, Cpu, ProcessFailed


def python(text: str, home: Path, **options: object) -> Child:
    return Child([sys.executable, "-c", text], home, **options)  # type: ignore[arg-type]


def test_runs_on_its_cores_and_is_measured(tmp_path: Path) -> None:
    text = (
        "import os, time; x = sum(range(3_000_000)); print(sorted(os.sched_getaffinity(0)), flush=True); time.sleep(60)"
    )
    with python(text, tmp_path, cores=LOAD_CORE) as child:
        seconds = child.wait_for("\n")
        assert child.printed.strip() == str(sorted(LOAD_CORE))
        assert 0 < child.cpu().run_ns < 60e9
        assert 1 << 20 < child.rss_anon() < 1 << 30
        assert seconds > 0
        pid = child.pid
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("attempt", range(5))
def test_the_last_words_of_a_process_count(tmp_path: Path, attempt: int) -> None:
    with python("print('{\"a\": 1}')", tmp_path) as child:
        assert child.wait_for_json()[0] == {"a": 1}


def test_a_process_that_ends_silently_is_an_error_with_its_complaint(tmp_path: Path) -> None:
    with python("import sys; sys.exit('no room')", tmp_path) as child, pytest.raises(ProcessFailed, match="no room"):
        child.wait_for("ready")


def test_a_process_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    with python("input()", tmp_path) as child, pytest.raises(ProcessFailed):
        child.wait_for("ready", seconds=0.2)


def test_noise_is_the_time_spent_waiting_for_a_core() -> None:
    assert (Cpu(30, 10) - Cpu(0, 0)).noise == 0.25
    assert Cpu(0, 0).noise == 0


def test_children_see_our_environment_and_their_own(tmp_path: Path) -> None:
    with python("import os; print(os.environ['HOME'], os.environ['EXTRA'])", tmp_path, env={"EXTRA": "x"}) as child:
        child.wait_for("\n")
        assert child.printed.split() == [os.environ["HOME"], "x"]
