"""Moving a group to another place: told to the next pull, kept until then, and not overwritten meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.clock import VirtualClock
from kappamq.errors import NotAvailable
from kappamq.protocol.bodies.clients import (
    ConsumerData,
    HeartbeatData,
    MessageModel,
    ResetOffset,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from kappamq.protocol.codes import VERSION, Language, RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, request
from kappamq.protocol.headers.admin import CloneGroupOffset, DeleteGroup, DeleteTopic, ResetOffsetByBroker, UpdateGroup
from kappamq.protocol.headers.client import HeartBeat, QueryConsumerOffset, UpdateConsumerOffset
from tests.broker.operating import beat, fill, make_groups, make_topic, ok, on_broker, queue, refused
from tests.broker.running import MODES, Speaker, running, speaking
from tests.waiting import eventually_async as eventually

COMMIT_AND_WAIT = 3


def header(**changes: Any) -> ResetOffsetByBroker:
    values: dict[str, Any] = {"topic": "t", "group": "g", "queue_id": -1, "offset": -1, "timestamp": -1, "force": True}
    return ResetOffsetByBroker(**(values | changes))


async def reset(client: Speaker, **changes: Any) -> dict[int, int]:
    offsets = ResetOffset.decode((await ok(client, header(**changes))).body).offsets
    return {key.queue_id: offset for key, offset in offsets.items()}


async def committed(client: Speaker, queue_id: int = 0) -> int:
    ask = QueryConsumerOffset(consumer_group="g", topic="t", queue_id=queue_id, zero_if_not_found=False)
    return int((await ok(client, ask)).ext["offset"])


async def commit(client: Speaker, offset: int, queue_id: int = 0) -> None:
    await ok(client, UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=queue_id, commit_offset=offset))


async def scene(client: Speaker, counts: list[int]) -> None:
    await make_topic(client, "t", len(counts))
    await fill(client, "t", counts)
    await beat(client, "c", consumers={"g": ["t"]})


@pytest.mark.parametrize("mode", MODES)
def test_the_next_pull_is_told_and_commits_are_ignored_until_then(tmp_path: Path, mode: str) -> None:
    async def main() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            await scene(client, [10, 10])
            for queue_id in (0, 1):
                await commit(client, 8, queue_id)
                assert (await client.pull("t", 8, queue_id)).code == 0
            slow = broker.kernel.left_frames
            assert await reset(client, queue_id=0, offset=2) == {0: 2}
            assert await committed(client) == 2, "who asks gets the new one"
            await commit(client, 9)
            assert await committed(client) == 2, "an old client's commit is ignored"
            answer = await client.pull("t", 10, sys_flag=COMMIT_AND_WAIT, commit_offset=10, hold_ms=5000)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")
            assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", "10")
            assert await committed(client) == 2, "so is the one that came with the pull"
            await commit(client, 9)
            assert await committed(client) == 2, "and the one that was on its way while the client was told"
            # It has heard of it: from now on all is as before, and the kernel may answer alone again.
            answer = await client.pull("t", 2)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "10")
            await commit(client, 5)
            assert await committed(client) == 5
            assert await committed(client, 1) == 8, "other queues are not touched"
            assert (await client.pull("t", 8, 1)).code == 0
            if mode != "slow":
                assert broker.kernel.left_frames > slow
                left = broker.kernel.left_frames
                assert (await client.pull("t", 2)).code == 0
                assert broker.kernel.left_frames == left

    asyncio.run(main())


@pytest.mark.parametrize("mode", MODES)
def test_a_pull_that_waits_is_told_at_once(tmp_path: Path, mode: str) -> None:
    async def main() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client, speaking(broker) as other:
            await scene(client, [4])
            await beat(other, "o", consumers={"bystander": ["t"]})
            waiting = asyncio.ensure_future(client.pull("t", 4, sys_flag=2, hold_ms=20_000, timeout=20))
            bystander = asyncio.ensure_future(
                other.pull("t", 4, group="bystander", sys_flag=2, hold_ms=20_000, timeout=20)
            )
            await eventually(lambda: broker.pulls.waiting.count == 2)
            assert await reset(client, timestamp=0) == {0: 0}
            answer = await asyncio.wait_for(waiting, 5)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
            assert broker.pulls.waiting.count == 1
            await client.send("t", b"news")
            assert (await asyncio.wait_for(bystander, 5)).code == 0, "somebody else's pull waits on"

    asyncio.run(main())


@pytest.mark.parametrize("mode", MODES)
def test_a_broadcasting_group_is_not_moved(tmp_path: Path, mode: str) -> None:
    """Its members keep their own offsets, and each has every queue: telling all of them would never end in a large group."""

    async def main() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            await scene(client, [10])
            await commit(client, 8)
            subscriptions = [SubscriptionData(topic="t", version=1)]
            wanted = ConsumerData(group="g", message_model=MessageModel.BROADCASTING, subscriptions=subscriptions)
            await ok(client, HeartBeat(), HeartbeatData(client_id="c", consumers=[wanted]).encode())
            waiting = asyncio.ensure_future(client.pull("t", 10, sys_flag=2, hold_ms=20_000, timeout=20))
            await eventually(lambda: broker.pulls.waiting.count == 1)
            assert await reset(client, queue_id=0, offset=2) == {0: 2}
            await client.send("t", b"news")
            assert (await asyncio.wait_for(waiting, 10)).code == 0, "it waited on"
            answer = await client.pull("t", 9)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "11")
            left = broker.kernel.left_frames
            assert (await client.pull("t", 9)).code == 0
            assert mode == "slow" or broker.kernel.left_frames == left, "the kernel answers its pulls as before"

    asyncio.run(main())


@on_broker()
async def test_who_is_there_already_is_not_sent_anywhere(broker: Broker, client: Speaker) -> None:
    await scene(client, [10])
    await commit(client, 8)
    await reset(client, queue_id=0, offset=3)
    offset = await committed(client)  # what a client that has just started does first
    answer = await client.pull("t", offset)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "10")
    assert not broker.pending_resets.is_pending("g", "t")


@on_broker()
async def test_by_time_and_to_the_end(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 2)
    await fill(client, "t", [3, 3])
    between = (await client.read("t", 1))[-1].stored_ms + 1
    await eventually(lambda: broker.clock.message_ms() > between)
    await fill(client, "t", [4, 4])
    await beat(client, "c", consumers={"g": ["t"]})
    assert await reset(client, timestamp=between) == {0: 3, 1: 3}
    assert await reset(client, timestamp=0) == {0: 0, 1: 0}
    assert await reset(client, timestamp=1 << 60) == {0: 7, 1: 7}, "after everything"
    assert await reset(client, timestamp=-1, queue_id=1) == {1: 7}
    await reset(client, queue_id=0, offset=2)
    await reset(client, queue_id=1, offset=6)
    assert await reset(client, timestamp=between) == {0: 3, 1: 3}, "forwards and backwards"
    assert (await committed(client, 0), await committed(client, 1)) == (3, 3)


@on_broker()
async def test_without_force_all_the_same(broker: Broker, client: Speaker) -> None:
    """As RocketMQ's broker: what its tools send for `resetOffsetByQueueId` never asks for force."""
    await scene(client, [10])
    await commit(client, 4)
    assert await reset(client, queue_id=0, offset=7, force=False) == {0: 7}
    assert await committed(client) == 7
    answer = await client.pull("t", 4)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "7")
    assert answer.remark == "OFFSET_RESET"
    assert await reset(client, queue_id=0, offset=7, force=False) == {0: 7}


