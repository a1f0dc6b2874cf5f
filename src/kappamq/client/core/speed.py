"""Logs once per process that the compiled kernel is missing: everything works without it, but takes several times the CPU."""

from __future__ import annotations

import logging

from kappamq import native

log = logging.getLogger(__name__)

_said: set[str] = set()


def tell() -> None:
    kind = native.load().NAME
    if kind == "twin" and kind not in _said:
        _said.add(kind)
        log.warning(
            "this client runs without the compiled kernel: everything works, with several times the CPU per message. Install a C "
            "compiler, and kappamq again; `kappamq doctor` says what is missing"
        )
