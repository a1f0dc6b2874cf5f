"""Operators make, change, forbid, delete and list consumer groups."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kappamq.broker.broker import Broker
from kappamq.protocol.bodies.admin import GroupForbidden
from kappamq.protocol.bodies.clients import GroupConfigList, SubscriptionGroupConfig, SubscriptionGroupTable
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import (
    DeleteGroup,
    ForbidGroup,
    GetAllGroups,
    GetGroup,
    UpdateGroup,
    UpdateGroupList,
)  # fmt: skip
from kappamq.protocol.headers.client import QueryConsumerOffset, UpdateConsumerOffset
from tests.broker.operating import beat, fill, make_topic, ok, on_broker, refused
from tests.broker.running import Speaker, running, speaking


@on_broker(auto_create_group=False)
async def test_a_group_is_made_changed_and_deleted(broker: Broker, client: Speaker) -> None:
    await refused(client, GetGroup(group="g"), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "g")
    await ok(client, UpdateGroup(), SubscriptionGroupConfig(name="g", retry_times_max=3).encode())
    made = SubscriptionGroupConfig.decode((await ok(client, GetGroup(group="g"))).body)
    assert (made.name, made.retry_times_max, made.consume_enable) == ("g", 3, True)

    await make_topic(client, "t")
    await fill(client, "t", [1])
    await client.subscribe("g", "t")
    assert (await client.pull("t", 0)).code == 0
    await ok(client, UpdateGroup(), SubscriptionGroupConfig(name="g", consume_enable=False).encode())
    assert (await client.pull("t", 0)).code == ResponseCode.NO_PERMISSION, "also where the kernel had answered alone"

    await ok(client, DeleteGroup(group="g"))
    assert (await client.pull("t", 0)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    await ok(client, DeleteGroup(group="g"))  # once more: tools ask every broker of a cluster
    await refused(client, DeleteGroup(group="TOOLS_CONSUMER"), ResponseCode.INVALID_PARAMETER, "system")


@on_broker()
async def test_what_cannot_be_a_group(broker: Broker, client: Speaker) -> None:
    invalid = ResponseCode.INVALID_PARAMETER
    for group, text in [
        (SubscriptionGroupConfig(name="a b"), "a b"),
        (SubscriptionGroupConfig(name=""), "empty"),
        (SubscriptionGroupConfig(name="g" * 121), "120"),
        (SubscriptionGroupConfig(name="g", retry_queues=-1), "retryQueueNums"),
        (SubscriptionGroupConfig(name="g", retry_times_max=-2), "retryMaxTimes"),
        (SubscriptionGroupConfig(name="g", attributes={"+colour": "red"}), "colour"),
    ]:
        await refused(client, UpdateGroup(), invalid, text, body=group.encode())
    await refused(client, UpdateGroup(), invalid, "missing")
    await refused(client, UpdateGroup(), ResponseCode.SYSTEM_ERROR, body=b"[1")
    assert "g" not in broker.groups.table


@on_broker()
async def test_many_groups_at_once_all_or_none(broker: Broker, client: Speaker) -> None:
    groups = [SubscriptionGroupConfig(name=f"g{number}", attributes={"+priority.factor": "7"}) for number in range(5)]
    await ok(client, UpdateGroupList(), GroupConfigList(groups).encode())
    assert broker.groups.table["g4"].attributes == {"priority.factor": "7"}
    bad = GroupConfigList([SubscriptionGroupConfig(name="h"), SubscriptionGroupConfig(name="h/2")]).encode()
    await refused(client, UpdateGroupList(), ResponseCode.INVALID_PARAMETER, "h/2", body=bad)
    assert "h" not in broker.groups.table
    await refused(client, UpdateGroupList(), ResponseCode.INVALID_PARAMETER, "empty")


@on_broker()
async def test_the_whole_table_and_pages_of_it(broker: Broker, client: Speaker) -> None:
    for number in range(12):
        await ok(client, UpdateGroup(), SubscriptionGroupConfig(name=f"g{number:02}").encode())
    await ok(client, ForbidGroup(group="g00", topic="t", readable=False))
    whole = await ok(client, GetAllGroups())
    table = SubscriptionGroupTable.decode(whole.body)
    assert table.groups.keys() == broker.groups.table.keys()
    assert (table.forbidden, table.data_version) == ({"g00": {"t": 1}}, broker.groups.version)
    assert int(whole.ext["totalGroupNum"]) == len(table.groups)
    version = table.data_version.encode().decode()
    page = await ok(client, GetAllGroups(start=15, data_version=version, count_max=100))
    assert list(SubscriptionGroupTable.decode(page.body).groups) == sorted(table.groups)[15:]


@on_broker()
async def test_a_group_may_be_forbidden_to_read_a_topic(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    await fill(client, "t", [1])
    await client.subscribe("g", "t")
    assert (await client.pull("t", 0)).code == 0
    for readable, code in [(False, ResponseCode.NO_PERMISSION), (True, 0)]:
        answer = await ok(client, ForbidGroup(group="g", topic="t", readable=readable))
        assert GroupForbidden.decode(answer.body) == GroupForbidden("g", "t", readable)
        assert (await client.pull("t", 0)).code == code
        asked = await ok(client, ForbidGroup(group="g", topic="t"))
        assert GroupForbidden.decode(asked.body).readable is readable, "asking changes nothing"
    await refused(client, ForbidGroup(group="g", topic="a b", readable=False), ResponseCode.INVALID_PARAMETER)


@on_broker(auto_create_group=False)
async def test_an_unknown_group_cannot_be_forbidden(broker: Broker, client: Speaker) -> None:
    header = ForbidGroup(group="g", topic="t", readable=False)
    await refused(client, header, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "g")


def test_offsets_go_with_the_group_if_asked_for_and_a_restart_knows_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            await fill(client, "t", [9])
            for group in ("kept", "cleaned"):
                await beat(client, "c", consumers={group: ["t"]})
                commit = UpdateConsumerOffset(consumer_group=group, topic="t", queue_id=0, commit_offset=4)
                await ok(client, commit)
            await ok(client, DeleteGroup(group="kept", clean_offset=False))
            await ok(client, DeleteGroup(group="cleaned", clean_offset=True))
            await ok(client, UpdateGroup(), SubscriptionGroupConfig(name="new", retry_times_max=1).encode())
        async with running(tmp_path) as broker, speaking(broker) as client:
            assert broker.groups.table["new"].retry_times_max == 1
            assert "kept" not in broker.groups.table
            ask = QueryConsumerOffset(consumer_group="kept", topic="t", queue_id=0, zero_if_not_found=False)
            assert (await ok(client, ask)).ext["offset"] == "4"
            ask = QueryConsumerOffset(consumer_group="cleaned", topic="t", queue_id=0, zero_if_not_found=False)
            await refused(client, ask, ResponseCode.QUERY_NOT_FOUND)

    asyncio.run(main())
