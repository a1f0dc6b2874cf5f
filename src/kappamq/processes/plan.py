"""The brokers of a shape: names, ids, roles, folders, and the contents of each broker.conf. No I/O."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kappamq.config.copies import RAFT_SIZES
from kappamq.config.problems import place_of
from kappamq.errors import ConfigError

Role = Literal["master", "slave", "member"]
MASTER: Final = "master"
SLAVE: Final = "slave"
MEMBER: Final = "member"  # of a Raft group; which of them is the master, they decide themselves
BROKERS_MAX: Final = 16
SLAVES_MAX: Final = 4
BASE_NAME: Final = "broker"

# Properties that the shape decides -> the option to use instead.
DECIDED: Final = {
    **dict.fromkeys(("listenPort", "broker.port"), "--broker-port"),
    **dict.fromkeys(
        (
            *("brokerRole", "brokerId", "haListenPort", "haMasterAddress"),
            *("copies.role", "broker.broker_id", "copies.port", "copies.master_address"),
        ),
        "--slaves",
    ),
    **dict.fromkeys(
        (
            *("enableDLegerCommitLog", "dLegerGroup", "dLegerPeers", "dLegerSelfId"),
            *("copies.group", "copies.members", "copies.member"),
        ),
        "--raft",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape requested from `kappamq up`."""

    brokers: int = 1  # masters, or Raft groups
    slaves: int = 0  # of each master
    synchronous: bool = True  # a send is answered when a slave has it, too
    raft: int = 0  # members of each group; 0: no Raft

    def __post_init__(self) -> None:
        if not 1 <= self.brokers <= BROKERS_MAX:
            raise ConfigError(f"brokers must be a number from 1 to {BROKERS_MAX}; got {self.brokers}")
        if not 0 <= self.slaves <= SLAVES_MAX:
            raise ConfigError(f"slaves must be a number from 0 to {SLAVES_MAX}; got {self.slaves}")
        if self.raft and self.raft not in RAFT_SIZES:
            raise ConfigError(f"a Raft group has {' or '.join(map(str, RAFT_SIZES))} members; got {self.raft}")
        if self.raft and self.slaves:
            raise ConfigError("a Raft group has no slaves: all its members hold the log; choose --raft or --slaves")
        if not self.synchronous and not self.slaves:
            raise ConfigError("asynchronous copies need slaves: give --slaves, or leave --async out")


@dataclass(frozen=True, slots=True)
class Place:
    """One broker of a shape."""

    name: str  # shared by a master and its slaves, or by a Raft group
    number: int  # among those of its name; of a master and its slaves the broker's id
    role: Role
    folder: str  # independent of shape and name: a store becomes master, slave or member without being copied

    @property
    def label(self) -> str:
        if self.role == MEMBER:
            return f"{self.name} {self.member}"  # as `kappamq member` and `cluster` call it
        return f"{self.name} {self.role if self.role == MASTER else f'{self.role} {self.number}'}"

    @property
    def member(self) -> str:
        return f"n{self.number}"


def places(shape: Shape, base: str = BASE_NAME) -> list[Place]:
    found = []
    for letter in string.ascii_lowercase[: shape.brokers]:
        for number in range(shape.raft or 1 + shape.slaves):
            role: Role = MEMBER if shape.raft else SLAVE if number else MASTER
            found.append(Place(f"{base}-{letter}", number, role, f"{letter}-{number}"))
    return found


def check_given(shape: Shape, given: Mapping[str, str]) -> None:
    """Refuse properties that would contradict the shape. Raises ConfigError that says where they were given."""
    for name, text in given.items():
        if name in DECIDED:
            where = f" ({place_of(text)})" if place_of(text) else ""
            raise ConfigError(f"{name}={text}{where} is decided by {DECIDED[name]} here: leave it out")
    for name in ("inSyncReplicas", "copies.in_sync"):
        text = given.get(name, "0").strip()
        if text.isdecimal() and int(text) > 1 + shape.slaves and shape.synchronous and not shape.raft:
            raise ConfigError(
                f"{name}={text} asks for more copies than there are brokers of one name ({1 + shape.slaves}): every send would be "
                "refused; start more with --slaves"
            )


def properties(
    place: Place, shape: Shape, ports: Mapping[Place, int], host: str, given: Mapping[str, str]
) -> dict[str, str]:
    """Return the contents of one broker's broker.conf; `ports` are those of all, `host` is where they reach each other."""
    found = {**given, "brokerName": place.name, "listenPort": str(ports[place])}
    if place.role == MEMBER:
        peers = [other for other in ports if other.name == place.name]
        found |= {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": place.name,
            "dLegerPeers": ";".join(f"{peer.member}-{host}:{ports[peer] + 1}" for peer in peers),
            "dLegerSelfId": place.member,
        }
    elif place.role == SLAVE:
        (master,) = (other for other in ports if other.name == place.name and other.role == MASTER)
        found |= {
            "brokerRole": "SLAVE",
            "brokerId": str(place.number),
            "haMasterAddress": f"{host}:{ports[master] + 1}",
        }
    else:
        sync = shape.slaves and shape.synchronous
        found |= {"brokerRole": "SYNC_MASTER" if sync else "ASYNC_MASTER", "brokerId": "0"}
    return found


def stop_order(of: Sequence[Place], masters: set[Place]) -> list[list[Place]]:
    """Return lists of brokers to stop together, one list after the other: a master outlives those that copy from it."""
    return [[each for each in of if each not in masters], [each for each in of if each in masters]]
