"""The package's front door: lazy, complete, and cheap."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kappamq


def test_names_are_loaded_when_used() -> None:
    from kappamq.message import Message

    assert kappamq.Message is Message
    assert kappamq.errors.KappaError is kappamq.KappaError  # type: ignore[attr-defined]


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="teapot"):
        kappamq.teapot  # noqa: B018


@pytest.mark.parametrize("name", kappamq.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(kappamq, name) is not None
    assert name in dir(kappamq)


def test_import_brings_nothing_heavy() -> None:
    program = "import sys, kappamq; print([m for m in ('asyncio', 'uvloop', 'typer', 'msgspec') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"
