from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import run_kappamq


def test_the_books_are_right_at_the_end(tmp_path: Path) -> None:
    arguments = [
        "shop",
        "--once",
        "--orders",
        "40",
        "--nameserver-port",
        "0",
        "--broker-port",
        "0",
        "--data",
        str(tmp_path),
    ]
    ran = run_kappamq(*arguments, "-o", "json")
    assert ran.exit_code == 0, ran
    (told,) = ran.json
    assert (told["sold"], told["shipping"], told["shipping_deliveries"]) == (40, 40, 40)
    assert told["billing"] == told["billing_deliveries"] == told["paid"] == 27
    assert told["found"] == told["looked_up"] == 40
    assert told["problems"] == []

    # Again in the same directory: the orders of the first day are not delivered or counted again.
    again = run_kappamq(*arguments)
    assert again.exit_code == 0, again
    assert "the check passed" in again.out


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_sums_up_the_orders_and_archives_them(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    command = [sys.executable, "-m", "kappamq", "shop", "--once", "--orders", "60", "--spark", "-o", "json"]
    command += ["--nameserver-port", "0", "--broker-port", "0", "--data", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["problems"] == []
    assert told["archived"] == sum(sale["orders"] for sale in told["sales"]) == 60
    assert sum(sale["cents"] for sale in told["sales"]) == sum(500 + n % 90 * 10 for n in range(60))
    assert {sale["what"] for sale in told["sales"]} == {"green tea", "black tea", "oolong", "tea pot", "strainer"}
    import pyarrow.dataset as datasets

    assert datasets.dataset(told["archive"], partitioning="hive").count_rows() == 60


def test_spark_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kappamq.spark import engine

    monkeypatch.setattr(engine, "find_spec", lambda _: None)
    ran = run_kappamq("shop", "--once", "--spark", "--data", str(tmp_path))
    assert ran.exit_code == 3
    assert "pip install '.[spark]' in a clone" in ran.err.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []
