"""Rules for all tests: needs of the machine are checked and counted (tests/needs.py); hypothesis races no clock."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from kappamq.testing.plugin import kappamq_broker as kappamq_broker  # also before this tree is installed
from tests.needs import PREFIX, in_ci, missing

# Two shared cores: a deadline would test the neighbours. `print_blob` lets a failure be replayed from the log.
settings.register_profile(
    "kappamq", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("kappamq")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for need in mark.args:
            text = missing(need)
            if text is None:
                continue
            if in_ci():
                pytest.fail(f"{PREFIX}{text} (CI=true: nothing may be skipped)", pytrace=False)
            pytest.skip(f"{PREFIX}{text}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if PREFIX in text:
            reasons[text.split(PREFIX, 1)[1]] += 1
    if not reasons:
        return
    terminalreporter.section("NOT TESTED", sep="!", red=True, bold=True)
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} test(s) skipped, {PREFIX}{reason}", red=True)
    terminalreporter.write_line(f"{sum(reasons.values())} in all. With CI=true these would be failures.", red=True)
