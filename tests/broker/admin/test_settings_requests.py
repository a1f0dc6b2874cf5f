"""Settings changed and shown by requests: what was changed is in the node's file before it is answered."""

from __future__ import annotations

from kappamq.broker.broker import Broker
from kappamq.config import properties as java
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import GetBrokerConfig, UpdateBrokerConfig
from tests.broker.operating import ok, on_broker, refused
from tests.broker.running import Speaker


@on_broker()
async def test_a_change_is_kept_and_shown(broker: Broker, client: Speaker) -> None:
    file = broker.store_config.root / "config" / broker.settings.file
    assert not file.exists()
    await ok(client, UpdateBrokerConfig(), b"fileReservedTime=5\n")
    assert "fileReservedTime" in file.read_text()
    shown = await ok(client, GetBrokerConfig())
    assert java.parse_bytes(shown.body, where="the answer")["fileReservedTime"] == "5"
    assert broker.store_config.retention_hours == 5


@on_broker()
async def test_what_names_nothing_or_cannot_be_kept_is_told(broker: Broker, client: Speaker) -> None:
    invalid = ResponseCode.INVALID_PARAMETER
    await refused(client, UpdateBrokerConfig(), invalid, "names no property", body=b"# nothing\n")

    async def cannot_be_written(name: str) -> bool:
        return False

    broker.administration.settings._save = cannot_be_written
    unkept = ResponseCode.SERVICE_NOT_AVAILABLE
    await refused(client, UpdateBrokerConfig(), unkept, "holds until a restart", body=b"fileReservedTime=6\n")
    assert broker.store_config.retention_hours == 6