# -- everybody hears of it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_everybody_who_waits_is_told(tmp_path: Path, mode: str) -> None:
    """During a rebalance two members have the same queue."""

    async def main() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client, speaking(broker) as other:
            await scene(client, [4])
            await beat(other, "o", consumers={"g": ["t"]})
            waiting = [
                asyncio.ensure_future(each.pull("t", 4, sys_flag=2, hold_ms=20_000, timeout=20))
                for each in (client, other)
            ]
            await eventually(lambda: broker.pulls.waiting.count == 2)
            assert await reset(client, timestamp=0) == {0: 0}
            for answer in await asyncio.wait_for(asyncio.gather(*waiting), 5):
                assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
            assert broker.pulls.waiting.count == 0

    asyncio.run(main())


@pytest.mark.parametrize("mode", MODES)
def test_nobody_undoes_a_reset_that_it_has_not_heard_of(tmp_path: Path, mode: str) -> None:
    """One member hears and goes on; the other one takes the queue over with what it knew before."""

    async def main() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client, speaking(broker) as other:
            await scene(client, [10])
            await beat(other, "o", consumers={"g": ["t"]})
            await commit(client, 8)
            await reset(client, queue_id=0, offset=2)
            assert (await client.pull("t", 8)).code == ResponseCode.PULL_OFFSET_MOVED
            assert (await client.pull("t", 2)).code == 0
            await commit(client, 4)
            for forward in (None, True):
                late = UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=0, commit_offset=9, forward=forward)
                await ok(other, late)
                assert broker.offsets.get("g", "t", 0) == 4
            answer = await other.pull("t", 9, sys_flag=COMMIT_AND_WAIT, commit_offset=9, hold_ms=5000)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "4"), (
                "where the group is"
            )
            assert broker.offsets.get("g", "t", 0) == 4
            assert (await other.pull("t", 4)).code == 0
            await commit(other, 10)
            assert await committed(client) == 10
            assert not broker.pending_resets.is_pending("g", "t")

    asyncio.run(main())


