from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kappamq.client.core.routes import ASK_AGAIN_S, PROVISIONAL_S, UNUSED_S, Route, Routes
from kappamq.clock import SystemClock, VirtualClock
from kappamq.errors import NoMaster, NoRoute, NotConnected, ProtocolError, TopicNotFound, UnknownTopic
from kappamq.message import MessageQueue
from kappamq.protocol.bodies.topics import BrokerData, QueueData, TopicRouteData
from tests.client.loop import on_loop


def data(*queues: QueueData, order: str | None = None, **addresses: dict[int, str]) -> TopicRouteData:
    brokers = [BrokerData("c", name, known) for name, known in addresses.items()]
    return TopicRouteData(queues=list(queues), brokers=brokers, order_conf=order)


ONE = data(QueueData("a", 2, 2, 6), a={0: "a:1"})


class Asked:
    """A name server that is a dict, and counts."""

    def __init__(self, clock: VirtualClock | SystemClock | None = None, /, **known: TopicRouteData) -> None:
        self.known = known
        self.asked: list[str] = []
        self.clock: Any = clock or VirtualClock()
        self.broken = False
        self.any_broker = True
        self.routes = Routes(
            self.ask,
            default_topic="TBW102",
            default_queues=4,
            now=self.clock.liveness,
            nameservers="ns:1",
            any_broker=self.has_broker,
        )

    async def has_broker(self) -> bool:
        return self.any_broker

    async def ask(self, topic: str) -> TopicRouteData:
        self.asked.append(topic)
        await asyncio.sleep(0)
        if self.broken:
            raise NotConnected("no name server answers")
        if topic not in self.known:
            raise TopicNotFound(topic)
        return self.known[topic]


def queue(broker: str, number: int) -> MessageQueue:
    return MessageQueue("tea", broker, number)


def test_queues_are_sorted_and_follow_permission_and_master() -> None:
    route = Route.of(
        "tea",
        data(
            QueueData("b", 2, 1, 6),
            QueueData("a", 1, 1, 4),  # read only
            QueueData("slaves", 1, 1, 6),  # no master: nothing to write to
            QueueData("w", 1, 1, 2),  # write only
            QueueData("gone", 1, 1, 6),  # no address at all
            a={0: "a:1"},
            b={0: "b:1", 1: "b:2"},
            slaves={1: "s:1"},
            w={0: "w:1"},
        ),
    )
    assert route.publish == (queue("b", 0), queue("w", 0))
    assert route.subscribe == (queue("a", 0), queue("b", 0), queue("b", 1), queue("slaves", 0))


@pytest.mark.parametrize(
    "answer",
    [
        data(QueueData("a", 1, 2_147_483_647, 6), a={0: "a:1"}),
        data(QueueData("a", 2_147_483_647, 1, 6), a={0: "a:1"}),
        data(QueueData("a", -1, 1, 6), a={0: "a:1"}),
        data(QueueData("a", 4, 4, 6), order="a:2000000000", a={0: "a:1"}),
        data(QueueData("a", 4, 4, 6), order="a:" + "9" * 5000, a={0: "a:1"}),
        data(*(QueueData(f"a{n}", 0, 65_536, 6) for n in range(5))),
        data(*(QueueData(f"a{n}", 65_536, 0, 6) for n in range(5)), **{f"a{n}": {0: "a:1"} for n in range(5)}),
        data(order=";".join(f"a{n}:65536" for n in range(5))),
    ],
)
@on_loop
async def test_more_queues_than_there_can_be_are_refused_before_they_are_made(answer: TopicRouteData) -> None:
    """One wrong registration would take gigabytes in every client."""
    server = Asked(tea=answer)
    with pytest.raises(ProtocolError, match="route of topic 'tea'"):
        await server.routes.find("tea")


@on_loop
async def test_a_route_that_went_wrong_keeps_no_other_topic_from_being_refreshed() -> None:
    server = Asked(bad=ONE, tea=ONE)
    for topic in ("bad", "tea"):
        await server.routes.find(topic)
    server.known["bad"] = data(QueueData("a", 1 << 31, 1, 6), a={0: "a:1"})
    server.known["tea"] = data(QueueData("a", 3, 3, 6), a={0: "a:1"})
    await server.routes.refresh_all()
    counts = {topic: len((await server.routes.find(topic)).publish) for topic in ("bad", "tea")}
    assert counts == {"bad": 2, "tea": 3}


