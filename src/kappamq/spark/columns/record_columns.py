"""Chooses the implementation that turns stored records into columns: the compiled kernel, or numpy without one.

Without a kernel numpy takes a fraction of the time of the pure-Python twin, which defines the semantics of both. For a single
record the twin is faster: use `native.load()` for that.
"""

from __future__ import annotations

from typing import cast

from kappamq import native
from kappamq.native.interface import ColumnsModule
from kappamq.spark.columns import numpy_columns


def load() -> ColumnsModule:
    """A module with the functions `locate` and `columns`, as `native/pure_columns.py` describes them."""
    try:
        return native.load("native")
    except ImportError:
        return cast(ColumnsModule, numpy_columns)
