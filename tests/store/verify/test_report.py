from __future__ import annotations

from pathlib import Path

from kappamq.store.verify.report import Kind, Problem, Report


def test_all_are_counted_and_the_first_kept() -> None:
    report = Report(Path("/data"), problems_max=2)
    assert report.ok
    for number in range(5):
        report.add(Kind.QUEUE, "t/0", number, "wrong")
    assert not report.ok
    assert report.problem_count == 5
    assert report.problems == [Problem(Kind.QUEUE, "t/0", 0, "wrong"), Problem(Kind.QUEUE, "t/0", 1, "wrong")]
    assert str(report.problems[1]) == "queue t/0 at 1: wrong"
