"""Configuration of copies: which role a broker has in its group, and how its log gets to the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kappamq.config.checks import address, between
from kappamq.errors import ConfigError

ASYNC_MASTER, SYNC_MASTER, SLAVE = "async_master", "sync_master", "slave"
ROLES = (ASYNC_MASTER, SYNC_MASTER, SLAVE)
AUTO, KAPPAMQ, APACHE = "auto", "kappamq", "apache"
PROTOCOLS = (AUTO, KAPPAMQ, APACHE)


@dataclass(frozen=True, kw_only=True)
class CopiesConfig:
    role: str = ASYNC_MASTER  # sync_master: a send is answered when slaves have it, too; slave: follows a master
    in_sync: int = 0  # copies that a synchronous master waits for, its own included; 0: 2 for sync_master, else 1
    port: int = 0  # where copies connect; 0: the broker's port+1
    master_address: str | None = None  # of a slave: host:port of its master's copies; None: name servers tell
    slave_timeout_ms: int = 3000  # a send that slaves do not have by then is answered with code 12
    read_from_slaves: bool = (
        False  # consumers are sent to a slave for messages that the master would have to read from disk
    )
    lag_bytes_max: int = 256 << 20  # a slave that is further behind counts as absent; senders hear 11 at once
    window_bytes: int = (
        16 << 20
    )  # sent and not reported yet, per slave. larger: more memory, better over long distances
    keep_bytes_max: int = 64 << 30  # log files are kept for slaves that are this far behind, and no further
    rate_bytes_max: int = 0  # per second and slave that is catching up; 0: no limit
    secret: str | None = None  # shared by all brokers of the group; without it anybody who reaches the port may copy
    protocol: str = AUTO  # how a slave speaks to its master: kappamq, apache; auto finds out
    count_apache_slaves: bool = (
        False  # whether a synchronous master waits for Apache slaves, too: they report their page cache
    )

    group: str | None = None  # of a Raft group: its name; None: no Raft
    members: Mapping[str, str] = field(default_factory=dict)  # of a Raft group: member id -> host:port of its copies
    member: str | None = None  # which of them this broker is

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigError(f"role must be one of {', '.join(ROLES)}; got {self.role!r}")
        if self.protocol not in PROTOCOLS:
            raise ConfigError(f"protocol must be one of {', '.join(PROTOCOLS)}; got {self.protocol!r}")
        between("in_sync", self.in_sync, 0, 16)
        between("port", self.port, 0, 65_535)
        if self.master_address is not None:
            address("master_address", self.master_address)
        between("slave_timeout_ms", self.slave_timeout_ms, 1, 600_000)
        between("window_bytes", self.window_bytes, 64 << 10, 1 << 30)
        between("lag_bytes_max", self.lag_bytes_max, 1 << 20, 1 << 50)
        between("keep_bytes_max", self.keep_bytes_max, 0, 1 << 60)
        between("rate_bytes_max", self.rate_bytes_max, 0, 1 << 40)
        for member, place in self.members.items():
            address(f"members[{member}]", place)
        if self.group is not None and self.member not in self.members:
            known = ", ".join(self.members) or "none"
            raise ConfigError(f"member must be one of the group's members ({known}); got {self.member!r}")

    @property
    def copies_awaited(self) -> int:
        """How many slaves must have a message before it is answered."""
        if self.role != SYNC_MASTER:
            return 0
        return (self.in_sync or 2) - 1

    @property
    def is_slave(self) -> bool:
        return self.role == SLAVE