@pytest.mark.parametrize("mode", MODES)
def test_who_takes_a_queue_over_hears_by_asking(tmp_path: Path, mode: str) -> None:
    async def main() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client, speaking(broker) as other:
            await scene(client, [10])
            await reset(client, queue_id=0, offset=2)
            assert (await client.pull("t", 2)).code == 0
            await commit(client, 5)
            assert not broker.pending_resets.is_pending("g", "t")
            await beat(other, "o", consumers={"g": ["t"]})
            offset = await committed(other)
            assert offset == 5
            answer = await other.pull("t", offset, sys_flag=COMMIT_AND_WAIT, commit_offset=offset, hold_ms=0)
            assert answer.code == 0
            await commit(other, 9)
            assert await committed(client) == 9
            assert not broker.pending_resets.is_pending("g", "t"), "and the kernel answers alone again"

    asyncio.run(main())


@pytest.mark.parametrize("mode", MODES)
def test_a_member_that_was_away_does_not_undo_a_reset_either(tmp_path: Path, mode: str) -> None:
    """Not after a minute, when nobody waits for it any more, nor after a restart; also not with a pull that the kernel takes."""

    async def main() -> None:
        clock = VirtualClock()
        async with (
            running(tmp_path, mode, clock=clock) as broker,
            speaking(broker) as client,
            speaking(broker) as other,
        ):
            await scene(client, [10])
            await beat(other, "o", consumers={"g": ["t"]})
            await commit(client, 8)
            await reset(client, queue_id=0, offset=2)
            assert (await client.pull("t", 2)).code == 0
            assert broker.pending_resets.is_pending("g", "t"), "the other one may have the queue, too"
            clock.advance(61)
            assert (await client.pull("t", 2)).code == 0
            assert not broker.pending_resets.is_pending("g", "t")
        async with (
            running(tmp_path, mode, clock=clock) as broker,
            speaking(broker) as client,
            speaking(broker) as other,
        ):
            await beat(client, "c", consumers={"g": ["t"]})
            await commit(client, 3)
            assert broker.offsets.get("g", "t", 0) == 3, "this one has heard: a restart does not make it a stranger"
            assert (await client.pull("t", 3)).code == 0
            async with speaking(broker) as unknown:  # a consumer whose heartbeat is still on its way
                await unknown.channel.oneway(
                    UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=0, commit_offset=9)
                )
                await ok(unknown, QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0))
            assert broker.offsets.get("g", "t", 0) == 3
            await beat(other, "o", consumers={"g": ["t"]})
            if mode != "slow":  # the kernel does not ask who pulls; the commit gives it away
                first = await other.pull("t", 9, sys_flag=COMMIT_AND_WAIT, commit_offset=9, hold_ms=0)
                assert first.code == 0
                assert broker.offsets.get("g", "t", 0) == 3
            answer = await other.pull("t", 10, sys_flag=COMMIT_AND_WAIT, commit_offset=10, hold_ms=0)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "3")
            async with speaking(broker) as tool:
                await commit(tool, 6)
                assert await committed(tool) == 3, "not while a reset is on its way"
                assert (await other.pull("t", 3)).code == 0
                await commit(tool, 6)
                assert await committed(tool) == 6, "an operator may decide anew"

    asyncio.run(main())


@on_broker()
async def test_what_cannot_be_reset(broker: Broker, client: Speaker) -> None:
    await scene(client, [5])
    error = ResponseCode.SYSTEM_ERROR
    await refused(client, header(topic="nowhere"), ResponseCode.TOPIC_NOT_EXIST, "nowhere")
    await refused(client, header(group="nobody"), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "nobody")
    await refused(client, header(queue_id=7), error, "no queue 7")
    await refused(client, header(queue_id=-3), error, "no queue -3")
    await refused(client, header(queue_id=0, offset=6), error, "[0-5]")
    await refused(client, header(queue_id=0, offset=-7), error, "[0-5]")
    await refused(client, header(offset=3), error, "queueId")
    assert not broker.pending_resets.is_pending("g", "t")
    assert broker.offsets.get("g", "t", 0) is None


