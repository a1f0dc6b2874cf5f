"""load(): the compiled kernel where there is one, the twin by name or for want of it, and the same interface from both."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from kappamq.native import load, pure
from kappamq.native.layout import SegmentFull
from tests.native.conftest import SETTINGS


def test_kinds(native: ModuleType) -> None:
    assert load("twin") is pure
    assert pure.NAME == "twin"
    assert load("native") is native
    assert native.NAME == "native"
    assert load() is native
    with pytest.raises(ValueError, match="'auto', 'native' or 'twin'"):
        load("fast")


def test_without_the_compiled_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    import kappamq.native as package

    monkeypatch.delattr(package, "_kernel", raising=False)
    monkeypatch.setitem(sys.modules, "kappamq.native._kernel", None)
    assert load() is pure
    with pytest.raises(ImportError):
        load("native")


def test_same_interface(native: ModuleType) -> None:
    for name in pure.__all__:
        assert hasattr(native, name), name
    assert native.SegmentFull is pure.SegmentFull is SegmentFull
    for theirs, ours in ((native.Kernel, pure.Kernel), (native.Flusher, pure.Flusher)):
        public = {name for name in dir(theirs) if not name.startswith("_")}
        made = dir(ours(**SETTINGS)) if ours is pure.Kernel else dir(ours)
        assert public <= set(made), public - set(made)
        inner = {"topics", "topic", "queue", "select", "collect"}  # the twin's own insides
        assert {name for name in made if not name.startswith("_")} - inner <= public
