"""Events of the parts of the broker. Those of the tables are in state/events.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kappamq.native.layout import Note
from kappamq.net.serving.connection import Connection
from kappamq.protocol.bodies.clients import SubscriptionData
from kappamq.store.log.clock_steps import ClockStep

if TYPE_CHECKING:
    from kappamq.broker.clients.registry import ConsumerGroup


@dataclass(frozen=True, slots=True)
class Resubscribed:
    """A group has changed its subscription to this topic."""

    group: ConsumerGroup
    topic: str


@dataclass(frozen=True, slots=True)
class ClockStepped:
    """The wall clock was set; message time follows it already, and the log has a record of it."""

    step: ClockStep


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A group's subscription to a topic is new or newer; None: it has unsubscribed."""

    group: str
    topic: str
    subscription: SubscriptionData | None


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """Consumers have joined or left a group, or its topics have changed: its members have to rebalance."""

    group: ConsumerGroup


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    connection: Connection


@dataclass(frozen=True, slots=True)
class KernelNoted:
    """The kernel has stored messages that are not for consumers yet, or ended transactions. Published before later requests are served."""

    notes: list[Note]


@dataclass(frozen=True, slots=True)
class Tick:
    """Ten times a second, as long as the broker runs."""


@dataclass(frozen=True, slots=True)
class LogFilePrepared:
    """The next log file was made, or there was no room for it."""


@dataclass(frozen=True, slots=True)
class SentBack:
    """A consumer could not process a message of this topic, and its group will get it again."""

    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class LogShortened:
    """The log has lost its beginning, and queues and index have followed."""

    log_min: int


@dataclass(frozen=True, slots=True)
class MasterFound:
    """A name server has told this slave where the master of its group is, and that is new.

    `version`: the term in which it became the master; None if the name server does not know terms (Apache's)."""

    address: str
    ha_address: str | None
    version: int | None
