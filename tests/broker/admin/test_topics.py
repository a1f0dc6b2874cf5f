"""Operators make, change, delete and list topics."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kappamq.broker.admin.topics import page_start
from kappamq.broker.broker import Broker
from kappamq.errors import InvalidParameter
from kappamq.protocol.bodies.admin import TopicStatsTable
from kappamq.protocol.bodies.topics import DataVersion, TopicConfig, TopicConfigList, TopicList, TopicTable
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import request
from kappamq.protocol.headers.admin import (
    DeleteTopic,
    GetAllTopicConfig,
    GetSystemTopicsFromBroker,
    GetTopicConfig,
    GetTopicStats,
    UpdateTopicList,
)  # fmt: skip
from tests.broker.operating import fill, make_topic, ok, on_broker, refused, topic_header
from tests.broker.running import Speaker, running, speaking


@on_broker()
async def test_a_topic_is_made_changed_and_deleted(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "tea", 3, order=True, attributes="+message.type=FIFO")
    made = TopicConfig.decode((await ok(client, GetTopicConfig(topic="tea"))).body)
    assert made == TopicConfig("tea", 3, 3, 6, "SINGLE_TAG", 0, True, {"message.type": "FIFO"})
    assert (await client.send("tea", b"leaf", 2)).code == 0

    await make_topic(client, "tea", 5, write_queues=2, permission=4)
    changed = TopicConfig.decode((await ok(client, GetTopicConfig(topic="tea"))).body)
    assert (changed.read_queues, changed.write_queues, changed.permission) == (5, 2, 4)
    assert changed.attributes == {"message.type": "FIFO"}, "what is not named stays"
    assert (await client.send("tea", b"leaf", 0)).code == ResponseCode.NO_PERMISSION

    await ok(client, DeleteTopic(topic="tea"))
    await refused(client, GetTopicConfig(topic="tea"), ResponseCode.TOPIC_NOT_EXIST, "tea")
    assert (await client.send("tea", b"leaf", default_topic="none")).code == ResponseCode.TOPIC_NOT_EXIST
    await ok(client, DeleteTopic(topic="tea"))  # once more: tools ask every broker of a cluster


@on_broker()
async def test_what_cannot_be_a_topic(broker: Broker, client: Speaker) -> None:
    invalid = ResponseCode.INVALID_PARAMETER
    await refused(client, topic_header("no/slash"), invalid, "no/slash")
    await refused(client, topic_header("x" * 128), invalid, "127")
    await refused(client, topic_header(""), invalid, "empty")
    await refused(client, topic_header("SCHEDULE_TOPIC_XXXX"), invalid, "system topic")
    await refused(client, topic_header("rmq_sys_kappamq_metadata"), invalid, "system topic")
    await refused(client, topic_header("DefaultCluster"), invalid, "system topic")
    await refused(client, topic_header("t", permission=8), invalid, "perm")
    await refused(client, topic_header("t", permission=-1), invalid, "perm")
    await refused(client, topic_header("t", filter_type="LOUD"), invalid, "LOUD")
    await refused(client, topic_header("t", read_queues=-1), invalid, "queues")
    await refused(client, topic_header("t", queues=100_000), invalid, "65536")
    await refused(client, topic_header("t", attributes="+cleanup.policy=COMPACTION"), invalid, "not supported")
    assert broker.topics.get("t") is None
    frame = request(topic_header("t"))
    del frame.ext["perm"]
    answer = await client.channel.request(frame)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "perm" in (answer.remark or "")


@on_broker(refuse_system_topics=False)
async def test_system_topics_if_the_operator_insists(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "BenchmarkTest", 2)
    assert broker.topics.existing("BenchmarkTest").read_queues == 2
    await refused(client, topic_header("rmq_sys_kappamq_metadata"), ResponseCode.INVALID_PARAMETER, "system topic")
    for name in ("BenchmarkTest", "rmq_sys_kappamq_metadata", " "):
        await refused(client, DeleteTopic(topic=name), ResponseCode.INVALID_PARAMETER)


@on_broker()
async def test_many_topics_at_once_all_or_none(broker: Broker, client: Speaker) -> None:
    good = [TopicConfig(f"t{number}", attributes={"+message.type": "DELAY"}) for number in range(30)]
    await ok(client, UpdateTopicList(), TopicConfigList(good).encode())
    assert broker.topics.existing("t29").attributes == {"message.type": "DELAY"}
    bad = TopicConfigList([TopicConfig("u1"), TopicConfig("u 2")]).encode()
    await refused(client, UpdateTopicList(), ResponseCode.INVALID_PARAMETER, "u 2", body=bad)
    assert broker.topics.get("u1") is None
    await refused(client, UpdateTopicList(), ResponseCode.INVALID_PARAMETER, "empty")
    await refused(client, UpdateTopicList(), ResponseCode.SYSTEM_ERROR, body=b"{nonsense")


@on_broker()
async def test_the_whole_table_and_pages_of_it(broker: Broker, client: Speaker) -> None:
    for number in range(25):
        await make_topic(client, f"page{number:02}")
    whole = await ok(client, GetAllTopicConfig())
    table = TopicTable.decode(whole.body)
    assert table.topics.keys() == broker.topics.table.keys()
    assert table.data_version == broker.topics.version
    assert int(whole.ext["totalTopicNum"]) == len(table.topics)

    version, start, seen = table.data_version.encode().decode(), 0, []
    while start < len(table.topics):
        page = await ok(client, GetAllTopicConfig(start=start, data_version=version, count_max=10))
        names = list(TopicTable.decode(page.body).topics)
        assert len(names) <= 10
        seen += names
        start += len(names)
    assert sorted(seen) == sorted(table.topics)

    await make_topic(client, "another")
    page = await ok(client, GetAllTopicConfig(start=20, data_version=version, count_max=10))
    assert TopicTable.decode(page.body).topics.keys() == set(sorted(broker.topics.table)[:10]), "it begins anew"
    bad = GetAllTopicConfig(start=20, data_version="[", count_max=10)
    await refused(client, bad, ResponseCode.INVALID_PARAMETER, "dataVersion")


def test_where_a_page_begins() -> None:
    version = DataVersion(0, 7, 3)
    text = version.encode().decode()
    assert page_start(None, text, version) == 0
    assert page_start(-5, text, version) == 0
    assert page_start(5, text, version) == 5
    assert page_start(5, None, version) == 5
    assert page_start(5, DataVersion(0, 7, 4).encode().decode(), version) == 0
    with pytest.raises(InvalidParameter):
        page_start(5, "{", version)


@on_broker()
async def test_system_topics_are_listed(broker: Broker, client: Speaker) -> None:
    listed = TopicList.decode((await ok(client, GetSystemTopicsFromBroker())).body).topics
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "b"} <= set(listed)
    assert "tea" not in listed


def test_a_topic_made_is_there_after_a_crash_and_numbering_goes_on_after_a_deletion(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, store={"flush": "sync"}) as broker, speaking(broker) as client:
            await make_topic(client, "tea", 3)
            await fill(client, "tea", [5])
            await ok(client, DeleteTopic(topic="tea"))
            await make_topic(client, "tea", 7)
            assert broker.store.marks.flushed.offset >= broker.store.log.end, "answered when safe"
            await fill(client, "tea", [2])
        async with running(tmp_path) as broker, speaking(broker) as client:
            assert TopicConfig.decode((await ok(client, GetTopicConfig(topic="tea"))).body).read_queues == 7
            table = TopicStatsTable.decode((await ok(client, GetTopicStats(topic="tea"))).body)
            first = min(table.offsets.items())[1]
            assert (first.min_offset, first.max_offset) == (5, 7)

    asyncio.run(main())
