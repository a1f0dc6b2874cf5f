"""What the parts of a broker's configuration say together about its copies: which shapes cannot be, and which need a warning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kappamq.config.broker import BrokerConfig
from kappamq.config.copies import SYNC_MASTER, CopiesConfig

CAUTION = "kappamqCaution"
"""What their names begin with in a broker's runtime information."""
LOOPBACK_NAMES = ("localhost", "::1", "[::1]")


@dataclass(frozen=True, slots=True)
class Caution:
    """Something that is allowed and that an operator should know, at each start and in `kappamq doctor`."""

    name: str
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}"


def problems(broker: BrokerConfig, copies: CopiesConfig) -> Iterator[str]:
    """Yield what contradicts itself, in the words of broker.conf."""
    if copies.is_raft:
        if broker.broker_id != 0:
            yield f"brokerId={broker.broker_id} cannot be honoured in a Raft group, which gives id 0 to its master: leave it out"
    elif copies.is_slave:
        if broker.broker_id == 0:
            yield "brokerRole=SLAVE needs brokerId > 0 (1, 2, ...): 0 is the master's"
        if copies.master_address is None and not broker.nameservers:
            yield (
                "brokerRole=SLAVE does not know its master: set haMasterAddress to host:port of the master's copies (its "
                "listenPort+1), or namesrvAddr to name servers that know it"
            )
    else:
        if broker.broker_id != 0:
            role = "SYNC_MASTER" if copies.role == SYNC_MASTER else "ASYNC_MASTER"
            yield (
                f"brokerRole={role} needs brokerId=0, and it is {broker.broker_id}: others than 0 are slaves, with brokerRole=SLAVE"
            )
    if broker.port:
        beside = copies.port_beside(broker.port)
        if beside in (broker.port, broker.port - 2):
            yield f"haListenPort={beside} is a port that the broker on {broker.port} uses itself: choose another, or leave it out"


def cautions(broker: BrokerConfig, copies: CopiesConfig) -> list[Caution]:
    found: list[Caution] = []
    if not copies.is_slave and copies.secret is None and not _is_loopback(broker.listen_host):
        port = copies.port_beside(broker.port) if broker.port else "port+1"
        found.append(
            Caution(
                "CopiesOpen",
                f"port {port} gives a copy of all messages to anyone who can connect to it",
                "set replicationSecret to the same text on all brokers of the group, or protect the port with a firewall",
            )
        )
    if copies.role == SYNC_MASTER and not copies.is_raft and copies.in_sync == 1:
        found.append(
            Caution(
                "NoCopyAwaited",
                "brokerRole=SYNC_MASTER with inSyncReplicas=1 waits for no slave: what is acknowledged may be lost with this machine",
                "leave inSyncReplicas out (2: this broker and one slave), or set brokerRole=ASYNC_MASTER if it is meant",
            )
        )
    if copies.role == SYNC_MASTER and copies.is_raft:
        found.append(
            Caution(
                "RoleWithoutEffect",
                "brokerRole=SYNC_MASTER has no effect in a Raft group: a majority always has what is acknowledged",
                "leave brokerRole out",
            )
        )
    if copies.is_first_voter:
        found.append(
            Caution(
                "SingleVoter",
                f"the Raft group {copies.group} has one member, so there is no copy of its messages",
                "add members one at a time until there are 3 or 5",
            )
        )
    return found


def _is_loopback(host: str) -> bool:
    return host in LOOPBACK_NAMES or host.startswith("127.")
