"""Bodies in which a broker tells how its copies are: 907 (`mqadmin haStatus`) and 1007 (`mqadmin getBrokerEpoch`)."""

from __future__ import annotations

from kappamq.protocol.bodies.body import Body, wire


class HaConnection(Body):
    """One slave, as its master sees it."""

    address: str = wire("addr", default="")
    acknowledged: int = wire("slaveAckOffset", default=0)
    diff: int = 0
    in_sync: bool = False
    bytes_per_s: int = wire("transferredByteInSecond", default=0)
    sent: int = wire("transferFromWhere", default=0)


class HaClient(Body):
    """A slave, as it sees itself."""

    master: str | None = wire("masterAddr", default=None)
    bytes_per_s: int = wire("transferredByteInSecond", default=0)
    end: int = wire("maxOffset", default=0)
    heard_ms: int = wire("lastReadTimestamp", default=0)
    reported_ms: int = wire("lastWriteTimestamp", default=0)
    master_flushed: int = wire("masterFlushOffset", default=0)
    active: bool = wire("activated", default=False)


class HaStatus(Body):
    master: bool = False
    end: int = wire("masterCommitLogMaxOffset", default=0)
    in_sync_slaves: int = wire("inSyncSlaveNums", default=0)
    slaves: list[HaConnection] = wire("haConnectionInfo", default_factory=list)
    client: HaClient = wire("haClientRuntimeInfo", default_factory=HaClient)


class Epoch(Body):
    """From `start` on the log was written by the master of this epoch."""

    epoch: int = 0
    start: int = wire("startOffset", default=0)
    end: int = wire("endOffset", default=(1 << 63) - 1)


class BrokerEpochs(Body):
    cluster: str = wire("clusterName", default="")
    broker_name: str = ""
    broker_id: int = 0
    epochs: list[Epoch] = wire("epochList", default_factory=list)
    end: int = wire("maxOffset", default=0)


class LeaderNow(Body):
    """The answer to TRANSFER_LEADER: who leads the group from now on."""

    member: str = ""
    address: str = ""  # where clients reach it; empty if the former leader has not met it
    term: int = 0
