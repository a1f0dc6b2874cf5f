"""The members of all broker groups: which is the master, and how far the others have got."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from kappamq.client.admin.standing import Standing, leading, number, standing
from kappamq.client.core.core import ClientCore
from kappamq.client.core.routes import MASTER_ID
from kappamq.errors import BrokerNotFound, IllegalOperation, KappaError
from kappamq.protocol.address import split
from kappamq.protocol.bodies.body import Body
from kappamq.protocol.bodies.copies import LeaderNow
from kappamq.protocol.bodies.replicas import EpochCache, HaStatus
from kappamq.protocol.bodies.topics import ClusterInfo, KVTable
from kappamq.protocol.headers.admin import (
    ChangeMembers,
    GetBrokerEpochs,
    GetBrokerRuntimeInfo,
    GetHaStatus,
    TransferLeader,
)
from kappamq.protocol.headers.header import Header
from kappamq.protocol.headers.nameserver import GetClusterInfo

ASKED_AT_ONCE: Final = 32
B = TypeVar("B", bound=Body)


@dataclass(frozen=True, slots=True)
class Member:
    """One broker. None: it did not answer, or does not know."""

    cluster: str
    group: str
    broker_id: int
    address: str
    version: str | None = None
    term: int | None = None  # the last one it knows
    log_end: int | None = None
    behind: int | None = None  # bytes of the log that a slave does not have yet
    in_sync: bool | None = None  # whether the master counts it as a copy
    problem: str | None = None  # why it did not answer
    member: str | None = None  # its name in its Raft group, as in dLegerSelfId
    standing: str | None = None  # in its Raft group: voter, learner or removed, as the leader reports
    voters: tuple[str, ...] | None = None  # of its Raft group, if it leads it

    @property
    def role(self) -> str:
        return "master" if self.broker_id == MASTER_ID else "slave"


class Members(ABC):
    """The method of an admin about the members of groups."""

    @abstractmethod
    def start(self) -> ClientCore: ...

    async def members(self) -> list[Member]:
        """Return all registered brokers, by cluster, group and id. One that does not answer is among them, with its `problem`."""
        core = self.start()
        info = ClusterInfo.decode((await core.ask_nameserver(GetClusterInfo())).body)
        known = [
            Member(group.cluster, name, number, address)
            for name, group in info.brokers.items()
            for number, address in group.addresses.items()
        ]
        room = asyncio.Semaphore(ASKED_AT_ONCE)

        leaders: dict[str, Standing] = {}

        async def ask(member: Member) -> tuple[Member, HaStatus | None]:
            async with room:
                return await _ask(core, member, leaders)

        answers = await asyncio.gather(*(ask(member) for member in known))
        masters = {member.group: (member, status) for member, status in answers if member.broker_id == MASTER_ID}
        slaves = [(member, status) for member, status in answers if member.broker_id != MASTER_ID]
        hosts = _hosts(member for member, _ in slaves)
        found = [master for master, _ in masters.values()]
        found += [_with_lag(slave, status, masters.get(slave.group), hosts) for slave, status in slaves]
        found = [_with_standing(member, leaders.get(member.group)) for member in found]
        return sorted(found, key=lambda member: (member.cluster, member.group, member.broker_id))

    async def transfer_leader(self, group: str, member: str | None = None, timeout: float = 10.0) -> LeaderNow:
        """Make another member of a Raft group the leader: `member` by its id in dLegerPeers, else the one that has most of the log. Waits
        until it leads and returns which one that is; with empty fields if the broker does not say, like earlier versions."""
        core = self.start()
        answer = await core.ask(await self._leader(group), TransferLeader(member=member), timeout=timeout)
        return LeaderNow.decode(answer.body) if answer.body else LeaderNow()

    async def change_members(
        self, group: str, action: str, member: str, address: str | None = None, timeout: float = 10.0
    ) -> None:
        """Make the leader of a Raft group `add`, `remove` or `replace` a member; `address`: host:port of its copies. Returns when a
        majority has recorded it."""
        core = self.start()
        header = ChangeMembers(action=action, member=member, address=address)
        await core.ask(await self._leader(group), header, timeout=timeout)

    async def _leader(self, group: str) -> str:
        core = self.start()
        info = ClusterInfo.decode((await core.ask_nameserver(GetClusterInfo())).body)
        known = info.brokers.get(group)
        if known is None:
            names = ", ".join(sorted(info.brokers))
            raise BrokerNotFound(
                f"there is no broker group {group}; {f'there is {names}' if names else 'none is registered'}"
            )
        address = known.addresses.get(MASTER_ID)
        if address is None:
            raise IllegalOperation(f"group {group} has no leader now")
        return address


async def _ask(core: ClientCore, member: Member, leaders: dict[str, Standing]) -> tuple[Member, HaStatus | None]:
    """`leaders` is filled with what the leaders of Raft groups report, by group."""
    try:
        table = KVTable.decode((await core.ask(member.address, GetBrokerRuntimeInfo())).body).table
    except KappaError as error:
        return replace(member, problem=str(error)), None
    status = await _told(core, member.address, GetHaStatus(), HaStatus)
    epochs = await _told(core, member.address, GetBrokerEpochs(), EpochCache)
    own = standing(table)
    if own is not None and (leader := leading(leaders.get(member.group), own)) is not None:
        leaders[member.group] = leader
    return (
        replace(
            member,
            version=table.get("brokerVersionDesc"),
            term=(epochs.epochs[-1].epoch or None) if epochs is not None and epochs.epochs else None,  # 0: no elections
            log_end=number(table.get("commitLogMaxOffset", "")),
            member=None if own is None else own.member,
            voters=own.voters if own is not None and own.leads else None,
        ),
        status,
    )


async def _told(core: ClientCore, address: str, header: Header, kind: type[B]) -> B | None:
    """Return what a broker knows of copies; None if it does not answer that, like brokers without copies."""
    try:
        return kind.decode((await core.ask(address, header)).body)
    except KappaError:
        return None


def _with_standing(member: Member, leader: Standing | None) -> Member:
    if leader is None or member.member is None:
        return member
    voters = member.voters if member.member == leader.member else None
    return replace(member, standing=leader.of(member.member), voters=voters)


def _hosts(slaves: Iterable[Member]) -> Mapping[tuple[str, str], int]:
    """How many slaves each group has on a host: a master names its slaves by host only."""
    counts: dict[tuple[str, str], int] = {}
    for slave in slaves:
        place = slave.group, _host(slave.address)
        counts[place] = counts.get(place, 0) + 1
    return counts


def _host(address: str) -> str:
    try:
        return split(address.removeprefix("/"))[0]
    except KappaError:
        return address


def _with_lag(
    slave: Member,
    status: HaStatus | None,
    master: tuple[Member, HaStatus | None] | None,
    hosts: Mapping[tuple[str, str], int],
) -> Member:
    if master is None:
        return slave
    of_master, host = master[1], _host(slave.address)
    if of_master is not None:
        # The leader of a Raft group names the others by the addresses for clients; other masters, by the addresses they connect from.
        seen = [one for one in of_master.connections if one.address.removeprefix("/") == slave.address]
        if not seen and hosts[slave.group, host] == 1:
            seen = [one for one in of_master.connections if _host(one.address) == host]
        if len(seen) == 1:
            return replace(slave, behind=max(0, seen[0].behind), in_sync=seen[0].in_sync)
    if status is not None and status.client.master_flushed > 0:
        return replace(slave, behind=max(0, status.client.master_flushed - status.client.max_offset))
    if slave.log_end is not None and master[0].log_end is not None:
        return replace(slave, behind=max(0, master[0].log_end - slave.log_end))
    return slave
