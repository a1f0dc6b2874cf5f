"""`kappamq pipeline replay` and `dedup`: their words; what they do is tested where the jobs are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from kappamq.errors import IllegalOperation
from kappamq.spark import engine, jobs
from kappamq.spark.pipelines.progress import Batch
from tests.cli.conftest import run_kappamq


class Session:
    def stop(self) -> None: ...


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Spark is not started, and no broker asked: what the commands wanted is written down."""
    found: list[Any] = []
    monkeypatch.setattr(engine, "session", lambda *_: Session())
    monkeypatch.setattr(jobs.Replay, "check", lambda self: found.append(self))
    monkeypatch.setattr(jobs.Dedup, "check", lambda self: found.append(self))
    return found


def test_replay(asked: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = jobs.Replayed("r", 3, 2, 300, 250, 500)
    monkeypatch.setattr(jobs, "replay", lambda _spark, _wanted, progress: progress(300, 500) or done)
    arguments = ["pipeline", "replay", "r", "again", "-n", "h:1", "--state", str(tmp_path)]
    ran = run_kappamq(
        *arguments,
        "-t",
        "tea",
        "-t",
        "milk",
        "--from",
        "2h",
        "--tags",
        "a || b",
        "--where",
        "queueId = 1",
        "--rate",
        "50",
    )
    assert ran.exit_code == 0, ran
    assert ran.out.startswith("250 messages in again, of 300 read, in 3 rounds after 2 of earlier runs, ")
    (wanted,) = asked
    assert (wanted.name, wanted.target, wanted.topics, wanted.nameservers) == ("r", "again", ("tea", "milk"), "h:1")
    assert (wanted.where, wanted.per_second, wanted.state) == ("queueId = 1", 50.0, tmp_path)
    assert wanted.read["tags"] == "a || b"
    assert wanted.read["startingTimestamp"].isdigit()
    # An hour later "2h" means another time, and it is the same job.
    assert wanted.asked()["read"] == {"startingTimestamp": "2h", "tags": "a || b"}
    (row,) = run_kappamq(*arguments, "--archive", "/archive", "-o", "json").json
    assert (row["messages"], row["read"], row["planned"], row["rounds"], row["rounds_before"]) == (250, 300, 500, 3, 2)
    assert asked[1].archive == Path("/archive")
    assert not asked[1].read


def test_a_replay_that_was_done(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "replay", lambda _spark, _wanted, **_: jobs.Replayed("r", 0, 5, 0, 0, 500))
    assert (
        run_kappamq("pipeline", "replay", "r", "again", "-t", "tea").out
        == "nothing to do: r has been replayed (500 messages)\n"
    )


def test_dedup(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def dedup(_spark: Any, wanted: Any, *, follow: bool, reported: Any, until: Any) -> Any:
        assert (wanted.by, wanted.within_s, wanted.source, wanted.target) == ("key", 60.0, "tea", "once")
        assert not follow
        assert not until()
        reported(Batch("once", 0, 10, 5.0, 2000, 0, 10))
        return jobs.Deduplicated("d", 10, 8)

    monkeypatch.setattr(jobs, "dedup", dedup)
    ran = run_kappamq("pipeline", "dedup", "d", "tea", "once", "--by", "key", "--within", "60")
    assert ran.exit_code == 0, ran
    assert ran.out.splitlines()[0] == "once: batch 0, 10 rows in 2000 ms, 5 rows/s, lag 0"
    assert ran.out.splitlines()[1].startswith("8 messages in once, of 10 read, ")


def test_a_scope_of_somebody_else_is_refused(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise IllegalOperation("the scope r belongs to somebody else")

    monkeypatch.setattr(jobs, "replay", refuse)
    ran = run_kappamq("pipeline", "replay", "r", "again", "-t", "tea", "-o", "json")
    assert ran.exit_code == 6
    assert "belongs to somebody else" in ran.problem["error"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replay", "r", "again"], "give --archive, or --topic"),
        (["replay", "r", "again", "-t", "tea", "--from", "teatime"], "--from"),
        (["replay", "r", "no/topic", "-t", "tea"], "not allowed"),
        (["replay", "r", "again", "-t", "tea", "--rate", "0"], "--rate"),
        (["dedup", "d", "tea"], "TARGET"),
        (["dedup", "d", "tea", "once", "--within", "0"], "--within"),
    ],
)
def test_wrong_command_lines(arguments: list[str], said: str) -> None:
    ran = run_kappamq("pipeline", *arguments, "-o", "json")
    assert ran.exit_code == 2
    assert said in ran.problem["error"]


@pytest.mark.parametrize(
    ("arguments", "option", "text"),
    [
        (["dedup", "d", "tea", "tea2", "--by", "foo"], "--by", "id, key or body; got 'foo'"),
        (["dedup", "d", "tea", "tea2", "--on-data-loss", "maybe"], "--on-data-loss", "fail or skip"),
        (["replay", "r", "tea2", "-t", "tea", "--on-data-loss", "maybe"], "--on-data-loss", "fail or skip"),
        (
            ["replay", "r", "tea2", "-t", "tea", "--from", "1h", "--starting-offsets", "earliest"],
            "--starting-offsets",
            "--from",
        ),
        (["replay", "r", "tea2", "-t", "tea", "--to", "1h", "--ending-offsets", "latest"], "--ending-offsets", "--to"),
        (["archive", "a", "-t", "tea", "--on-data-loss", "maybe"], "--on-data-loss", "fail or skip"),
        (["archive", "a", "-t", "tea", "--compression", "foo"], "--compression", "lz4 or none"),
    ],
)
def test_a_word_that_an_option_does_not_have(arguments: list[str], option: str, text: str) -> None:
    """Told by the command line alone: no broker is asked, and Spark is not needed."""
    ran = run_kappamq("pipeline", *arguments, "-n", "127.0.0.1:1", "-o", "json")
    assert ran.exit_code == 2, ran
    assert option in ran.problem["error"]
    assert text in ran.problem["error"]