@on_broker()
async def test_a_reset_goes_with_its_topic_or_group(broker: Broker, client: Speaker) -> None:
    await scene(client, [5])
    await reset(client, timestamp=0)
    await ok(client, DeleteGroup(group="g", clean_offset=True))
    assert not broker.pending_resets.is_pending("g", "t")
    await beat(client, "c", consumers={"g": ["t"]})
    await reset(client, timestamp=0)
    await ok(client, DeleteTopic(topic="t"))
    assert not broker.pending_resets.is_pending("g", "t")


def test_a_reset_survives_a_restart_and_is_told_only_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            await scene(client, [9, 9])
            await reset(client, timestamp=0)
            assert (await client.pull("t", 9, 1)).code == ResponseCode.PULL_OFFSET_MOVED
            assert (await client.pull("t", 0, 1)).code == 0
        async with running(tmp_path) as broker, speaking(broker) as client:
            await beat(client, "c", consumers={"g": ["t"]})
            await commit(client, 9)
            assert await committed(client) == 0
            answer = await client.pull("t", 9)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
            assert (await client.pull("t", 9, 1)).code == ResponseCode.PULL_NOT_FOUND, "this one was there before"
            assert (await client.pull("t", 0)).code == 0
        async with running(tmp_path) as broker:
            assert not broker.pending_resets.is_pending("g", "t")

    asyncio.run(main())


def test_queue_names_in_the_answer() -> None:
    body = ResetOffset({queue("t", 0): 5})
    assert body.encode() == b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:5}}'


# -- left to the clients -----------------------------------------------------------------------------------------------------


def of_language(frame: Frame, language: Language, version: int = VERSION) -> Frame:
    frame.language, frame.version = language, version
    return frame


async def member(client: Speaker, language: Language, version: int = VERSION) -> asyncio.Queue[Frame]:
    """Join group g; what the broker asks of it."""
    asked: asyncio.Queue[Frame] = asyncio.Queue()
    client.channel._on_request = lambda channel, frame: asked.put_nowait(frame)
    beat_ = HeartbeatData(
        client_id=language.name, consumers=[ConsumerData(group="g", subscriptions=[SubscriptionData(topic="t")])]
    )
    answer = await client.channel.request(of_language(request(HeartBeat(), beat_.encode()), language, version))
    assert answer.code == 0
    return asked


async def told(asked: asyncio.Queue[Frame]) -> Frame:
    while True:
        frame = await asyncio.wait_for(asked.get(), 10)
        if frame.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            return frame


@on_broker(reset_on_server=False)
async def test_with_server_side_resets_off_the_clients_are_told(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t", 2)
    await fill(client, "t", [5, 3])
    await ok(client, UpdateGroup(), SubscriptionGroupConfig(name="g").encode())
    await refused(client, header(timestamp=0), ResponseCode.CONSUMER_NOT_ONLINE, "not online", "Group: g")
    await commit(client, 4)
    async with speaking(broker) as java, speaking(broker) as cpp:
        heard = [await member(java, Language.JAVA), await member(cpp, Language.CPP)]
        assert await reset(client, timestamp=0) == {0: 0, 1: 0}
        frames = [await told(asked) for asked in heard]
        for frame in frames:
            assert frame.is_oneway
            assert (frame.ext["topic"], frame.ext["group"], frame.ext["timestamp"]) == ("t", "g", "0")
            assert ResetOffset.decode(frame.body).offsets == {queue("t", 0): 0, queue("t", 1): 0}
        assert [frame.body[:16] for frame in frames] == [b'{"offsetTable":{', b'{"offsetTable":['], "C++ reads a list"
        assert await committed(client) == 4, "it is for the clients to commit"
        assert not broker.pending_resets.is_pending("g", "t")
        await ok(java, UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=0, commit_offset=1))
        assert await committed(client) == 1, "and they may go back"
        async with speaking(broker) as old:
            await member(old, Language.JAVA, version=27)
            await refused(client, header(timestamp=0), ResponseCode.SYSTEM_ERROR, "version=27")


# -- clones ----------------------------------------------------------------------------------------------------------------


