"""The master of a broker group: one at a time, and none that a later election has replaced.

A master registers with id 0 and the number of its election, the *term*, as the state version of its topics; without elections that
is always 0. A higher term replaces a lower one at once. A lower one is refused, also some minutes after the last master has
gone: a master that was cut off and comes back must not collect messages while its successor is being restarted.

Of two masters of the same term one is a mistake of configuration. If the registered one sends beats it is certainly alive, and the
other is refused. Apache's brokers usually send none: their registration may be two minutes old, and a broker that was
started again elsewhere has to take its place. So there the last one wins, with a warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kappamq.errors import BrokerError

REMEMBERED_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Holder:
    """The registered broker whose place another one claims."""

    address: str
    version: int
    beats: bool


@dataclass(frozen=True, slots=True)
class _Master:
    address: str
    version: int
    until: float  # liveness time


class Masters:
    """The last master of each group that holds elections. `now` is liveness time, in seconds."""

    def __init__(self, groups_max: int) -> None:
        self._groups_max = groups_max
        self._last: dict[str, _Master] = {}  # those that registered longest ago first

    def check(self, name: str, address: str, version: int, holder: Holder | None, now: float) -> None:
        """Raise BrokerError if `address` may not become the master of the group `name`. `holder`: the master at another address."""
        if holder is not None and holder.version > version:
            raise BrokerError(_outdated(name, address, version, holder.address, holder.version, "is"))
        if holder is not None and holder.version == version and holder.beats:
            raise BrokerError(
                f"register broker failed: {name} has a master already: {holder.address} is registered with id 0 and state version "
                f"{version}, and alive. {address} must have a name of its own (--name, brokerName), another id, or wait until that "
                "one is stopped"
            )
        last = self._last.get(name)
        if last is not None and last.version > version and last.address != address and last.until > now:
            raise BrokerError(_outdated(name, address, version, last.address, last.version, "was until recently"))

    def registered(self, name: str, address: str, version: int, now: float) -> None:
        """Record that `address` is the master."""
        self._last.pop(name, None)
        if version:
            self._last[name] = _Master(address, version, now + REMEMBERED_S)
        while self._last:
            oldest = next(iter(self._last))
            if self._last[oldest].until > now and len(self._last) <= self._groups_max:
                break
            del self._last[oldest]


def _outdated(name: str, address: str, version: int, other: str, newer: int, tense: str) -> str:
    return (
        f"register broker failed: {address} is not the master of {name} any more: {other} {tense} the master with state version "
        f"{newer}, this one claims {version}. It must follow that one, as a slave"
    )
