"""What executors are asked; the answer of this process is known."""

from __future__ import annotations

import platform
import socket
from typing import TYPE_CHECKING

import pytest

from kappamq.spark import probe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_this_python_has_everything() -> None:
    (answer,) = probe.look(iter([]))
    assert answer[:3] == (socket.gethostname(), platform.python_version(), ())


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("msgspec", "kappamq.native._kernel") else real(name)
    )
    (answer,) = probe.look(iter([]))
    assert answer[2:] == (("msgspec",), False)


@pytest.mark.spark
def test_executors_answer(spark: SparkSession) -> None:
    (node,) = probe.ask(spark)
    assert node.missing == ()
    assert node.python == platform.python_version()
