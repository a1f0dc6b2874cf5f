"""What clients ask besides sending and pulling: heartbeats, members, offsets, times."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.clients import consumer_requests as consumers
from kappamq.clock import VirtualClock
from kappamq.protocol.bodies.admin import ConsumerConnection
from kappamq.protocol.bodies.clients import (
    ConsumerData,
    ConsumerList,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import (
    DeleteTopic,
    GetBrokerRuntimeInfo,
    GetConsumerConnections,
    UpdateBrokerConfig,
    UpdateGroup,
)
from kappamq.protocol.headers.client import (
    BoundaryType,
    GetConsumerList,
    GetEarliestStoreTime,
    GetMaxOffset,
    GetMinOffset,
    HeartBeat,
    QueryConsumerOffset,
    SearchOffset,
    UnregisterClient,
    UpdateConsumerOffset,
)
from kappamq.protocol.records.record import iter_records
from tests.broker.operating import beat, fill, make_groups, make_topic, ok, on_broker, refused
from tests.broker.running import Speaker, run, running, speaking
from tests.store.stores import kernels
from tests.waiting import eventually_async as eventually


async def members(client: Speaker, group: str = "g") -> list[str]:
    answer = await ok(client, GetConsumerList(consumer_group=group))
    return ConsumerList.decode(answer.body).consumer_ids


async def offset(client: Speaker, header: Any) -> int:
    return int((await ok(client, header)).ext["offset"])


# -- who is there ----------------------------------------------------------------------------------------------------------


@on_broker()
async def test_a_heartbeat_makes_group_and_retry_topic(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    data = HeartbeatData(client_id="c", consumers=[ConsumerData(group="g", subscriptions=[])])
    answer = await ok(client, HeartBeat(), data.encode())
    assert answer.ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert broker.topics.get("%RETRY%g") is not None
    assert broker.groups.table["g"].name == "g"
    broadcast = ConsumerData(group="all", message_model=MessageModel.BROADCASTING)
    await ok(client, HeartBeat(), HeartbeatData(client_id="c", consumers=[broadcast]).encode())
    assert broker.topics.get("%RETRY%all") is None, "who gets everything retries nothing"


@on_broker()
async def test_members_that_subscribe_differently_hear_of_it(broker: Broker, client: Speaker) -> None:
    """The beat is fine, and whoever reads its remark knows why messages are missing; operators find it, too."""
    assert (await client.subscribe("g", "t", "a")).remark is None
    async with speaking(broker) as other:
        beat_ = HeartbeatData(
            client_id="c2", consumers=[ConsumerData(group="g", subscriptions=[SubscriptionData("t", "b")])]
        )
        answer = await ok(other, HeartBeat(), beat_.encode())
        assert answer.remark == "c1 wants 'a' of t but c2 wants 'b' of t"
        assert (await client.subscribe("g", "t", "a")).remark == answer.remark
        known = ConsumerConnection.decode((await ok(client, GetConsumerConnections(consumer_group="g"))).body)
        assert known.conflicts == [answer.remark]
        table = KVTable.decode((await ok(client, GetBrokerRuntimeInfo())).body).table
        assert table["kappamqConflictingGroups"] == f"g: {answer.remark}"
        await ok(other, UnregisterClient(client_id="c2", consumer_group="g"))
        assert (await client.subscribe("g", "t", "a")).remark is None
    known = ConsumerConnection.decode((await ok(client, GetConsumerConnections(consumer_group="g"))).body)
    assert known.conflicts is None


@on_broker(auto_create_group=False)
async def test_a_group_nobody_made_is_skipped_and_named(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    await ok(client, UpdateGroup(), SubscriptionGroupConfig(name="known").encode())
    consumers_ = [ConsumerData(group=name) for name in ("unknown", "known", "a b")]
    answer = await ok(client, HeartBeat(), HeartbeatData(client_id="c", consumers=consumers_).encode())
    assert "[unknown] does not exist: create it" in (answer.remark or "")
    assert "[a b] does not exist and cannot" in (answer.remark or "")
    assert list(broker.clients.consumers) == ["known"]
    assert broker.topics.get("%RETRY%unknown") is None
    for name, text in (("unknown", "updateSubGroup"), ("a b", "not allowed")):
        pulled = await client.pull("t", 0, group=name)
        assert (pulled.code, text in (pulled.remark or "")) == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, True), name


@on_broker()
async def test_a_group_that_may_not_broadcast_does_not_get_by_with_it(broker: Broker, client: Speaker) -> None:
    """Not on the way through the kernel either, and not by changing its mind."""
    await make_topic(client, "t")
    await fill(client, "t", [1])
    broker.groups.update(SubscriptionGroupConfig(name="g", consume_broadcast_enable=False))
    for model, code in (
        (MessageModel.BROADCASTING, ResponseCode.NO_PERMISSION),
        (MessageModel.CLUSTERING, ResponseCode.SUCCESS),
        (MessageModel.BROADCASTING, ResponseCode.NO_PERMISSION),
    ):
        consumer = ConsumerData(group="g", message_model=model, subscriptions=[SubscriptionData(topic="t", version=1)])
        await ok(client, HeartBeat(), HeartbeatData(client_id="c", consumers=[consumer]).encode())
        for _ in range(2):
            assert (await client.pull("t", 0)).code == code


@on_broker(auto_create_group=False)
async def test_a_heartbeat_of_a_group_that_may_not_be(broker: Broker, client: Speaker) -> None:
    await beat(client, "c", consumers={"stranger": ["t"], "TOOLS_CONSUMER": ["t"]}, producers=("pg",))
    assert set(broker.clients.consumers) == {"TOOLS_CONSUMER"}
    assert set(broker.clients.producers) == {"pg"}, "the rest of the beat counts"
    await refused(client, GetConsumerList(consumer_group="stranger"), ResponseCode.SYSTEM_ERROR, "stranger")


@on_broker()
async def test_heartbeats_that_make_no_sense(broker: Broker, client: Speaker) -> None:
    nameless = HeartbeatData(consumers=[ConsumerData(group="g")]).encode()
    await refused(client, HeartBeat(), ResponseCode.INVALID_PARAMETER, "clientID", body=nameless)
    for body in (b"", b"[]", b"{", b'{"clientID":"c","consumerDataSet":7}'):
        answer = await client.ask(HeartBeat(), body)
        assert answer.code != 0, body
        assert answer.remark, body
    assert not broker.clients.consumers


@on_broker()
async def test_members_come_and_go_and_the_others_are_told(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    told: list[Frame] = []
    client.channel._on_request = lambda channel, frame: told.append(frame)
    await beat(client, "one", consumers={"g": ["t"]})
    assert await members(client) == ["one"]
    async with speaking(broker) as other:
        await beat(other, "two", consumers={"g": ["t"]})
        assert await members(other) == ["one", "two"]
        await eventually(lambda: len(told) == 2)  # of itself and of the other
        await ok(other, UnregisterClient(client_id="two", consumer_group="g", producer_group="never seen"))
        assert await members(client) == ["one"]
        await eventually(lambda: len(told) == 3)
        await beat(other, "two", consumers={"g": ["t"]})
    await eventually(lambda: len(told) == 5, text="told of its coming, and of its end without a word")
    assert await members(client) == ["one"]
    assert {(frame.code, frame.is_oneway) for frame in told} == {(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, True)}
    assert {frame.ext["consumerGroup"] for frame in told} == {"g"}
    await ok(client, UnregisterClient(client_id="one", consumer_group="g"))
    await refused(client, GetConsumerList(consumer_group="g"), ResponseCode.SYSTEM_ERROR, "no consumer for this group")


@on_broker()
async def test_unregistering_without_being_there(broker: Broker, client: Speaker) -> None:
    await ok(client, UnregisterClient(client_id="x"))
    await ok(client, UnregisterClient(client_id="x", producer_group="p", consumer_group="g"))
    assert not broker.clients.consumers
    answer = await client.channel.request(Frame(code=RequestCode.UNREGISTER_CLIENT))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "clientID" in (answer.remark or "")


# -- offsets ---------------------------------------------------------------------------------------------------------------


@on_broker()
async def test_offsets_of_groups(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    await fill(client, "t", [5])
    asked = QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0)
    assert await offset(client, asked) == 0, "all of the queue is here: a new group begins at its beginning"
    unknown = QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0, zero_if_not_found=False)
    await refused(client, unknown, ResponseCode.QUERY_NOT_FOUND, "Not found")
    await make_groups(client, "g")
    for committed in (3, 1, 4):  # back as well: a consumer that seeks, or a cloned group, means it
        await ok(client, UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=0, commit_offset=committed))
        assert await offset(client, asked) == committed
    assert await offset(client, unknown) == 4
    assert await offset(client, QueryConsumerOffset(consumer_group="other", topic="t", queue_id=0)) == 0


@on_broker(auto_create_group=False)
async def test_offsets_that_cannot_be(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    await fill(client, "t", [1])
    good: dict[str, Any] = {"consumer_group": "TOOLS_CONSUMER", "topic": "t", "queue_id": 0, "commit_offset": 1}
    for changes, code, text in [
        ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST, "nowhere"),
        ({"consumer_group": "stranger"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "stranger"),
        ({"queue_id": -1}, ResponseCode.INVALID_PARAMETER, "-1"),
        ({"queue_id": 4}, ResponseCode.INVALID_PARAMETER, "has 4 queues"),
        ({"queue_id": 2_000_000_000}, ResponseCode.INVALID_PARAMETER, "has 4 queues"),
        ({"commit_offset": -1}, ResponseCode.INVALID_PARAMETER, "-1"),
        ({"commit_offset": 2}, ResponseCode.INVALID_PARAMETER, "ends at 1"),
    ]:
        await refused(client, UpdateConsumerOffset(**(good | changes)), code, text)
    await ok(client, UpdateConsumerOffset(**good))
    answer = await client.channel.request(Frame(code=RequestCode.UPDATE_CONSUMER_OFFSET, ext={"topic": "t"}))
    assert (answer.code, "consumerGroup" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


@on_broker()
async def test_only_who_decides_where_to_go_on_goes_back(broker: Broker, client: Speaker) -> None:
    """A push consumer tells where it is. It may tell late, when its queue has gone to another member that is further."""
    await make_topic(client, "t")
    await fill(client, "t", [9])
    asked = QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0)

    async def commit(by: Speaker, number: int, forward: bool | None = None) -> int:
        header = UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=0, commit_offset=number, forward=forward)
        await ok(by, header)
        return await offset(by, asked)

    async with speaking(broker) as tool:
        await beat(client, "c", consumers={"g": ["t"]})
        assert [await commit(client, number) for number in (3, 7, 5, 8)] == [3, 7, 7, 8]
        assert await commit(tool, 2) == 2, "as mqadmin does to move a group"
        assert await commit(client, 4) == 4
        pulling = ConsumerData(group="g", consume_type=ConsumeType.CONSUME_ACTIVELY)
        await ok(client, HeartBeat(), HeartbeatData(client_id="c", consumers=[pulling]).encode())
        assert await commit(client, 1) == 1, "it seeks"
        assert [await commit(client, number, forward=True) for number in (5, 3)] == [5, 5], "it does not, and says so"
        await ok(tool, UpdateBrokerConfig(), b"useServerSideResetOffset=false")
        await beat(client, "c", consumers={"g": ["t"]})
        assert [await commit(client, number) for number in (6, 5)] == [6, 5], "resets are the clients' own work then"


@on_broker()
async def test_a_new_group_on_a_queue_that_lost_its_beginning(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    await fill(client, "t", [5])
    broker.kernel.set_queue_min("t", 0, 2)
    await refused(
        client,
        QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0),
        ResponseCode.QUERY_NOT_FOUND,
        "Not found",
    )
    assert await offset(client, GetMinOffset(topic="t", queue_id=0)) == 2
    assert await offset(client, GetMaxOffset(topic="t", queue_id=0)) == 5


@pytest.mark.parametrize("kernel", kernels())
def test_a_new_group_does_not_replay_what_has_left_the_memory(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        asked = QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0)
        empty = QueryConsumerOffset(consumer_group="g", topic="t", queue_id=1)
        async with running(tmp_path, kernel) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            await fill(client, "t", [5])
            monkeypatch.setattr(consumers, "HOT_BYTES", broker.store.log.end)
            assert await offset(client, asked) == 0
            monkeypatch.setattr(consumers, "HOT_BYTES", 100)
            await refused(client, asked, ResponseCode.QUERY_NOT_FOUND, "Not found")
            assert await offset(client, empty) == 0, "there is nothing that could be replayed"
        async with running(tmp_path, kernel) as broker, speaking(broker) as client:
            await refused(client, asked, ResponseCode.QUERY_NOT_FOUND, "Not found")
            monkeypatch.setattr(consumers, "HOT_BYTES", broker.store.log.end)
            assert await offset(client, asked) == 0, "also with entries that are only on disk"

    run(test())


@on_broker()
async def test_ends_of_queues_that_do_not_exist(broker: Broker, client: Speaker) -> None:
    for header in (GetMaxOffset, GetMinOffset):
        assert await offset(client, header(topic="nowhere", queue_id=7)) == 0
        assert await offset(client, header(topic="nowhere", queue_id=-1)) == 0
    answer = await ok(client, GetEarliestStoreTime(topic="nowhere", queue_id=0))
    assert answer.ext["timestamp"] == "-1"
    assert await offset(client, SearchOffset(topic="nowhere", queue_id=0, timestamp=5)) == 0


def test_offsets_by_time(tmp_path: Path) -> None:
    async def test() -> None:
        clock = VirtualClock()
        async with running(tmp_path, clock=clock) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            clock.advance(1)
            start = clock.message_ms()
            for _ in range(4):  # two at 0, two at 100...
                await fill(client, "t", [2])
                clock.advance(ms=100)

            async def at(ms: int, boundary: BoundaryType | None = None) -> int:
                header = SearchOffset(topic="t", queue_id=0, timestamp=start + ms, boundary=boundary)
                return await offset(client, header)

            assert [await at(ms) for ms in (-1, 0, 1, 100, 250, 300, 301)] == [0, 0, 2, 2, 6, 6, 8]
            assert [await at(ms, BoundaryType.LOWER) for ms in (0, 1, 100)] == [0, 2, 2]
            assert [await at(ms, BoundaryType.UPPER) for ms in (-1, 0, 1, 100, 250, 999)] == [0, 1, 1, 3, 5, 7]
            answer = await ok(client, GetEarliestStoreTime(topic="t", queue_id=0))
            assert answer.ext["timestamp"] == str(start)
        async with running(tmp_path, clock=clock) as broker, speaking(broker) as client:
            assert [await at(ms) for ms in (0, 100, 301)] == [0, 2, 8], "from the files, too"

    run(test())


@on_broker()
async def test_a_commit_makes_no_group(broker: Broker, client: Speaker) -> None:
    """As with RocketMQ's broker: what only commits is a mistyped name."""
    await make_topic(client, "t", 1)
    await fill(client, "t", [3])
    unknown = UpdateConsumerOffset(consumer_group="mistyped", topic="t", queue_id=0, commit_offset=1)
    await refused(client, unknown, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group mistyped not exist!")
    assert "mistyped" not in broker.groups.table
    assert broker.offsets.queues("mistyped", "t") == {}


# -- a topic that was deleted and made again -------------------------------------------------------------------------------


async def remake(client: Speaker, name: str, queues: int = 1) -> None:
    await ok(client, DeleteTopic(topic=name))
    await make_topic(client, name, queues)


@on_broker()
async def test_a_new_group_begins_where_a_topic_made_again_begins(broker: Broker, client: Speaker) -> None:
    """As with RocketMQ's broker, where a topic made again is a small one that is all there: "from last" misses nothing."""
    await make_topic(client, "t", 1)
    await fill(client, "t", [5])
    await remake(client, "t")
    asked = QueryConsumerOffset(consumer_group="new", topic="t", queue_id=0)
    assert await offset(client, asked) == 5, "also while it is empty"
    await fill(client, "t", [3])
    assert await offset(client, asked) == 5
    assert await offset(client, GetMinOffset(topic="t", queue_id=0)) == 5
    assert [record.queue_offset for record in await client.read("t", offset=5)] == [5, 6, 7]
    strict = QueryConsumerOffset(consumer_group="new", topic="t", queue_id=0, zero_if_not_found=False)
    await refused(client, strict, ResponseCode.QUERY_NOT_FOUND)


@on_broker()
async def test_a_pull_from_a_topics_former_life_goes_on_at_its_present_one(broker: Broker, client: Speaker) -> None:
    """At once: after code 21 a Java consumer that begins at 0 waits for its next rebalance, 20 seconds."""
    await make_topic(client, "t", 1)
    await fill(client, "t", [5])
    await remake(client, "t")
    await client.subscribe("g", "t")
    for explicit in (False, True):
        empty = await client.pull("t", 0, explicit=explicit)
        assert (empty.code, empty.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "5")
    waiting = asyncio.create_task(client.pull("t", 2, sys_flag=2, hold_ms=20_000))
    await eventually(lambda: broker.pulls.waiting.count == 1)
    await fill(client, "t", [1])
    for answer in (await waiting, await client.pull("t", 0), await client.pull("t", 3, explicit=True)):
        assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.SUCCESS, "6")
        assert [record.queue_offset for record in iter_records(answer.body)] == [5]


