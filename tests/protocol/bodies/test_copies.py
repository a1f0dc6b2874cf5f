from __future__ import annotations

from kappamq.protocol import fastjson
from kappamq.protocol.bodies.copies import BrokerEpochs, Epoch, HaConnection, HaStatus


def test_fields_are_named_as_mqadmin_reads_them() -> None:
    slave = HaConnection(address="10.0.0.2:4711", acknowledged=90, diff=10, in_sync=True, bytes_per_s=5, sent=100)
    said = fastjson.loads(HaStatus(master=True, end=100, in_sync_slaves=1, slaves=[slave]).encode())
    assert said["masterCommitLogMaxOffset"] == 100
    assert said["inSyncSlaveNums"] == 1
    assert said["haConnectionInfo"] == [
        {
            "addr": "10.0.0.2:4711", "slaveAckOffset": 90, "diff": 10, "inSync": True, "transferredByteInSecond": 5,
            "transferFromWhere": 100,
        }
    ]  # fmt: skip
    assert set(said["haClientRuntimeInfo"]) == {
        "transferredByteInSecond", "maxOffset", "lastReadTimestamp", "lastWriteTimestamp", "masterFlushOffset", "activated",
    }  # fmt: skip
    epochs = fastjson.loads(BrokerEpochs(cluster="c", broker_name="b", epochs=[Epoch(3, 40)], end=50).encode())
    assert epochs["epochList"] == [{"epoch": 3, "startOffset": 40, "endOffset": (1 << 63) - 1}]
