"""What is said of a failure, from texts that Spark 4.3 gave."""

from __future__ import annotations

import pytest

from kappamq.cli.shared.exits import Exit, exit_for
from kappamq.errors import ConfigError, NoRoute, NoSuchTopic
from kappamq.spark.pipelines.failure import PipelineFailed, explained, failed_flow, is_about_data, short

CAST = (
    "[STREAM_FAILED] Query [id = d4, runId = ad] terminated with exception: [CAST_INVALID_INPUT] The value 'a0' of the type \"STRING\" "
    'cannot be cast to "INT" because it is malformed. SQLSTATE: 22018\n== SQL (line 1, position 1) ==\ncast(x as int)\n SQLSTATE: XXKST\n'
    "=== Streaming Query ===\nIdentifier: x\n\nJVM stacktrace:\norg.apache.spark\n\tat org.apache.spark"
)
OURS = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] Traceback (most recent call last):\n"
    "kappamq.errors.{kind}: {text} SQLSTATE: 38000\n\tat org.apache.spark"
)
UDF = (
    "terminated with exception: Job aborted: org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
    '  File "x.py", line 3, in f\n    return 1 / n\nZeroDivisionError: division by zero\n\n\tat org.apache'
)


def test_the_sentence_is_without_java() -> None:
    assert short(CAST) == (
        '[CAST_INVALID_INPUT] The value \'a0\' of the type "STRING" cannot be cast to "INT" because it is malformed.'
    )
    assert short(UDF) == "ZeroDivisionError: division by zero"
    assert short("\n\tat org.apache") == "it failed without an explanation"


def test_the_flow_is_found_in_events() -> None:
    assert failed_flow("Flow 'spark_catalog.default.bad' has FAILED more than 0 times and will not be restarted.") == (
        "spark_catalog.default.bad"
    )
    assert failed_flow("Flow spark_catalog.default.gold has FAILED.\nError: x") == "spark_catalog.default.gold"
    assert failed_flow("Failed to resolve flow: 'spark_catalog.default.silver'.") == "spark_catalog.default.silver"
    assert failed_flow("Flow spark_catalog.default.bronze has COMPLETED.") is None


@pytest.mark.parametrize(
    ("text", "about"),
    [
        (CAST, True),
        (UDF, True),
        (
            OURS.format(
                kind="ConfigError", text="row 3 of this task cannot be a message: its body is empty. The row: {}"
            ),
            True,
        ),
        (OURS.format(kind="NoRoute", text="no broker"), False),
        ("[TABLE_OR_VIEW_NOT_FOUND] x SQLSTATE: 42P01", False),
    ],
)
def test_whether_a_row_may_be_at_fault(text: str, about: bool) -> None:
    assert is_about_data(text) is about


def test_our_errors_keep_their_class_and_exit_code() -> None:
    for kind, code in ((NoRoute, Exit.UNREACHABLE), (NoSuchTopic, Exit.NOT_FOUND), (ConfigError, Exit.CONFIG)):
        error = explained("bronze", OURS.format(kind=kind.__name__, text="what is wrong"))
        assert type(error) is kind
        assert str(error) == "dataset bronze: what is wrong"
        assert exit_for(error) is code


def test_a_row_at_fault_is_no_wrong_configuration() -> None:
    text = OURS.format(kind="ConfigError", text="row 3 of this task cannot be a message: its body is empty")
    for row in (None, "the row of topic t"):
        error = explained("checked", text, row)
        assert type(error) is PipelineFailed
        assert exit_for(error) is Exit.FAILED
        assert str(error).startswith(f"dataset checked: {row or 'row 3'}")
    assert str(explained(None, CAST)).startswith("[CAST_INVALID_INPUT]")
