"""The compiled kernel makes the columns where there is one, numpy where there is none."""

from __future__ import annotations

import sys

import pytest

from kappamq.spark.columns import numpy_columns, record_columns
from tests.native.conftest import load_kernel


def test_the_compiled_kernel_goes_first() -> None:
    assert record_columns.load() is load_kernel("native")


def test_numpy_where_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("kappamq.native._kernel", raising=False)
    monkeypatch.setitem(sys.modules, "kappamq.native._kernel", None)  # as if it could not be imported
    assert record_columns.load() is numpy_columns
