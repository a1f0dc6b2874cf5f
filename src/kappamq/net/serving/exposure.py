"""Warns when other machines can reach a server: without authentication, anyone who can connect can read, change and delete everything."""

from __future__ import annotations

import logging
from typing import Final

from kappamq.protocol import address

log = logging.getLogger(__name__)

EVERYWHERE: Final = ("", "0.0.0.0", "::")
ADVICE: Final = "protect its ports with a firewall, or start it with --listen 127.0.0.1"


def exposure(host: str) -> str | None:
    """Return a warning about a server that listens on `host`; None if only this machine can reach it."""
    if address.is_loopback(host):
        return None
    where = "all addresses of its machine" if host in EVERYWHERE else host
    return f"it listens on {where} without authentication: anyone who can connect can read, write and delete"


def warn_if_exposed(who: str, host: str) -> None:
    """Log the warning; called at every start."""
    said = exposure(host)
    if said is not None:
        log.warning("%s: %s; %s", who, said, ADVICE)
