"""Subscriptions by SQL: checked before a consumer begins, obeyed by pulls, and no trouble for anybody else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.pulling.filtering import KEPT_CHARACTERS_MAX, Filtering
from kappamq.clock import VirtualClock
from kappamq.config.broker import BrokerConfig
from kappamq.errors import SubscriptionInvalid
from kappamq.filters import LENGTH_MAX
from kappamq.protocol.bodies.clients import CheckClientBody, ConsumerData, HeartbeatData, SubscriptionData
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import UpdateBrokerConfig
from kappamq.protocol.headers.client import CheckClientConfig, HeartBeat
from kappamq.protocol.records.record import iter_records
from tests.broker.operating import make_topic, on_broker
from tests.broker.running import MODES, Speaker, run, running, speaking
from tests.waiting import eventually_async as eventually

BY_SQL = {"sys_flag": 4, "expression_type": "SQL92"}

LONG = 900 << 10  # a request with it is not too large as such (list_bytes_max)


def condition(topic: str, expression: str, version: int = 1, kind: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(topic=topic, expression=expression, expression_type=kind, version=version)


async def beat(client: Speaker, group: str, *subscriptions: SubscriptionData) -> None:
    data = HeartbeatData(client_id="c1", consumers=[ConsumerData(group=group, subscriptions=list(subscriptions))])
    assert (await client.ask(HeartBeat(), data.encode())).code == 0


async def check(client: Speaker, expression: str, kind: str = "SQL92") -> Frame:
    body = CheckClientBody(client_id="c1", group="g", subscription=condition("t", expression, kind=kind))
    return await client.ask(CheckClientConfig(), body.encode())


async def send(client: Speaker, count: int, topic: str = "t", text: str = "n\x01{}") -> None:
    for number in range(count):
        answer = await client.send(topic, b"%d" % number, properties=f"UNIQ_KEY\x01U{number}\x02" + text.format(number))
        assert answer.code == 0, answer.remark


def bodies(answer: Frame) -> list[int]:
    assert answer.code == 0, (answer.code, answer.remark)
    return [int(record.body) for record in iter_records(answer.body)]


# -- checked at subscribe --------------------------------------------------------------------------------------------------


@on_broker()
async def test_check(broker: Broker, client: Speaker) -> None:
    assert (await check(client, "a > 1 AND b = 'x'")).code == 0
    assert (await check(client, "x || y", "TAG")).code == 0
    assert (await client.ask(CheckClientConfig(), CheckClientBody(client_id="c1").encode())).code == 0
    answer = await check(client, "a > 1 AND b LIKE 'x%'")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED == 23
    assert answer.remark == (
        "the SQL92 filter is wrong at column 13: the expression is complete, but LIKE follows; here: a > 1 AND b >>>LIKE 'x%'"
    )
    answer = await check(client, "//a", "XPATH")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "The broker does not support consumer to filter message by XPATH: it knows TAG and SQL92"


@on_broker()
async def test_almost_a_megabyte_is_refused_and_nobody_notices(broker: Broker, client: Speaker) -> None:
    await send(client, 3)
    for expression in ("a" * LONG, "a = '" + "x" * LONG + "'", "(" * LONG):
        async with speaking(broker) as rude:
            checks = [asyncio.create_task(check(rude, expression)) for _ in range(3)]
            assert (await client.pull("t", 0, explicit=True)).code == 0
            for answer in await asyncio.gather(*checks):
                assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
                assert f"it has {len(expression)} characters, {LENGTH_MAX} at most" in (answer.remark or "")
                assert len(answer.remark or "") < 300
            # In a pull it stands in the header, which has its own limit.
            answer = await rude.pull("t", 0, **BY_SQL, subscription=expression[:60_000])
            assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert not broker.filtering._compiled._kept, "nothing of it is kept"
    deep = "(" * 5000 + "a = 1" + ")" * 5000
    answer = await check(client, deep)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "more than 100 conditions stand one in another" in (answer.remark or "")


@on_broker()
async def test_a_long_one_is_compiled_aside(broker: Broker, client: Speaker) -> None:
    await send(client, 10)
    expression = " OR ".join(f"n = {number}" for number in range(5, 300))
    assert len(expression) > 2000
    assert (await check(client, expression)).code == 0
    assert not broker.filtering.takes_long(SubscriptionData(expression=expression, expression_type="SQL92"))
    other = expression + " OR n = 1"
    assert broker.filtering.takes_long(SubscriptionData(expression=other, expression_type="SQL92"))
    assert bodies(await client.pull("t", 0, **BY_SQL, subscription=other)) == [1, 5, 6], (
        "few at a time: each takes long"
    )
    wrong = expression + " OR n = NULL"
    for answer in (await check(client, wrong), await client.pull("t", 0, **BY_SQL, subscription=wrong)):
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert "ask with IS NULL" in (answer.remark or "")


@on_broker(sql_filters=False)
async def test_switched_off(broker: Broker, client: Speaker) -> None:
    await send(client, 3)
    await beat(client, "g", condition("t", "n > 1"))
    for answer in (
        await check(client, "n > 1"),
        await client.pull("t", 0),
        await client.pull("t", 0, **BY_SQL, subscription="n > 1"),
    ):
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == (
            "The broker does not support consumer to filter message by SQL92: enablePropertyFilter is off"
        )
    assert (await check(client, "x", "TAG")).code == 0
    assert (await client.ask(UpdateBrokerConfig(), b"enablePropertyFilter=true\n")).code == 0
    assert bodies(await client.pull("t", 0)) == [2], "and on, while the broker runs"


# -- pulls -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("binary", [False, True])
def test_pulls(tmp_path: Path, mode: str, binary: bool) -> None:
    """As the heartbeat said, or as the pull says itself; from memory, and from disk after a restart."""

    async def looks(client: Speaker) -> None:
        await beat(client, "g", condition("t", "n > 10 AND n < 15 OR n = 50"))
        answer = await client.pull("t", 0)
        assert bodies(answer) == [11, 12, 13, 14, 50]
        assert (answer.ext["nextBeginOffset"], answer.ext["minOffset"], answer.ext["maxOffset"]) == ("100", "0", "100")
        assert bodies(await client.pull("t", 12, count_max=2)) == [12, 13]
        assert bodies(await client.pull("t", 0, group="new", **BY_SQL, subscription="n IN ('3','7')")) == [3, 7]
        answer = await client.pull("t", 60)
        assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
        assert answer.ext["nextBeginOffset"] == "100"
        assert (await client.pull("t", 100)).code == ResponseCode.PULL_NOT_FOUND
        assert (await client.pull("t", 101)).code == ResponseCode.PULL_OFFSET_MOVED

    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker, binary) as client:
            await send(client, 100)
            await looks(client)
        async with running(tmp_path, mode) as broker, speaking(broker, binary) as client:
            await looks(client)

    run(test())


@on_broker()
async def test_a_bad_condition_in_a_heartbeat(broker: Broker, client: Speaker) -> None:
    """It costs the group its pulls of that topic, with the reason, and nothing else."""
    await send(client, 3)
    await send(client, 3, "other")
    await beat(client, "g", condition("t", "n >"), condition("other", "*", kind="TAG"))
    answer = await client.pull("t", 0)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "wrong at column 4" in (answer.remark or "")
    assert bodies(await client.pull("other", 0)) == [0, 1, 2]
    await beat(client, "g", condition("t", "n > 0", version=2))
    assert bodies(await client.pull("t", 0, subscription_version=2)) == [1, 2], "corrected"


@on_broker()
async def test_from_sql_to_tags_and_back(broker: Broker, client: Speaker) -> None:
    await send(client, 4, text="n\x01{0}\x02TAGS\x01t{0}")
    for version, (expression, kind, expected) in enumerate(
        [
            ("n = 1", "SQL92", [1]),
            ("t2 || t3", "TAG", [2, 3]),
            ("*", "TAG", [0, 1, 2, 3]),
            ("TAGS = 't0'", "SQL92", [0]),
        ]
    ):
        await beat(client, "g", condition("t", expression, version, kind))
        for _ in range(2):  # the second time the kernel may know
            assert bodies(await client.pull("t", 0, subscription_version=version)) == expected


@on_broker()
async def test_waiting_for_what_is_wanted(broker: Broker, client: Speaker) -> None:
    """Messages that are not wanted do not wake the consumer, but it does not look at them twice either."""
    await make_topic(client, "t")
    await beat(client, "g", condition("t", "n = 7"))
    waiting = asyncio.create_task(client.pull("t", 0, sys_flag=2, hold_ms=8000))
    await eventually(lambda: broker.pulls.waiting.count == 1)
    async with speaking(broker) as sender:
        await send(sender, 7)
        parked = broker.pulls.waiting
        assert parked.count == 1
        request = next(request for queue in parked._table._queues.values() for request, _owner in queue.values())
        assert request.offset == 7
        assert not waiting.done()
        await send(sender, 8)
    answer = await waiting
    assert bodies(answer) == [7]
    assert answer.ext["nextBeginOffset"] == "15"


@on_broker()
async def test_whoever_waits_while_its_group_changes_its_mind(broker: Broker, client: Speaker) -> None:
    """It pulls again at once: what comes from now on is judged by what is wanted now."""
    await make_topic(client, "t")
    await beat(client, "g", condition("t", "n = 1"))
    await beat(client, "other", condition("t", "n = 2"))
    waiting = asyncio.create_task(client.pull("t", 0, sys_flag=2, hold_ms=8000))
    beside = asyncio.create_task(client.pull("t", 0, sys_flag=2, hold_ms=8000, group="other"))
    await eventually(lambda: broker.pulls.waiting.count == 2)
    await beat(client, "g", condition("t", "n = 1", version=2))
    assert broker.pulls.waiting.count == 2, "still the same condition"
    await beat(client, "g", condition("t", "x || y", version=3, kind="TAG"))
    answer = await waiting
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
    assert broker.pulls.waiting.count == 1
    await send(client, 3)
    assert bodies(await beside) == [2]


def test_waiting_in_vain_moves_on(tmp_path: Path) -> None:
    async def test() -> None:
        clock = VirtualClock()
        async with running(tmp_path, clock=clock, net={"idle_s": 0}) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            await beat(client, "g", condition("t", "n = 7"))
            waiting = asyncio.create_task(client.pull("t", 0, sys_flag=2, hold_ms=5000))
            await eventually(lambda: broker.pulls.waiting.count == 1)
            async with speaking(broker) as sender:
                await send(sender, 5)
            clock.advance(6)
            answer = await waiting
            assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert answer.ext["nextBeginOffset"] == "5", "the consumer need not look at these again"

    run(test())


def test_cold_records_are_read_aside(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            await send(client, 300)
        async with running(tmp_path) as broker, speaking(broker) as client:
            await eventually(lambda: not broker.store.catching_up())
            broker.kernel.hot_from = broker.store.log.end
            seen, offset, pulls = [], 0, 0
            while offset < 300:
                answer = await client.pull("t", offset, **BY_SQL, subscription="n = 290 OR n = 5")
                seen += bodies(answer) if answer.code == 0 else []
                offset, pulls = int(answer.ext["nextBeginOffset"]), pulls + 1
            assert seen == [5, 290]
            assert pulls < 10

    run(test())


# -- messages that come again ----------------------------------------------------------------------------------------------


async def retried(client: Speaker) -> None:
    """In the retry topic of g: n = 0..3 of topic t, and one of another topic."""
    await beat(
        client, "g", condition("%RETRY%g", "*", kind="TAG"), condition("t", "n > 1"), condition("u", "*", kind="TAG")
    )
    await send(client, 4, "%RETRY%g", "n\x01{}\x02RETRY_TOPIC\x01t")
    await send(client, 1, "%RETRY%g", "n\x01{}\x02RETRY_TOPIC\x01u")


@on_broker()
async def test_what_comes_again_is_not_filtered(broker: Broker, client: Speaker) -> None:
    await retried(client)
    for _ in range(2):
        assert bodies(await client.pull("%RETRY%g", 0)) == [0, 1, 2, 3, 0]


@on_broker(sql_filters_retries=True)
async def test_unless_it_is_asked_for(broker: Broker, client: Speaker) -> None:
    await retried(client)
    for _ in range(2):
        assert bodies(await client.pull("%RETRY%g", 0)) == [2, 3, 0]
    await beat(client, "h", condition("%RETRY%h", "*", kind="TAG"), condition("t", "n >"))
    await send(client, 1, "%RETRY%h", "n\x01{}\x02RETRY_TOPIC\x01t")
    assert bodies(await client.pull("%RETRY%h", 0, group="h")) == [0], "a bad condition hides nothing"


# -- compiled once ---------------------------------------------------------------------------------------------------------


async def _no_worker(*arguments: Any) -> None:
    raise AssertionError("not needed here")


def test_compiled_once_and_kept_within_limits() -> None:
    filtering = Filtering(BrokerConfig(), _no_worker)
    assert filtering.sql("a = 1") is filtering.sql("a = 1")
    texts = [f"a = '{number:0400}'" for number in range(KEPT_CHARACTERS_MAX // 400 + 10)]
    for text in texts:
        filtering.sql(text)
        filtering.sql("a = 1")
    assert filtering._compiled._characters <= KEPT_CHARACTERS_MAX
    assert texts[0] not in filtering._compiled
    assert texts[-1] in filtering._compiled
    assert "a = 1" in filtering._compiled, "in use"


def test_bad_ones_are_remembered_too() -> None:
    filtering = Filtering(BrokerConfig(), _no_worker)
    for _ in range(2):
        with pytest.raises(SubscriptionInvalid, match="wrong at column 4"):
            filtering.sql("a >")
