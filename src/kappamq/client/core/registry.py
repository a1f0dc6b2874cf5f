"""The clients of this process by the name server they use, so that a broker in the same process can find them.

Only the testing kit uses it: it gives its clock to every client that connects to its address, whoever created it, and
finds out here which of them have pending work.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING
from weakref import WeakSet

from kappamq.clock import Clock

if TYPE_CHECKING:
    from kappamq.client.core.core import ClientCore

_lock = threading.Lock()  # clients may be on the loops of different threads
_cores: WeakSet[ClientCore] = WeakSet()
_clocks: dict[str, Clock] = {}


def add(core: ClientCore) -> None:
    with _lock:
        _cores.add(core)


def remove(core: ClientCore) -> None:
    with _lock:
        _cores.discard(core)


def everywhere() -> list[ClientCore]:
    with _lock:
        return list(_cores)


def running(nameservers: Collection[str]) -> list[ClientCore]:
    """Return the clients that use one of these name servers and whose event loop runs."""
    return [
        core
        for core in everywhere()
        if core.loop.is_running() and not set(nameservers).isdisjoint(core.config.nameservers)
    ]


def lives_on(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether any client lives on this loop."""
    with _lock:
        return any(core.loop is loop for core in _cores)


def lend_clock(nameservers: Iterable[str], clock: Clock) -> None:
    """Give this clock to clients that are created from now on and have no clock of their own."""
    with _lock:
        _clocks.update(dict.fromkeys(nameservers, clock))


def withdraw_clock(nameservers: Iterable[str]) -> None:
    with _lock:
        for nameserver in nameservers:
            _clocks.pop(nameserver, None)


def lent_clock(nameservers: Iterable[str]) -> Clock | None:
    with _lock:
        return next((_clocks[nameserver] for nameserver in nameservers if nameserver in _clocks), None)