@on_broker()
async def test_offsets_of_a_topics_former_life_are_its_beginning_now(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 1)
    await fill(client, "t", [5])
    await beat(client, "c", consumers={"g": ["t"], "late": ["t"]})
    await ok(client, UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=0, commit_offset=4))
    await remake(client, "t")
    await fill(client, "t", [3])
    assert await offset(client, QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0)) == 5, "dropped"
    for forward in (None, True):  # a consumer from before, which has not noticed anything
        late = UpdateConsumerOffset(consumer_group="late", topic="t", queue_id=0, commit_offset=2, forward=forward)
        await ok(client, late)
        assert broker.offsets.get("late", "t", 0) == 5


@pytest.mark.parametrize("kernel", kernels())
def test_a_topics_present_life_is_known_after_a_restart(tmp_path: Path, kernel: str) -> None:
    async def main() -> None:
        async with running(tmp_path, kernel) as broker, speaking(broker) as client:
            await make_topic(client, "t", 1)
            await fill(client, "t", [5])
            await remake(client, "t")
            await fill(client, "t", [3])
        async with running(tmp_path, kernel) as broker, speaking(broker) as client:
            assert await offset(client, QueryConsumerOffset(consumer_group="new", topic="t", queue_id=0)) == 5
            assert (await client.pull("t", 0, explicit=True)).ext["nextBeginOffset"] == "8"

    run(main())


@on_broker()
async def test_what_has_expired_since_is_told_as_always(broker: Broker, client: Speaker) -> None:
    """Code 21: messages of the present life are missing, and the consumer should know."""
    await make_topic(client, "t", 1)
    await fill(client, "t", [5])
    await remake(client, "t")
    await fill(client, "t", [4])
    broker.kernel.set_queue_min("t", 0, 7)
    answer = await client.pull("t", 0, explicit=True)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "7")
    await refused(
        client, QueryConsumerOffset(consumer_group="new", topic="t", queue_id=0), ResponseCode.QUERY_NOT_FOUND
    )
