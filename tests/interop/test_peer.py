"""`make peer` still works: one short run of one load. The figures of such a run mean nothing, their presence does."""

import json
from pathlib import Path

from benchmarks.peer.__main__ import main
from benchmarks.peer.brokers import APACHE, KAPPAMQ


def test_both_brokers_are_measured_under_the_same_load(tmp_path: Path) -> None:
    output = tmp_path / "peer.json"
    assert main(["--quick", "--only", "consume 128 B", "--disk", str(tmp_path), "--json", str(output)]) == 0
    figures = {figure["what"]: figure["value"] for figure in json.loads(output.read_text())["figures"]}
    for kind in (APACHE, KAPPAMQ):
        assert figures[f"{kind}, rate"] > 0
        assert figures[f"{kind}, broker CPU"] > 0
    assert figures["rate, ratio"] > 0
    assert figures["broker CPU, ratio"] > 0
    assert 0 < figures["RssAnon, ratio"] < 1
    assert list(tmp_path.iterdir()) == [output]  # it cleans up behind itself


def test_pairs_of_brokers_are_measured(tmp_path: Path) -> None:
    output = tmp_path / "peer.json"
    assert main(["--quick", "--only", "a synchronous slave", "--disk", str(tmp_path), "--json", str(output)]) == 0
    figures = {figure["what"]: figure["value"] for figure in json.loads(output.read_text())["figures"]}
    for kind in (APACHE, KAPPAMQ):
        assert figures[f"{kind}, CPU of both brokers"] > 0
    assert figures["CPU of both brokers, ratio"] > 0
    assert list(tmp_path.iterdir()) == [output]
