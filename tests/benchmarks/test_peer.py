"""`make peer` at toy size: both brokers, one load of RocketMQ's own, figures for both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.peer.__main__ import main
from tests.needs import needs

pytestmark = [needs("maven", "java", "cores:2", "disk:30G"), pytest.mark.slow, pytest.mark.timeout(300)]


def test_compares(tmp_path: Path) -> None:
    written = tmp_path / "out.json"
    arguments = ["--runs", "1", "--seconds", "1", "--warmup", "1", "--only", "send 128", "--disk", str(tmp_path)]
    assert main([*arguments, "--json", str(written)]) == 0
    figures = {figure["what"]: figure["value"] for figure in json.loads(written.read_text())["figures"]}
    assert figures["KappaMQ, rate"] > 0
    assert figures["Apache 5.3.3, rate"] > 0
    assert {"rate, ratio", "broker CPU, ratio", "RssAnon, ratio"} <= figures.keys()