async def commit_all(client: Speaker, group: str, topic: str, offsets: list[int]) -> None:
    await make_groups(client, group)
    for queue_id, offset in enumerate(offsets):
        await ok(
            client, UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)
        )


def test_a_cloned_group_stands_where_the_other_one_is_also_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            for topic in ("t", "u", "%RETRY%source"):
                await make_topic(client, topic, 2)
                await fill(client, topic, [5, 5])
            await commit_all(client, "source", "t", [3, 4])
            await commit_all(client, "source", "u", [1, 2])
            await commit_all(client, "source", "%RETRY%source", [1, 1])
            await commit_all(client, "ahead", "t", [5, 5])
            await ok(client, CloneGroupOffset(source_group="source", target_group="ahead", topic="t"))
            await ok(client, CloneGroupOffset(source_group="source", target_group="all"))
        async with running(tmp_path) as broker:
            assert broker.offsets.queues("ahead", "t") == {0: 3, 1: 4}
            assert broker.offsets.queues("ahead", "u") == {}
            assert broker.offsets.queues("all", "u") == {0: 1, 1: 2}
            assert broker.offsets.topics_of("all") == {"t", "u"}

    asyncio.run(main())


@on_broker(auto_create_group=False)
async def test_what_cannot_be_cloned(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    await ok(client, UpdateGroup(), SubscriptionGroupConfig(name="source").encode())
    unknown = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    for source, target, topic, code, text in (
        ("source", "source", "t", ResponseCode.INVALID_PARAMETER, "itself"),
        ("source", "a b", "t", ResponseCode.INVALID_PARAMETER, "not allowed"),
        ("nobody", "source", "t", unknown, "nobody"),
        ("source", "nobody", "t", unknown, "nobody"),
        ("source", "TOOLS_CONSUMER", "nowhere", ResponseCode.TOPIC_NOT_EXIST, "nowhere"),
    ):
        wanted = CloneGroupOffset(source_group=source, target_group=target, topic=topic)
        await refused(client, wanted, code, text)


@on_broker()
async def test_a_clone_moves_consumers_that_are_connected(broker: Broker, client: Speaker) -> None:
    await scene(client, [9])
    await commit(client, 9)
    await commit_all(client, "source", "t", [2])
    parked = asyncio.ensure_future(client.pull("t", 9, sys_flag=2, hold_ms=60_000))
    await eventually(lambda: broker.pulls.waiting.count)
    await ok(client, CloneGroupOffset(source_group="source", target_group="g", topic="t"))
    answer = await asyncio.wait_for(parked, 30)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")
    await commit(client, 9)
    assert await committed(client) == 2, "it was on its way while it was told"


# -- the broker's own --------------------------------------------------------------------------------------------------------


@on_broker()
async def test_nobody_moves_the_brokers_own_group(broker: Broker, client: Speaker) -> None:
    await scene(client, [5])
    await commit(client, 3)
    own, text = "CID_RMQ_SYS_TRANS", "are the broker's own"
    for asked in (
        UpdateConsumerOffset(consumer_group=own, topic="t", queue_id=0, commit_offset=5),
        header(group=own, timestamp=0),
        CloneGroupOffset(source_group="g", target_group=own, topic="t", offline=True),
    ):
        await refused(client, asked, ResponseCode.NO_PERMISSION, text)
    await client.pull("t", 0, group=own, sys_flag=4 | COMMIT_AND_WAIT, subscription="*", commit_offset=5)
    assert broker.offsets.get(own, "t", 0) is None
    assert await committed(client) == 3


@on_broker()
async def test_a_reset_is_one_group_of_records(broker: Broker, client: Speaker) -> None:
    await scene(client, [5])
    await commit(client, 4)
    groups: list[Any] = []
    append_group = broker.own_records.append_group

    def spy(drafts: Any, changes: Any = (), *, own: bool = False) -> Any:
        if not groups:
            groups.append([kind for kind, _change in changes])
            raise NotAvailable("for a test")
        return append_group(drafts, changes, own=own)

    broker.own_records.append_group = spy  # type: ignore[method-assign]
    await refused(client, header(queue_id=0, offset=2), ResponseCode.SERVICE_NOT_AVAILABLE, "for a test")
    assert groups == [["reset", "offsets-reset"]]
    assert (await committed(client), broker.pending_resets.is_pending("g", "t")) == (4, False), "neither of both"
    assert await reset(client, queue_id=0, offset=2) == {0: 2}
    assert broker.pending_resets.is_pending("g", "t")
