"""Rules for all tests: needs of the machine are checked and counted (tests/needs.py); hypothesis races no clock; nothing
hangs (tests/time_limit.py); who opens a client closes it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

from kappamq.client.core import registry
from kappamq.testing.plugin import kappamq_broker as kappamq_broker  # also before this tree is installed
from tests.needs import PREFIX, in_ci, missing

pytest_plugins = ["tests.time_limit", "tests.dialogue"]

# Two shared cores: a deadline would test the neighbours. `print_blob` lets a failure be replayed from the log.
settings.register_profile(
    "kappamq", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("kappamq")

# A shell without job control starts what it puts behind `&` with SIGINT ignored (`nohup make test &` in a script). Python leaves it so,
# children inherit it, and a test that sends Ctrl-C to one would wait for nothing. A handler is not inherited: children begin with the
# default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Of every JVM that a test starts through Spark: it lives for seconds, and compiling everything twice would take longer than it saves.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_report_header() -> str | None:
    if find_spec("pyspark") is None:
        return "NOT TESTED: tests/spark and what else needs Spark, for pyspark is not installed (make setup brings it)"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a Spark session come first, the others keep their random order behind them.

    With `--dist worksteal` the first worker then runs all of them, with one JVM, while the others take the rest of its tests."""
    items.sort(key=lambda item: "spark" not in getattr(item, "fixturenames", ()))


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


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Without what event loops say of themselves: on a busy machine any loop may be slow, that of a shared broker too."""

    def is_wanted(record: logging.LogRecord) -> bool:
        return record.name != "kappamq.net.requests.loop_watch"

    caplog.handler.addFilter(is_wanted)  # one handler serves all tests
    yield caplog
    caplog.handler.removeFilter(is_wanted)


@pytest.fixture(autouse=True, scope="module")
def no_client_is_left_open() -> Iterator[None]:
    """A client that lives on would complain of its dead broker in the logs of later tests.

    Per module, for a client that a module shares connects when its first test uses it."""
    before = set(registry.everywhere())
    yield
    left = [core for core in registry.everywhere() if core not in before and core.loop.is_running()]
    for core in left:
        asyncio.run_coroutine_threadsafe(core.close(), core.loop).result(30)
    assert not left, f"{len(left)} client(s) were not closed: {[core.client_id for core in left]}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seed = terminalreporter.config.getoption("randomly_seed", None)
    if isinstance(seed, int):
        terminalreporter.write_line(f"This order again: --randomly-seed={seed}")
    _show_what_was_not_tested(terminalreporter)


def _show_what_was_not_tested(terminalreporter: pytest.TerminalReporter) -> None:
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
