"""Settings changed while the broker runs."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from kappamq.broker.admin.settings import Settings
from kappamq.broker.broker import Broker
from kappamq.clock import VirtualClock
from kappamq.config import properties as java
from kappamq.config.apache import BrokerSettings
from kappamq.config.broker import BrokerConfig
from kappamq.config.net import NetConfig
from kappamq.config.store import StoreConfig
from kappamq.events import Events
from kappamq.protocol.bodies.topics import DataVersion
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import GetBrokerConfig, UpdateBrokerConfig
from kappamq.protocol.records.record import iter_records
from kappamq.state.events import SettingsChanged
from kappamq.state.metadata import TOPIC
from kappamq.store.snapshots import Snapshots, decode
from tests.broker.operating import fill, make_topic, ok, on_broker, refused
from tests.broker.running import Speaker, running, speaking
from tests.waiting import eventually_async as eventually


async def change(client: Speaker, **properties: str) -> None:
    await ok(client, UpdateBrokerConfig(), java.render(properties).encode())


async def shown(client: Speaker) -> dict[str, str]:
    return java.parse_bytes((await ok(client, GetBrokerConfig())).body)


@on_broker()
async def test_what_is_changed_is_shown_and_holds(broker: Broker, client: Speaker) -> None:
    before = await ok(client, GetBrokerConfig())
    assert java.parse_bytes(before.body)["fileReservedTime"] == "72"
    await change(
        client, fileReservedTime="48", deleteWhen="03;05", diskMaxUsedSpaceRatio="60", longPollingEnable="false"
    )
    after = await ok(client, GetBrokerConfig())
    table = java.parse_bytes(after.body)
    assert (table["fileReservedTime"], table["deleteWhen"], table["diskMaxUsedSpaceRatio"]) == ("48", "03;05", "60")
    first, second = (DataVersion.decode(answer.ext["version"].encode()) for answer in (before, after))
    assert second.counter == first.counter + 1
    store = broker.store.config
    assert (store.retention_hours, store.delete_hours, store.disk_clean_ratio) == (48, (3, 5), 0.6)
    assert broker.config.long_polling is False
    await change(client, fileReservedTime="48")
    again = DataVersion.decode((await ok(client, GetBrokerConfig())).ext["version"].encode())
    assert again == second, "no change, no new version"


@on_broker()
async def test_what_is_refused_changes_nothing(broker: Broker, client: Speaker) -> None:
    before = await shown(client)
    permission, invalid = ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER
    for text, code, hint in [
        ("fileReservedTime=24\nlistenPort=1", permission, "listenPort"),
        ("storePathRootDir=/elsewhere", permission, "restart"),
        ("sendMessageThreadPoolNums=9", permission, "no effect"),
        ("fileReservedTime=24\nfileReservedTme=24", invalid, "fileReservedTime?"),
        ("fileReservedTime=soon", invalid, "integer"),
        ("fileReservedTime=-1", invalid, "retention_hours"),
        ("brokerRole=SLAVE", permission, "restart"),
        ("longPollingEnable=maybe", invalid, "true or false"),
        ("", invalid, "no property"),
        ("=5", invalid, "no name"),
    ]:
        await refused(client, UpdateBrokerConfig(), code, hint, body=text.encode())
    await refused(client, UpdateBrokerConfig(), invalid, "UTF-8", body=b"a=\xff")
    assert await shown(client) == before


@on_broker()
async def test_limits_of_pulls_reach_the_kernel(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 1)
    await fill(client, "t", [30])
    assert len(list(iter_records((await client.pull("t", 0, explicit=True)).body))) == 30
    await change(client, maxTransferCountOnMessageInMemory="4")
    for explicit in (True, False):
        await client.subscribe("g", "t")
        answer = await client.pull("t", 0, explicit=explicit)
        assert len(list(iter_records(answer.body))) == 4
    await change(client, maxTransferCountOnMessageInMemory="100", maxTransferBytesOnMessageInMemory="4096")
    assert 1 <= len(list(iter_records((await client.pull("t", 0, explicit=True)).body))) < 30


@on_broker()
async def test_permission_and_creation_of_topics(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 1)
    assert (await client.send("t", b"x")).code == 0
    await change(client, brokerPermission="4")
    assert (await client.send("t", b"x")).code == ResponseCode.NO_PERMISSION
    assert (await client.pull("t", 0, explicit=True)).code == 0
    await change(client, brokerPermission="2")
    assert (await client.send("t", b"x")).code == 0
    assert (await client.pull("t", 0, explicit=True)).code == ResponseCode.NO_PERMISSION
    await change(client, brokerPermission="6", autoCreateTopicEnable="false")
    assert (await client.send("new", b"x")).code == ResponseCode.TOPIC_NOT_EXIST
    await change(client, autoCreateTopicEnable="true", defaultTopicQueueNums="3")
    assert (await client.send("new", b"x", default_topic_queues=16)).code == 0
    assert broker.topics.existing("new").write_queues == 3


@on_broker(auto_create_topic=False)
async def test_creation_of_topics_can_be_switched_on(broker: Broker, client: Speaker) -> None:
    assert (await client.send("new", b"x")).code == ResponseCode.TOPIC_NOT_EXIST
    await change(client, autoCreateTopicEnable="true")
    assert (await client.send("new", b"x")).code == 0


@on_broker(store={"queue_flush_interval_ms": 3_600_000})
async def test_a_shorter_interval_takes_effect_while_the_long_one_lasts(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 1)
    await fill(client, "t", [1])
    file = broker.store_config.root / "consumequeue" / "t"
    assert not file.exists()
    await change(client, flushIntervalConsumeQueue="50")
    await eventually(file.exists)


@on_broker(client_expiry_ms=100_000)
async def test_clients_expire_by_the_new_time(broker: Broker, client: Speaker) -> None:
    await client.subscribe("g", "t")
    await change(client, channelExpiredTimeout="200")
    await eventually(lambda: not client.channel.is_open)


def test_changes_survive_a_restart_unless_the_file_was_edited_since(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            await change(client, fileReservedTime="48", maxTransferCountOnMessageInMemory="5")
        async with running(tmp_path) as broker, speaking(broker) as client:
            assert (await shown(client))["fileReservedTime"] == "48"
            assert broker.kernel.transfer_count_max == 5
            await change(client, fileReservedTime="24")
        # Somebody writes 100 into broker.conf: that is newer than what was changed at run time.
        with caplog.at_level(logging.WARNING):
            async with running(tmp_path, store={"retention_hours": 100}) as broker, speaking(broker) as client:
                table = await shown(client)
                assert (table["fileReservedTime"], table["maxTransferCountOnMessageInMemory"]) == ("100", "5")
        assert "fileReservedTime=24" in caplog.text
        async with running(tmp_path) as broker, speaking(broker) as client:
            assert (await shown(client))["fileReservedTime"] == "72", "and it stays forgotten"

    asyncio.run(main())


@pytest.mark.parametrize("file", [False, True])
def test_what_earlier_versions_recorded_is_taken_over_once(tmp_path: Path, file: bool) -> None:
    """They had settings in the log, and a snapshot; now they are the node's own, and such records are another node's business."""
    path = tmp_path / "config" / Settings.file

    def recorded(broker: Broker, **changes: list[str]) -> None:
        now = broker.clock.message_ms()
        member = broker.metadata.member("settings", changes, now)
        broker.writer.append(lambda: broker.kernel.append(*member, now), own=True)

    async def test() -> None:
        async with running(tmp_path) as broker:
            recorded(broker, fileReservedTime=["47", "72"], deleteWhen=["03", "04"])
            recorded(broker, fileReservedTime=["48", "72"])
            end = broker.kernel.append_offset
        assert not path.exists()
        if file:
            old = {"changes": {"deleteWhen": ["05", "04"], "maxTransferCountOnMessageInMemory": ["9", "1024"]}}
            Snapshots(path.parent).save(path.name, old, 0)
        async with running(tmp_path) as broker, speaking(broker) as client:
            table = await shown(client)
            assert (table["fileReservedTime"], table["deleteWhen"]) == ("48", "03")
            assert (table["maxTransferCountOnMessageInMemory"] == "9") is file
        assert decode(path.read_bytes()).table["nodeFile"] is True
        async with running(tmp_path) as broker:
            recorded(broker, fileReservedTime=["1", "72"])
        path.with_name(path.name + ".bak").unlink(missing_ok=True)
        for _ in range(2):
            async with running(tmp_path) as broker, speaking(broker) as client:
                assert (await shown(client))["fileReservedTime"] == "48"
                await change(client, deleteWhen="06")
                assert decode(path.read_bytes()).table["changes"]["deleteWhen"][0] == "06", "before it is answered"
                assert broker.kernel.append_offset > end
                records = broker.kernel.queue_state(TOPIC, 0).next
                await change(client, deleteWhen="07")
                assert broker.kernel.queue_state(TOPIC, 0).next == records, "the log does not hear of it"
                await change(client, deleteWhen="06")

    asyncio.run(test())


def test_the_callers_configuration_is_not_touched(tmp_path: Path) -> None:
    async def main() -> None:
        config = BrokerConfig(port=0, listen_host="127.0.0.1", name="b")
        broker = await Broker.open(config, StoreConfig(root=tmp_path), NetConfig(), VirtualClock())
        assert broker.config == config
        assert broker.config is not config
        await broker.stop()

    asyncio.run(main())


def test_a_reaction_comes_once_and_finds_all_values(tmp_path: Path) -> None:
    store = StoreConfig(root=tmp_path)
    events = Events()
    settings = Settings(BrokerSettings(broker=BrokerConfig(), store=store, net=NetConfig()), lambda: 1, events)
    seen: list[tuple[int, int]] = []
    fields: list[frozenset[str]] = []

    def look(event: SettingsChanged) -> None:
        fields.append(event.fields)
        seen.append((store.transfer_bytes_max, store.transfer_count_max))

    events.on(SettingsChanged, look)
    settings.change({"maxTransferBytesOnMessageInMemory": "8192", "maxTransferCountOnMessageInMemory": "7"})
    assert seen == [(8192, 7)]
    settings.change({"fileReservedTime": "5"})
    settings.change({"fileReservedTime": "5"})
    assert fields == [
        {"store.transfer_bytes_max", "store.transfer_count_max", "broker.properties"},
        {"store.retention_hours", "broker.properties"},
    ], "nothing where nothing has changed"