def test_an_order_topic_has_the_queues_its_configuration_says() -> None:
    route = Route.of("tea", data(QueueData("a", 8, 8, 6), order="b:1;a:2;;broken", a={0: "a:1"}, b={0: "b:1"}))
    assert route.publish == (queue("a", 0), queue("a", 1), queue("b", 0))


def test_addresses_to_write_to_and_to_read_from() -> None:
    route = Route.of("tea", data(b={0: "master", 1: "one", 3: "three"}, s={2: "two"}))
    assert route.master("b") == "master"
    assert [route.reader("b", number) for number in range(5)] == ["master", "one", "three", "three", "master"]
    assert route.reader("s") == "two"
    with pytest.raises(NoRoute, match="no master"):
        route.master("s")
    with pytest.raises(NoRoute, match="no longer registered"):
        route.reader("x")


@on_loop
async def test_a_known_route_is_not_asked_again_and_many_who_ask_at_once_ask_once() -> None:
    server = Asked(tea=ONE)
    found = await asyncio.gather(*(server.routes.find("tea") for _ in range(10)))
    assert {route.publish for route in found} == {(queue("a", 0), queue("a", 1))}
    await server.routes.find("tea")
    assert server.asked == ["tea"]


@on_loop
async def test_failures_in_a_row_cause_one_question_in_a_while() -> None:
    server = Asked(tea=ONE)
    await server.routes.find("tea")
    loop = asyncio.get_running_loop()
    began = loop.time()
    many = [asyncio.ensure_future(server.routes.refresh("tea")) for _ in range(5)]
    await asyncio.sleep(0)
    server.clock.advance(ASK_AGAIN_S)
    await asyncio.gather(*many)
    assert loop.time() - began >= ASK_AGAIN_S * 0.9
    assert len(server.asked) == 2
    await server.routes.refresh("tea", at_once=True)
    assert len(server.asked) == 3


@on_loop
async def test_a_topic_that_vanished_is_forgotten_on_failure_but_not_by_the_regular_poll() -> None:
    server = Asked(tea=ONE)
    await server.routes.find("tea")
    del server.known["tea"]
    server.clock.advance(1)
    await server.routes.refresh_all()  # a name server that has just restarted knows nothing yet
    assert (await server.routes.find("tea")).publish
    assert await server.routes.refresh("tea", at_once=True) is None
    with pytest.raises(NoRoute, match=r"'tea'.*ns:1.*kappamq topic create tea"):
        await server.routes.find("tea")


@on_loop
async def test_the_old_route_stays_when_no_name_server_answers() -> None:
    server = Asked(tea=ONE)
    await server.routes.find("tea")
    server.broken = True
    server.clock.advance(1)
    with pytest.raises(NotConnected):
        await server.routes.refresh("tea")
    assert (await server.routes.find("tea")).publish


@on_loop
async def test_a_topic_that_does_not_exist_borrows_for_sending_only_and_briefly() -> None:
    server = Asked(TBW102=data(QueueData("a", 8, 8, 7), a={0: "a:1"}))
    borrowed = await server.routes.find_for_sending("tea")
    assert (borrowed.provisional, len(borrowed.publish)) == (True, 4)
    with pytest.raises(NoRoute):
        await server.routes.find("tea")
    asked = len(server.asked)
    await server.routes.find_for_sending("tea")
    assert len(server.asked) == asked
    server.known["tea"] = ONE
    server.clock.advance(PROVISIONAL_S)
    assert not (await server.routes.find_for_sending("tea")).provisional


@on_loop
async def test_nobody_creates_topics_says_how_to_create_one() -> None:
    with pytest.raises(NoRoute, match=r"none allows automatic topic creation.*kappamq topic create tea"):
        await Asked().routes.find_for_sending("tea")


@on_loop
async def test_a_topic_without_a_writable_queue_is_no_route_for_sending() -> None:
    server = Asked(tea=data(QueueData("a", 1, 1, 4), a={0: "a:1"}))
    with pytest.raises(NoRoute, match="is writable"):
        await server.routes.find_for_sending("tea")


@on_loop
async def test_topics_that_nobody_uses_are_not_polled_for_ever() -> None:
    server = Asked(tea=ONE, cake=ONE)
    await server.routes.find("tea")
    await server.routes.find("cake")
    server.clock.advance(UNUSED_S + 1)
    server.routes.keep("cake")
    await server.routes.refresh_all()
    assert [route.topic for route in server.routes.known] == ["cake"]
    assert server.asked == ["tea", "cake", "cake"]


