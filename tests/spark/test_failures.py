"""Our sentence, out of what Spark makes of it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kappamq.errors import ConfigError, KappaError, StoreDamaged
from kappamq.spark import failures

PLANNING = """[PYTHON_DATA_SOURCE_ERROR] Failed to plan Python data source read kappamq: Traceback (most recent call last):
  File "/x/pyspark/sql/worker/utils.py", line 95, in worker_run
    main(infile, outfile)
  File "/x/kappamq/spark/topic/topics.py", line 47, in bounds
    raise ConfigError(f"there is no topic")
kappamq.errors.ConfigError: topic 'order' does not exist (did you mean orders?): kappamq.errors is no topic
 SQLSTATE: 38000
"""
IN_A_TASK = """An error occurred while calling o70.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 2.0 failed 2 times: \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "x.py", line 1, in read
kappamq.errors.StoreDamaged: orders: the broker ended its answers at 3,
message 5 was expected

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
"""
HIDDEN = "[PYTHON_DATA_SOURCE_ERROR] Failed to initialize: kappamq.errors.ConfigError: the option topic is empty SQLSTATE: 38000"


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        (PLANNING, ConfigError, "topic 'order' does not exist (did you mean orders?): kappamq.errors is no topic"),
        (IN_A_TASK, StoreDamaged, "orders: the broker ended its answers at 3,\nmessage 5 was expected"),
        (HIDDEN, ConfigError, "the option topic is empty"),
        ("kappamq.errors.Unheard: new", KappaError, "new"),
    ],
)
def test_our_error_is_found(text: str, kind: type[KappaError], told: str) -> None:
    found = failures.our_error(RuntimeError(text))
    assert type(found) is kind
    assert str(found) == told


def test_it_may_be_the_cause() -> None:
    failure = RuntimeError("Spark says")
    failure.__cause__ = StoreDamaged("a hole")
    assert str(failures.our_error(failure)) == "a hole"


def test_other_errors_are_not_ours() -> None:
    assert failures.our_error(ValueError("[PATH_NOT_FOUND] no such path\n\tat org.apache.Foo")) is None
    assert failures.sentence(ValueError("no such path\n\tat org.apache.Foo\n\tat y")) == "no such path"
    assert failures.sentence(ValueError("it failed\n=== Streaming Query ===\nIdentifier")) == "it failed"
    assert failures.sentence(ValueError()) == "ValueError"


@failures.without_traceback
class Reader:
    def partitions(self) -> None:
        raise ConfigError("wrong")

    def read(self) -> Iterator[int]:
        yield 1
        raise ConfigError("wrong")

    def commit(self) -> None:
        raise ValueError("a bug")


@pytest.mark.parametrize("inside", [True, False])
def test_tracebacks_are_hidden_in_sparks_processes_only(monkeypatch: pytest.MonkeyPatch, inside: bool) -> None:
    monkeypatch.setattr(failures, "in_spark_process", lambda: inside)
    for call in (Reader().partitions, lambda: list(Reader().read())):
        monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
        with pytest.raises(ConfigError):
            call()
        assert ("SPARK_HIDE_TRACEBACK" in os.environ) is inside
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    with pytest.raises(ValueError, match="a bug"):
        Reader().commit()
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


def test_a_program_is_no_process_of_spark() -> None:
    assert not failures.in_spark_process()
