from __future__ import annotations

import logging

import pytest

from kappamq import native
from kappamq.client.core import speed
from kappamq.native import pure


def test_a_client_without_the_compiled_kernel_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(speed, "_said", set())
    monkeypatch.setattr(native, "load", lambda: pure)
    caplog.set_level(logging.WARNING)
    speed.tell()
    speed.tell()
    assert caplog.text.count("without the compiled kernel") == 1


def test_one_with_it_says_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    if native.load().NAME == "twin":
        pytest.skip("no compiled kernel here")
    monkeypatch.setattr(speed, "_said", set())
    speed.tell()
    assert not caplog.records
