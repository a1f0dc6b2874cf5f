"""What brokers tell of copies, as Apache's write it."""

from __future__ import annotations

from kappamq.protocol.bodies import replicas
from kappamq.protocol.bodies.replicas import EpochCache, HaStatus
from tests.protocol.round_trips import there_and_back_tests

test_there_and_back, test_any_json_is_read_or_refused = there_and_back_tests(replicas)

MASTER = (
    b'{"haConnectionInfo":[{"addr":"/10.0.0.2:40022","diff":7,"inSync":true,"slaveAckOffset":93,"transferFromWhere":90,'
    b'"transferredByteInSecond":5}],"inSyncSlaveNums":1,"master":true,"masterCommitLogMaxOffset":100}'
)
SLAVE = (
    b'{"haClientRuntimeInfo":{"lastReadTimestamp":1,"lastWriteTimestamp":2,"masterAddr":"10.0.0.1:10912","masterFlushOffset":100,'
    b'"maxOffset":93,"transferredByteInSecond":5},"haConnectionInfo":[],"inSyncSlaveNums":0,"master":false}'
)


def test_a_master_tells_of_its_slaves() -> None:
    told = HaStatus.decode(MASTER)
    (slave,) = told.connections
    assert (told.master, told.log_end, told.slaves_in_sync) == (True, 100, 1)
    assert (slave.address, slave.behind, slave.in_sync, slave.slave_offset) == ("/10.0.0.2:40022", 7, True, 93)
    assert (slave.sent_from, slave.bytes_per_s) == (90, 5)
    assert HaStatus.decode(told.encode()) == told


def test_a_slave_tells_of_its_master() -> None:
    told = HaStatus.decode(SLAVE)
    assert (told.client.master_address, told.client.master_flushed, told.client.max_offset) == (
        "10.0.0.1:10912",
        100,
        93,
    )
    assert (told.client.read_ms, told.client.written_ms, told.client.bytes_per_s) == (1, 2, 5)
    assert HaStatus.decode(told.encode()) == told


def test_epochs() -> None:
    told = EpochCache.decode(
        b'{"brokerId":1,"brokerName":"b","clusterName":"c","epochList":[{"endOffset":50,"epoch":1,"startOffset":0},'
        b'{"endOffset":100,"epoch":4,"startOffset":50}],"maxOffset":100}'
    )
    assert (told.cluster, told.broker_name, told.broker_id, told.max_offset) == ("c", "b", 1, 100)
    assert [(epoch.epoch, epoch.start_offset, epoch.end_offset) for epoch in told.epochs] == [(1, 0, 50), (4, 50, 100)]
    assert EpochCache.decode(told.encode()) == told
