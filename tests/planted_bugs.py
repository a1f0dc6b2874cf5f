"""Whether the dialogues find bugs: each of these is planted into a copy of the sources, and the script named with it must fail.

`.venv/bin/python -m tests.planted_bugs` (minutes; not a part of `make test`); with names of scripts, only their bugs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Bug(NamedTuple):
    module: str
    right: str
    wrong: str


MARKS, WATERMARK = "store/log/marks.py", "store/log/watermark.py"
DUE = "broker/timers/due.py"
BALANCE, ASSIGNMENT = "client/group/balance.py", "client/group/assignment.py"

SCRIPTS: dict[str, tuple[str, list[Bug]]] = {
    "marks": (
        "tests/store/log/test_marks.py",
        [
            Bug(MARKS, "return written, written, flushed", "return written, written, written"),
            Bug(MARKS, "return flushed, flushed, flushed", "return flushed, written, flushed"),
            Bug(MARKS, "answerable = min(answerable, self._copies.held())", "pass"),
        ],
    ),
    "waiters": (
        "tests/store/log/test_marks.py",
        [
            Bug(WATERMARK, "if offset <= self.offset:", "if offset < self.offset:"),
            Bug(WATERMARK, "while waiting and waiting[0][0] <= offset:", "while waiting and waiting[0][0] < offset:"),
            Bug(WATERMARK, "reached.append(waiting.popleft()[1])", "reached.append(waiting.pop()[1])"),
        ],
    ),
    "folds": (
        "tests/state/test_metadata.py",
        [
            Bug("state/offsets.py", "committed.get((topic, group), {}).pop(queue, None)", "pass"),
            Bug(
                "state/topics.py",
                'ends = {int(queue_id): int(end) for queue_id, end in change["ends"].items()}',
                "ends: dict[int, int] = {}",
            ),
            Bug("state/groups.py", 'self.table.pop(str(change["groupName"]), None)', "pass"),
        ],
    ),
    "snapshots": (
        "tests/state/test_metadata.py",
        [
            Bug(
                "state/metadata.py", "stamp = max(self._changed_to.get(table.file, 0), confirmed)", "stamp = confirmed"
            ),
            Bug(
                "state/metadata.py",
                "return log_offset < max(",
                "return log_offset <= max(",
            ),
            Bug("state/metadata.py", "unsaved.discard(name)", "pass"),
        ],
    ),
    "lost_log": (
        "tests/state/test_metadata.py",
        [
            Bug(
                "state/offsets.py",
                "    def clamp(self) -> None:\n",
                "    def clamp(self) -> None:\n        return\n\n    def _clamp(self) -> None:\n",
            ),
            Bug("state/metadata.py", "self._early.append((kind, change))", "pass"),
            Bug(
                "state/metadata.py",
                "stamps[table.file] = end if stamp is None else min(stamp, end)",
                "stamps[table.file] = end if stamp is None else stamp",
            ),
        ],
    ),
    "due": (
        "tests/broker/timers/test_due.py",
        [
            Bug(
                DUE,
                "and first.due_ms <= limit_ms:\n            if timers",
                "and first.due_ms < limit_ms:\n            if timers",
            ),
            Bug(DUE, "if not self._progress.is_done(*key) and (not timers", "if (not timers"),
            Bug(DUE, "last = timers[count - 1]", "last = timers[0]"),
        ],
    ),
    "timers": (
        "tests/broker/timers/test_timers.py",
        [
            Bug(
                "broker/timers/placing.py",
                "if due_ms - now_ms > self._config.timer_delay_max_s * 1000:",
                "if due_ms - now_ms > self._config.timer_delay_max_s * 1001:",
            ),
            Bug(
                "broker/timers/placing.py",
                "pairs[properties.TIMER_DELIVER_MS] = str(due_ms)",
                "pairs[properties.TIMER_DELIVER_MS] = str(slot_ms(due_ms))",
            ),
            Bug("broker/timers/progress.py", "(due_ms, log_offset) <= (self.due_ms, self.log_offset) or ", ""),
        ],
    ),
    "balance": (
        "tests/client/group/test_balance.py",
        [
            Bug(BALANCE, "start = index * size + min(index, rest)", "start = index * size"),
            Bug(BALANCE, "here[len(client_ids) * size + index]", "here[index]"),
            Bug(BALANCE, "for room in sorted(queues_in.keys() - members_in.keys()):", "for room in ():"),
        ],
    ),
    "rebalance": (
        "tests/client/group/test_rebalance.py",
        [
            Bug(
                BALANCE,
                "index, members = client_ids.index(client_id), len(client_ids)",
                "index, members = 0, len(client_ids)",
            ),
            Bug(
                "client/group/group_member.py",
                "if self._assignment is not None and not self.broadcasting:\n            self._assignment.soon()",
                "pass",
            ),
            Bug(ASSIGNMENT, "            await self.locks.release([queue])\n", ""),
        ],
    ),
}


def is_found(bug: Bug, script: str, test_file: str, tree: Path) -> bool:
    """Plant it into `tree`, play the script, take it out again."""
    module = tree / "src" / "kappamq" / bug.module
    text = module.read_text(encoding="utf-8")
    if text.count(bug.right) != 1:
        raise SystemExit(f"{bug.module} has {bug.right!r} {text.count(bug.right)} times: bring this file up to date")
    module.write_text(text.replace(bug.right, bug.wrong), encoding="utf-8")
    try:
        return not passes(script, test_file, tree)
    finally:
        module.write_text(text, encoding="utf-8")


def passes(script: str, test_file: str, tree: Path) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", test_file, "-k", f"{script}] or {script}-"]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{script} could not be played:\n{done.stdout}{done.stderr}")
    return done.returncode == 0


def main() -> None:
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        for script in sys.argv[1:] or SCRIPTS:
            test_file, bugs = SCRIPTS[script]
            if not passes(script, test_file, tree):
                raise SystemExit(f"{script} fails without a bug")
            for bug in bugs:
                found = is_found(bug, script, test_file, tree)
                missed += not found
                print("found " if found else "MISSED", script, f"{bug.module}: {bug.wrong.strip()[:70]!r}", flush=True)
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
