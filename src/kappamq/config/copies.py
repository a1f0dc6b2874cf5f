"""Configuration of copies: which role a broker has in its group, and how its log gets to the others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kappamq.config.checks import address, between
from kappamq.errors import ConfigError

ASYNC_MASTER, SYNC_MASTER, SLAVE = "async_master", "sync_master", "slave"
ROLES = (ASYNC_MASTER, SYNC_MASTER, SLAVE)
AUTO, KAPPAMQ, APACHE = "auto", "kappamq", "apache"
PROTOCOLS = (AUTO, KAPPAMQ, APACHE)
RAFT_SIZES = (3, 5)
FIRST_VOTER = 1  # a group of one, to which others are added later
MEMBER_ID = re.compile(r"[A-Za-z0-9_.]{1,64}", re.ASCII)
SECRET_CHARACTERS_MIN, SECRET_CHARACTERS_MAX = 8, 256


@dataclass(frozen=True, kw_only=True)
class CopiesConfig:
    role: str = ASYNC_MASTER  # sync_master: a send is answered when slaves have it, too; slave: follows a master
    in_sync: int = 0  # copies that a synchronous master waits for, its own included; 0: 2 for sync_master, else 1
    port: int = 0  # where copies connect; 0: the broker's port+1, in a Raft group the one of its address there
    master_address: str | None = None  # of a slave: host:port of its master's copies; None: name servers tell
    slave_timeout_ms: int = 3000  # a send that slaves do not have by then is answered with code 12
    read_from_slaves: bool = False  # consumers are sent to a slave for what the master would read from disk
    # of the machine's: so much of the end of the log a master with read_from_slaves answers itself
    memory_percent: int = 40
    lag_bytes_max: int = 256 << 20  # a slave that is further behind counts as absent; senders hear 11 at once
    window_bytes: int = 16 << 20  # sent and not reported yet, per slave. larger: more memory, better far away
    # in one message to another member of a Raft group, unless a single record or batch is longer; larger: beats wait longer behind it
    append_bytes_max: int = 1 << 20
    keep_bytes_max: int = 64 << 30  # log files are kept for slaves that are this far behind, and no further
    rate_bytes_max: int = 0  # per second and slave that is catching up; 0: no limit
    secret: str | None = field(default=None, repr=False)  # of the group; without it all who reach the port may copy
    protocol: str = AUTO  # how a slave speaks to its master: kappamq, apache; auto finds out
    # whether a synchronous master waits for Apache slaves, too: they report their page cache
    count_apache_slaves: bool = False

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
        between("append_bytes_max", self.append_bytes_max, 1, 8 << 20)
        between("memory_percent", self.memory_percent, 0, 100)
        between("lag_bytes_max", self.lag_bytes_max, 1 << 20, 1 << 50)
        between("keep_bytes_max", self.keep_bytes_max, 0, 1 << 60)
        between("rate_bytes_max", self.rate_bytes_max, 0, 1 << 40)
        if self.secret is not None and not SECRET_CHARACTERS_MIN <= len(self.secret) <= SECRET_CHARACTERS_MAX:
            # Without the value: errors end up in logs.
            raise ConfigError(
                f"secret must have {SECRET_CHARACTERS_MIN} to {SECRET_CHARACTERS_MAX} characters; got {len(self.secret)}"
            )
        for member, place in self.members.items():
            address(f"members[{member}]", place)
        if self.group is not None:
            self._check_raft()
        elif self.members or self.member is not None:
            raise ConfigError("members and member belong to a Raft group, but group is not set: name it")

    def _check_raft(self) -> None:
        if not self.group or self.group != self.group.strip():
            raise ConfigError(f"group must be a name without leading or trailing blanks; got {self.group!r}")
        for member in self.members:
            if not MEMBER_ID.fullmatch(member):
                raise ConfigError(f"members: an id must be 1 to 64 letters, digits or any of _ . ; got {member!r}")
        places = list(self.members.values())
        doubled = sorted({place for place in places if places.count(place) > 1})
        if doubled:
            raise ConfigError(f"members: {', '.join(doubled)} is given to several of them; each needs its own address")
        if self.member is None or self.member not in self.members:
            known = ", ".join(self.members) or "none"
            raise ConfigError(f"member must be one of the group's members ({known}); got {self.member!r}")
        if len(self.members) not in RAFT_SIZES and not self.is_first_voter:
            raise ConfigError(
                f"members: a Raft group has {' or '.join(map(str, RAFT_SIZES))} members, or {FIRST_VOTER} to which others are "
                f"added later; got {len(self.members)}. An even number survives no more than one less"
            )
        if self.role == SLAVE:
            raise ConfigError(
                "role=slave contradicts group: members of a Raft group elect their master; leave role out"
            )
        own = int(self.members[self.member].rpartition(":")[2])
        if self.port not in (0, own):
            raise ConfigError(f"port={self.port} contradicts members[{self.member}], which says {own}; leave port out")

    @property
    def copies_awaited(self) -> int:
        """How many slaves must have a message before it is answered."""
        return self.in_sync_effective - 1

    @property
    def in_sync_effective(self) -> int:
        """How many brokers must have a message before it is answered, this one included; not of a Raft group."""
        return (self.in_sync or 2) if self.role == SYNC_MASTER else 1

    @property
    def is_slave(self) -> bool:
        return self.role == SLAVE

    @property
    def member_id(self) -> int:
        """The broker id of this member of a Raft group while it does not lead."""
        return sorted(self.members).index(self.member or "") + 1

    @property
    def is_raft(self) -> bool:
        return self.group is not None

    @property
    def is_first_voter(self) -> bool:
        """Whether this member is the only one that it was told of: then it is a group, with whatever its log holds."""
        return len(self.members) == FIRST_VOTER

    @property
    def port_given(self) -> int:
        """The port that copies connect to; 0: the one above the broker's."""
        if self.port or self.group is None:
            return self.port
        assert self.member is not None
        return int(self.members[self.member].rpartition(":")[2])

    def port_beside(self, broker_port: int) -> int:
        """The same, of a broker on `broker_port`."""
        return self.port_given or broker_port + 1
