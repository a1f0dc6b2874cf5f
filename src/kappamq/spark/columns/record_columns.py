"""Chooses the implementation that turns stored records into columns: the compiled kernel, or numpy without one.

Without a kernel numpy takes a fraction of the time of the pure-Python twin, which defines the semantics of both. For a single
record the twin is faster: use `native.load()` for that.
"""

from __future__ import annotations

from types import ModuleType

from kappamq import native
from kappamq.spark.columns import numpy_columns


def load() -> ModuleType:
    """A module with the functions `locate` and `columns`, as `native/pure_columns.py` describes them."""
    try:
        return native.load("native")
    except ImportError:
        return numpy_columns
