"""JSON bodies about the members of a broker group: how far each slave has got, and when each term began."""

from __future__ import annotations

from kappamq.protocol.bodies.body import Body, wire


class HaConnection(Body):
    """A slave, as its master sees it."""

    address: str = wire("addr", default="")
    slave_offset: int = wire("slaveAckOffset", default=0)
    behind: int = wire("diff", default=0)  # bytes
    in_sync: bool = False
    bytes_per_s: int = wire("transferredByteInSecond", default=0)
    sent_from: int = wire("transferFromWhere", default=0)


class HaClient(Body):
    """The connection of a slave to its master, as the slave sees it."""

    master_address: str = wire("masterAddr", default="")
    bytes_per_s: int = wire("transferredByteInSecond", default=0)
    max_offset: int = 0
    read_ms: int = wire("lastReadTimestamp", default=0)
    written_ms: int = wire("lastWriteTimestamp", default=0)
    master_flushed: int = wire("masterFlushOffset", default=0)


class HaStatus(Body):
    """The answer to GET_BROKER_HA_STATUS."""

    master: bool = False
    log_end: int = wire("masterCommitLogMaxOffset", default=0)
    slaves_in_sync: int = wire("inSyncSlaveNums", default=0)
    connections: list[HaConnection] = wire("haConnectionInfo", default_factory=list)
    client: HaClient = wire("haClientRuntimeInfo", default_factory=HaClient)


class Epoch(Body):
    epoch: int = 0
    start_offset: int = 0
    end_offset: int = 0


class EpochCache(Body):
    """The answer to GET_BROKER_EPOCH_CACHE."""

    cluster: str = wire("clusterName", default="")
    broker_name: str = ""
    broker_id: int = 0
    epochs: list[Epoch] = wire("epochList", default_factory=list)
    max_offset: int = 0
