"""`kappamq pipeline`: its words; what jobs do is tested where they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kappamq.cli import pipeline
from kappamq.errors import SendTimeout
from tests.cli.conftest import run_kappamq

pytest.importorskip("pyspark")

from kappamq.message import MessageQueue
from kappamq.spark import connection, engine, jobs
from kappamq.spark.jobs.archive_folder import QueueRows
from kappamq.store.lock import StoreLock
from tests.spark.jobs.audit_reports import a_report
from tests.store.stores import Writer, config, opened


class Session:
    stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Spark is not started: what the command asked for is written down."""
    made: list[Any] = [Session()]
    monkeypatch.setattr(
        jobs, "check_archive", lambda *_, **__: None
    )  # it would ask brokers; tested with real ones below
    monkeypatch.setattr(engine, "session", lambda *arguments: made.append(arguments) or made[0])
    return made


def test_it_says_what_it_did(calls: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = QueueRows("tea", "broker-a", 2, 10, 35, 25)
    done = jobs.Archived(1, 25, 2, 4096, {MessageQueue("tea", "broker-a", 2): rows}, ["messages 1 to 9 are gone"])

    def archive(spark: Any, target: Path, **given: Any) -> Any:
        calls.append(given)
        given["progress"](25, 25)
        return done

    monkeypatch.setattr(jobs, "archive", archive)
    arguments = [
        "pipeline",
        "archive",
        str(tmp_path),
        "-t",
        "tea",
        "-t",
        "coffee",
        "-n",
        "h:1",
        "--on-data-loss",
        "skip",
    ]
    told = run_kappamq(*arguments, "--master", "local[1]", "--conf", "spark.x=a=b")
    assert told.exit_code == 0, told
    assert "25 messages in 2 files (4.0 KiB), verified" in told.out
    assert "broker-a" in told.out
    assert "messages 1 to 9 are gone" in told.err
    assert calls[1] == ("local[1]", "kappamq archive", {"spark.x": "a=b"})
    assert calls[2]["topics"] == ["tea", "coffee"]
    assert calls[2]["nameservers"] == "h:1"
    assert calls[2]["on_data_loss"] == "skip"
    assert calls[0].stopped
    (row,) = run_kappamq(*arguments, "-o", "json").json
    assert (row["messages"], row["files"], row["gaps"]) == (25, 2, ["messages 1 to 9 are gone"])
    assert row["queues"] == [
        {"topic": "tea", "broker": "broker-a", "queue": 2, "min_offset": 10, "max_offset": 35, "messages": 25}
    ]


def test_nothing_new(calls: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jobs, "archive", lambda *_, **__: jobs.Archived())
    assert "nothing new" in run_kappamq("pipeline", "archive", str(tmp_path), "--pattern", "t.*").out


def test_nothing_new_but_a_loss(calls: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jobs, "archive", lambda *_, **__: jobs.Archived(rounds=1, gaps=["messages 1 to 9 are gone"]))
    ran = run_kappamq("pipeline", "archive", str(tmp_path), "-t", "tea")
    assert ran.exit_code == 0
    assert "messages 1 to 9 are gone" in ran.err
    assert "everything" not in ran.out


def test_a_broker_that_is_away_is_named(calls: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    away = [MessageQueue("tea", "broker-b", 0), MessageQueue("tea", "broker-b", 1)]
    monkeypatch.setattr(jobs, "archive", lambda *_, **__: jobs.Archived(away=away))
    ran = run_kappamq("pipeline", "archive", str(tmp_path), "-t", "tea")
    assert ran.exit_code == 4
    assert "2 queues of broker-b could not be read" in ran.err
    assert "everything" not in ran.out
    ran = run_kappamq("pipeline", "archive", str(tmp_path), "-t", "tea", "-o", "json")
    assert ran.exit_code == 4
    assert ran.json[0]["away"] == [{"topic": "tea", "broker": "broker-b", "queue": number} for number in (0, 1)]


def test_an_interrupted_job_may_be_run_again(calls: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def archive(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "archive", archive)
    ran = run_kappamq("pipeline", "archive", str(tmp_path), "-t", "tea")
    assert ran.exit_code == 130
    assert ran.err.splitlines()[1].startswith("interrupted: run the same command again")
    assert "Traceback" not in ran.err


def test_spark_is_stopped_when_a_job_fails(calls: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise SendTimeout("no answer from 127.0.0.1:1")

    monkeypatch.setattr(jobs, "archive", fail)
    ran = run_kappamq("pipeline", "archive", str(tmp_path), "-t", "tea", "-o", "json")
    assert (ran.exit_code, ran.problem["error"]) == (4, "no answer from 127.0.0.1:1")
    assert calls[0].stopped


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give --topic (one or more) or --pattern"),
        (["-t", "tea", "--pattern", "x"], "give --topic (one or more) or --pattern"),
        (["-t", "tea", "--conf", "x"], "write it as name=value"),
    ],
)
def test_wrong_arguments(calls: list[Any], arguments: list[str], told: str, tmp_path: Path) -> None:
    ran = run_kappamq("pipeline", "archive", str(tmp_path), *arguments, "-o", "json")
    assert ran.exit_code == 2
    assert told in ran.problem["error"]


def test_no_spark_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda _: None)
    ran = run_kappamq("pipeline", "archive", str(tmp_path), "-t", "tea")
    assert ran.exit_code == 3
    assert "pip install '.[spark]' in a clone" in ran.err.replace("\n", " ")
    assert pipeline.app.registered_commands


# --- rebuild ---


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with opened(config(tmp_path / "data")) as store:
        writer = Writer(store)
        for number in range(20):
            writer.send(b"%d" % number)
        writer.write()
    return tmp_path / "data"


def test_rebuild_says_what_it_did(calls: list[Any], monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    done = jobs.Rebuilt(
        root=data, log_end=4096, records=25, queues=2, queue_entries=24, index_files=1, index_entries=30, damage=[(100, 200)],
        deleted_topics=["gone"], kept_queues=[("old", 3)], left_out=["a/b"], seconds=1.25, cpu_seconds=0.5,
    )  # fmt: skip

    def rebuild(spark: Any, root: Path, **given: Any) -> Any:
        calls.append((root, given))
        given["progress"](4096, 4096)
        return done

    monkeypatch.setattr(jobs, "rebuild", rebuild)
    arguments = [
        "pipeline",
        "rebuild",
        str(data),
        "--skip-damage",
        "--set",
        "maxIndexNum=4000",
        "--set",
        "messageDelayLevel=1s 7s",
    ]
    told = run_kappamq(*arguments, "--master", "local[1]")
    assert told.exit_code == 0, told
    assert (
        "25 records (4.0 KiB of log): 24 entries in 2 queues, 30 entries in 1 index file, in 1.2 s"
        in told.out.replace("\n", " ")
    )
    for text in (
        "bytes 100 to 200 of the log",
        "'a/b'",
        "1 queue without messages in the log",
        "1 topic left out: deleted",
    ):
        assert text in told.err.replace("\n", " ")
    assert calls[1] == ("local[1]", "kappamq rebuild", {})
    root, given = calls[2]
    assert root == data
    assert (given["skip_damage"], given["keys"], given["delays_ms"]) == (True, True, (1000, 7000))
    assert (given["sizes"].index_entries, given["sizes"].queue_file_entries) == (4000, 300_000)
    (row,) = run_kappamq(*arguments, "-o", "json").json
    assert (row["records"], row["queue_entries"], row["cpu_seconds"]) == (25, 24, 0.5)
    assert row["damage"] == [{"log_min_offset": 100, "log_max_offset": 200}]
    assert row["kept_queues"] == [{"topic": "old", "queue": 3}]
    document = (Path(__file__).parents[2] / "docs" / "CLI.md").read_text()
    assert all(f"`{key}`" in document for key in row)


def test_rebuild_refuses_before_it_starts_spark(calls: list[Any], data: Path, tmp_path: Path) -> None:
    with StoreLock(data):
        ran = run_kappamq("pipeline", "rebuild", str(data), "-o", "json")
    assert ran.exit_code == 7
    assert f"is in use by process {os.getpid()}: stop the broker first" in ran.problem["error"]
    ran = run_kappamq("pipeline", "rebuild", str(tmp_path / "none"), "-o", "json")
    assert ran.exit_code == 7
    assert "is not a data directory" in ran.problem["error"]
    assert len(calls) == 1, "no session was asked for"


def test_archive_refuses_before_it_starts_spark(
    cluster: Any, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def session(*_: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(engine, "session", session)
    run_kappamq("topic", "create", topic, "-n", cluster.nameserver)
    (tmp_path / "file").touch()
    target = str(tmp_path / "archive")
    for arguments, code, told in (
        ([target, "-t", topic + "x"], 5, f"topic '{topic}x' does not exist (did you mean {topic}?)"),
        ([target, "-t", topic, "-t", "nosuchtopic"], 5, "topic 'nosuchtopic' does not exist"),
        ([target, "-t", topic, "-n", "127.0.0.1:1"], 4, "127.0.0.1:1"),
        ([str(tmp_path / "file" / "archive"), "-t", topic], 7, "is a file"),
        ([target, "-t", topic, "--staging", target], 7, "is inside the archive"),
    ):
        ran = run_kappamq("pipeline", "archive", "-n", cluster.nameserver, *arguments, "-o", "json")
        connection.close_all()
        assert (ran.exit_code, told in ran.problem["error"]) == (code, True), ran
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing was made"


# --- audit ---


@pytest.fixture
def audited(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> jobs.Audited:
    """What the next audit will say."""
    report = a_report()

    def audit(spark: Any, store: Path, target: Path, **given: Any) -> jobs.Audited:
        calls.append((store, target, given))
        given["progress"]("reading the log", 0, 8)
        return report

    monkeypatch.setattr(jobs, "audit", audit)
    return report


def test_an_audit_that_found_something(calls: list[Any], audited: jobs.Audited, data: Path, tmp_path: Path) -> None:
    arguments = [
        "pipeline",
        "audit",
        str(tmp_path / "report"),
        "--data",
        str(data),
        "-t",
        "t",
        "--late",
        "2.5",
    ]
    told = run_kappamq(*arguments, "--tolerance", "0.5", "--top", "7")
    assert told.exit_code == 8, told
    out = " ".join(told.out.split())
    assert "lost missing fault 1 42 orders/3, offset 1000, log offset 1234567890" in out
    assert "late stored note 25 25" in out
    assert "split-key" not in out
    assert "1200000 messages (3.0 GiB)" in out
    assert "42 lost, 1 duplicated, 0 reordered, 25 late" in out
    assert "one thing was not looked at" in told.err
    assert "report/index.html" in told.err.replace("\n", "")
    store, target, given = calls[2]
    assert (store, target) == (data, tmp_path / "report")
    assert (given["topics"], given["late_ms"], given["tolerance_ms"], given["top"]) == (["t"], 2500, 500, 7)
    assert calls[0].stopped
    told = run_kappamq(*arguments, "-o", "json")
    assert told.exit_code == 8
    (row,) = told.json
    assert (row["ok"], row["lost"], row["report"]) == (False, 42, str(tmp_path / "report"))
    assert row["rules"][0]["example"]["offset"] == 1000
    assert {rule["rule"]: rule["findings"] for rule in row["rules"]}["id"] == 1


def test_an_audit_that_found_nothing(calls: list[Any], audited: jobs.Audited, data: Path, tmp_path: Path) -> None:
    audited.found = type(audited.found)()
    told = run_kappamq("pipeline", "audit", str(tmp_path / "report"), "--data", str(data))
    assert told.exit_code == 0, told
    assert "0 lost, 0 duplicated, 0 reordered, 0 late" in told.out.replace("\n", " ")


def test_topics_of_an_audit_are_named_one_way(
    calls: list[Any], audited: jobs.Audited, data: Path, tmp_path: Path
) -> None:
    ran = run_kappamq("pipeline", "audit", str(tmp_path / "report"), "-t", "tea", "--pattern", "x", "-o", "json")
    assert ran.exit_code == 2
    assert "give --topic (one or more) or --pattern" in ran.problem["error"]


def test_an_audit_refuses_before_it_starts_spark(
    calls: list[Any], audited: jobs.Audited, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").touch()
    report = str(tmp_path / "report")
    monkeypatch.setenv("KAPPAMQ_HOME", str(tmp_path / "home"))
    for arguments, code, told in (
        ([report, "--data", str(data), "-t", "tx"], 5, f"topic 'tx' does not exist in {data} (did you mean t?)"),
        ([report, "--data", str(data), "-t", "t", "-t", "nosuchtopic"], 5, "topic 'nosuchtopic' does not exist"),
        ([report, "--data", str(tmp_path)], 7, "is not a data directory: no commitlog folder found"),
        ([report], 7, "This path is given by $KAPPAMQ_HOME"),
        ([str(tmp_path / "other"), "--data", str(data)], 3, "contains files that are not an audit report"),
    ):
        ran = run_kappamq("pipeline", "audit", *arguments, "-o", "json")
        assert (ran.exit_code, told in ran.problem["error"]) == (code, True), ran
    assert len(calls) == 1, "no session was asked for"
    monkeypatch.delenv("KAPPAMQ_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    ran = run_kappamq("pipeline", "audit", report, "-o", "json")
    assert "the default, since neither --data" in ran.problem["error"]


def test_an_audit_of_no_messages_is_no_good_news(
    calls: list[Any], audited: jobs.Audited, data: Path, tmp_path: Path
) -> None:
    audited.found, audited.messages, audited.only_pattern = type(audited.found)(), 0, "x.*"
    told = run_kappamq("pipeline", "audit", str(tmp_path / "report"), "--data", str(data), "--pattern", "x.*")
    assert told.exit_code == 0
    assert "warning: there were no messages to audit" in told.err
    assert "(only topics that match x.*)" in told.out.replace("\n", " ")
