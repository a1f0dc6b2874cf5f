"""`kappamq pipeline init` and `run`: their words. What they do is tested with the pipelines; the last test runs the whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kappamq import Message
from kappamq.cli.pipeline_project import show_batch, use
from kappamq.cli.shared.cluster import Cluster
from kappamq.cli.shared.output import Format, Output
from kappamq.spark.pipelines.progress import Batch
from kappamq.testing import BrokerKit
from tests.cli.conftest import run_kappamq
from tests.waiting import eventually

pytest.importorskip("pyspark")


def test_init(tmp_path: Path) -> None:
    ran = run_kappamq("pipeline", "init", str(tmp_path / "shop"), "--topic", "tea")
    assert "kappamq topic create tea && kappamq topic create tea_checked &&" in " ".join(ran.err.split())
    assert [line for line in ran.out.splitlines() if line] == sorted(line for line in ran.out.splitlines() if line)
    assert ran.exit_code == 0
    assert "shop/transformations/bronze.py" in ran.out.splitlines()
    assert "kappamq pipeline run" in ran.err
    ran = run_kappamq("pipeline", "init", str(tmp_path / "shop"), "-o", "json")
    assert ran.exit_code == 3
    assert "not an empty directory" in ran.problem["error"]
    (told,) = run_kappamq("pipeline", "init", str(tmp_path / "other"), "-o", "json").json
    assert told["project"] == str(tmp_path / "other")
    assert "spark-pipeline.yml" in told["files"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "--follow", "--full-refresh"], 2, "cannot be combined"),
        (["run", "--conf", "x"], 2, "name=value"),
        (["run", "--trigger", "0"], 2, "--trigger"),
        (["run", "/nowhere"], 3, "is not a pipeline project"),
        (["init", "shop", "--topic", "no/topic"], 2, "not allowed"),
        (["init", "9"], 2, "NAME: the name '9' must be a letter"),
        (["init", "a b"], 2, "NAME: the name 'a b' must be a letter"),
    ],
)
def test_what_is_wrong_is_told_before_spark(arguments: list[str], code: int, said: str) -> None:
    ran = run_kappamq("pipeline", *arguments, "-o", "json")
    assert ran.exit_code == code
    assert said in ran.problem["error"]


def test_batches(capsys: pytest.CaptureFixture[str]) -> None:
    show_batch(Output(), Batch("bronze", 3, 1200, 4800.4, 250, 7, 2400))
    show_batch(Output(), Batch("silver", 0, 1, 2.0, 500, None, 1))
    show_batch(Output(), Batch("silver", 1, 0, 0.0, 5, None, 1))
    show_batch(Output(), Batch("quarantine", 0, 201, 8.0, 2500, None, 201, 1))
    show_batch(Output(Format.JSON), Batch("silver", 0, 1, 2.0, 500, None, 1))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "bronze: batch 3, 1200 rows in 250 ms, 4,800 rows/s, lag 7"
    assert lines[1] == "silver: batch 0, 1 row in 500 ms, 2 rows/s"
    assert lines[2] == "quarantine: batch 0, 201 rows, 1 written, in 2500 ms, 8 rows/s"
    assert json.loads(lines[3]) == {
        "dataset": "silver", "batch": 0, "rows": 1, "rows_per_s": 2.0, "batch_ms": 500, "lag": None, "total_rows": 1, "written": None
    }  # fmt: skip
    assert len(lines) == 4


def test_the_cluster_is_handed_on_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAPPAMQ_NAMESERVER", "KAPPAMQ_TLS", "KAPPAMQ_TLS_CA", "KAPPAMQ_TLS_NO_VERIFY"):
        monkeypatch.setenv(name, "before")
    use(Cluster("h:1", tls=True, tls_trust=Path("/ca.pem")))
    assert os.environ["KAPPAMQ_NAMESERVER"] == "h:1"
    assert (os.environ["KAPPAMQ_TLS"], os.environ["KAPPAMQ_TLS_CA"]) == ("true", "/ca.pem")
    use(Cluster("h:2"))
    assert os.environ["KAPPAMQ_TLS"] == "false"
    assert "KAPPAMQ_TLS_CA" not in os.environ


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerKit]:
    with BrokerKit(data=tmp_path / "broker") as kit, kit.admin() as admin:
        for topic in ("orders", "orders_checked", "orders_quarantine"):
            admin.create_topic(topic, queues=2)
        yield kit


def send(broker: BrokerKit, *bodies: str) -> None:
    with broker.producer() as producer:
        producer.send_batch(
            [Message("orders", body.encode()) for body in bodies], queue=sorted(producer.queues("orders"))[0]
        )


def order(name: str) -> str:
    return json.dumps({"id": name, "item": "tea", "quantity": 2, "cents": 100})


def command(broker: BrokerKit, folder: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kappamq", "pipeline", "run", str(folder), "--master", "local[2]", "-o", "json", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,  # noqa: PLW1509
        env={**os.environ, "KAPPAMQ_NAMESERVER": broker.nameserver, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, list[dict[str, Any]], str]:
    out, err = process.communicate(timeout=400)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def of_group(group: int) -> list[str]:
    """The commands of the processes of a group."""
    listed = subprocess.run(["ps", "-e", "-o", "pgid=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.split()[0] == str(group)]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1500)
def test_once_then_resident_then_a_row_that_fails(broker: BrokerKit, tmp_path: Path) -> None:
    run_kappamq("pipeline", "init", str(tmp_path / "shop"))
    send(broker, order("a1"), "nonsense", order("a2"))
    code, told, err = ended(command(broker, tmp_path / "shop"))
    assert code == 0, err
    assert told[-1]["rows"] == {"bronze": 3, "silver": 3, "quarantine": 3, "checked": 2}
    assert next(line for line in told if line.get("dataset") == "bronze")["lag"] == 0
    assert (len(broker.bodies("orders_checked")), broker.bodies("orders_quarantine")) == (2, [b"nonsense"])

    # Resident, from the same checkpoints; Ctrl-C leaves nothing behind.
    process = command(broker, tmp_path / "shop", "--follow")
    try:
        send(broker, order("a3"))
        eventually(lambda: len(broker.bodies("orders_checked")) >= 3 or process.poll() is not None, timeout=300)
        process.send_signal(signal.SIGINT)
        code, told, err = ended(process)
    finally:
        process.kill()
    assert code == 0, err
    assert "Traceback" not in err
    assert "\tat " not in err
    # A batch is told when Spark has committed it: of those that the end has interrupted the messages may be there already.
    rows = {line["dataset"]: line["rows"] for line in told if line["rows"]}
    assert rows.items() <= {"bronze": 1, "silver": 1, "quarantine": 1, "checked": 1}.items()
    assert {"bronze", "silver"} <= rows.keys()
    assert len(broker.bodies("orders_checked")) == 3
    eventually(lambda: not of_group(process.pid), timeout=30)

    silver = tmp_path / "shop" / "transformations" / "silver.py"
    silver.write_text(
        silver.read_text().replace(
            'readStream.table("bronze"))\n', 'readStream.table("bronze")).where("int(substr(id, 2)) > 0")\n', 1
        )
    )
    send(broker, order("a4"), order("ax"), order("a5"))
    code, _told, err = ended(command(broker, tmp_path / "shop"))
    assert code == 1, err
    problem = json.loads(err.splitlines()[-1])
    assert problem["error"].startswith("dataset silver: the row of topic orders, broker ")
    assert "queue 0, offset 5: [CAST_INVALID_INPUT]" in problem["error"]
    assert "\tat " not in err
    assert len(broker.bodies("orders_checked")) == 3