@on_loop
async def test_what_can_be_done_about_an_unknown_topic() -> None:
    server = Asked()
    with pytest.raises(
        NoRoute, match=r"no broker has registered it with ns:1\. Create it with `kappamq topic create tea`"
    ):
        await server.routes.find("tea")
    with pytest.raises(
        NoRoute, match=r"It cannot be created either: the topic 'a/b' contains characters that are not allowed"
    ):
        await server.routes.find("a/b")


def test_without_any_broker_nobody_is_told_to_create_the_topic() -> None:
    async def test() -> None:
        asked = Asked()
        asked.any_broker = False
        for find in (asked.routes.find, asked.routes.find_for_sending):
            with pytest.raises(NoRoute, match="no broker is registered with ns:1") as raised:
                await find("tea")
            assert not isinstance(raised.value, UnknownTopic)

    asyncio.run(test())


GROUP = data(QueueData("b", 2, 2, 6), QueueData("read", 2, 0, 4), b={0: "h:1", 1: "h:2"}, read={1: "h:3"})


def test_a_route_follows_its_new_master() -> None:
    route = Route.of("tea", GROUP)
    assert route.headless
    assert route.publish == (queue("b", 0), queue("b", 1))
    moved = route.with_master("b", "h:2")
    assert moved.addresses["b"] == {0: "h:2"}, "what the old master is now nobody knows"
    assert moved.publish == route.publish
    gone = Route.of("tea", data(QueueData("b", 2, 2, 6), b={1: "h:2", 2: "h:4"}))
    assert gone.publish == ()
    assert gone.writable == (queue("b", 0), queue("b", 1))
    assert gone.with_master("b", "h:4").publish == gone.writable
    assert gone.with_master("b", "h:9").addresses["b"] == {0: "h:9", 1: "h:2", 2: "h:4"}
    with pytest.raises(NoMaster):
        gone.master("b")


@on_loop
async def test_a_lost_connection_makes_the_routes_of_its_broker_doubtful() -> None:
    server = Asked(tea=ONE, coffee=data(QueueData("z", 1, 1, 6), z={0: "z:1"}))
    for topic in ("tea", "coffee"):
        await server.routes.find(topic)
    server.routes.lost("a:1")
    assert server.routes.ready("tea") is None
    assert server.routes.ready("coffee") is not None
    await asyncio.gather(*(server.routes.find_for_sending("tea") for _ in range(5)))
    assert server.asked == ["tea", "coffee", "tea"], "looked up once, by whoever comes first"
    assert server.routes.ready("tea") is not None
    for make_worse in (lambda: setattr(server, "broken", True), lambda: server.known.clear()):
        make_worse()
        server.routes.lost("a:1")
        assert (await server.routes.find("tea")).addresses == {"a": {0: "a:1"}}, "what is known is better than nothing"
        assert await server.routes.find_master("tea", "a") == "a:1"


@on_loop
async def test_routes_without_a_master_are_looked_up_often_and_then_less_often() -> None:
    server = Asked(tea=data(QueueData("b", 1, 1, 6), b={1: "h:2"}), coffee=ONE)
    server.clock.advance(1000)
    for topic in ("tea", "coffee"):
        await server.routes.find(topic)
    server.asked.clear()
    for _ in range(10):
        server.clock.advance(1)
        await server.routes.refresh_headless()
    assert server.asked == ["tea"] * 10
    server.clock.advance(300)
    server.asked.clear()
    for _ in range(60):
        server.clock.advance(1)
        await server.routes.refresh_headless()
    assert 2 <= len(server.asked) <= 3
    server.known["tea"] = data(QueueData("b", 1, 1, 6), b={0: "h:2"})
    server.clock.advance(31)
    await server.routes.refresh_headless()
    server.asked.clear()
    server.clock.advance(31)
    await server.routes.refresh_headless()
    assert server.asked == []


@on_loop
async def test_a_topic_without_a_master_says_so() -> None:
    server = Asked(tea=data(QueueData("b", 1, 1, 6), b={1: "h:2"}), book=data(QueueData("b", 1, 1, 4), b={0: "h:2"}))
    with pytest.raises(NoMaster, match="no queue of topic 'tea' is writable at the moment: b has no master"):
        await server.routes.find_for_sending("tea")
    with pytest.raises(NoRoute, match="its brokers are read-only") as raised:
        await server.routes.find_for_sending("book")
    assert not isinstance(raised.value, NoMaster)
    assert server.routes.had_route("tea")
    server.clock.advance(60)
    assert not server.routes.had_route("tea")
