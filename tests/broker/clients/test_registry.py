"""Who is connected: heartbeats, groups, notices to their members, and what is forgotten when."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kappamq.broker.clients.registry import GROUPS_PER_CONNECTION_MAX, SUBSCRIPTIONS_MAX, Clients, tell_members
from kappamq.broker.events import MembersChanged, Subscribed
from kappamq.config.broker import BrokerConfig
from kappamq.errors import InvalidParameter
from kappamq.events import Events
from kappamq.protocol.bodies.clients import ConsumerData, HeartbeatData, MessageModel, ProducerData, SubscriptionData
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import decode

EXPIRY_S, GROUP_EXPIRY_S = 120.0, 600.0


class Peer:
    """A connection that keeps what it is sent."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def notices(self) -> list[str]:
        """The groups whose change it was told since the last time."""
        frames = [decode(data) for data in self.sent]
        self.sent.clear()
        assert all(frame.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and frame.is_oneway for frame in frames)
        return [frame.ext["consumerGroup"] for frame in frames]


def make(events: Events | None = None, quiet: str = "") -> Clients:
    """Members of all groups but `quiet` are told at once."""

    def tell(event: MembersChanged) -> None:
        if event.group.name != quiet:
            tell_members(event.group)

    events = events or Events()
    events.on(MembersChanged, tell)
    config = BrokerConfig(client_expiry_ms=int(EXPIRY_S * 1000), group_expiry_ms=int(GROUP_EXPIRY_S * 1000))
    return Clients(config, events)


def beat(
    clients: Clients,
    peer: Any,
    client_id: str = "c",
    consumers: dict[str, list[SubscriptionData]] | None = None,
    producers: tuple[str, ...] = (),
    now: float = 0.0,
    model: MessageModel = MessageModel.CLUSTERING,
    **changes: Any,
) -> None:
    data = HeartbeatData(
        client_id=client_id,
        producers=[ProducerData(group) for group in producers],
        consumers=[
            ConsumerData(group=group, subscriptions=subscriptions, message_model=model)
            for group, subscriptions in (consumers or {}).items()
        ],
        **changes,
    )
    clients.heartbeat(peer, data, 1, 2, now)


def topic(name: str, version: int = 0, expression: str = "*") -> SubscriptionData:
    return SubscriptionData(topic=name, version=version, expression=expression)


def test_members_are_told_when_one_comes_and_when_one_goes() -> None:
    clients, one, two = make(), Peer(), Peer()
    beat(clients, one, "c1", {"g": [topic("t")]})
    assert one.notices() == ["g"]
    beat(clients, one, "c1", {"g": [topic("t")]})
    assert one.notices() == [], "nothing has changed"
    beat(clients, two, "c2", {"g": [topic("t")]})
    assert (one.notices(), two.notices()) == (["g"], ["g"])
    assert clients.consumers["g"].client_ids == ["c1", "c2"]
    clients.lost(two, now=1.0)  # type: ignore[arg-type]
    assert (one.notices(), two.notices()) == (["g"], [])
    clients.unregister(one, None, "g", now=2.0)  # type: ignore[arg-type]
    assert one.notices() == []
    assert clients.consumers["g"].members == {}


def test_a_changed_set_of_topics_is_told_and_a_newer_filter_is_not() -> None:
    clients, peer = make(), Peer()
    beat(clients, peer, consumers={"g": [topic("t")]})
    peer.notices()
    beat(clients, peer, consumers={"g": [topic("t", 1, "a")]})
    assert peer.notices() == []
    beat(clients, peer, consumers={"g": [topic("t", 1, "a"), topic("u")]})
    assert peer.notices() == ["g"]
    beat(clients, peer, consumers={"g": [topic("u")]})
    assert peer.notices() == ["g"]


def test_nobody_is_told_in_broadcasting_or_where_it_is_not_wanted() -> None:
    clients, one, two = make(quiet="quiet"), Peer(), Peer()
    for peer in (one, two):
        beat(clients, peer, peer.name, {"g": [topic("t")]}, model=MessageModel.BROADCASTING)
        beat(clients, peer, peer.name, {"quiet": [topic("t")]})
    clients.lost(two, now=0.0)  # type: ignore[arg-type]
    assert one.notices() == []


def test_members_that_subscribe_differently_are_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "kappamq.broker.clients.registry"]

    clients, one, two = make(), Peer(), Peer()
    for _ in range(3):
        beat(clients, one, "c1", {"g": [topic("t", 1, "a")], "h": [topic("t")]})
        beat(clients, two, "c2", {"g": [topic("t", 2, "b")], "h": [topic("t")]})
    (warning,) = told()
    for text in ("group g", "c2 wants 'b' of t", "c1 wants 'a' of t", "lost"):
        assert text in warning
    assert list(clients.conflicts()) == [("g", ["c1 wants 'a' of t but c2 wants 'b' of t"])]
    beat(clients, two, "c2", {"g": []}, fingerprint=7, without_subscriptions=True)
    assert len(told()) == 1, "it says nothing new"
    clients.lost(two, now=0.0)  # type: ignore[arg-type]
    assert list(clients.conflicts()) == []


def test_the_newest_subscription_counts() -> None:
    events = Events()
    clients, peer = make(events), Peer()
    heard: list[tuple[str, str | None, str]] = []

    def hear(event: Subscribed) -> None:
        heard.append((event.group, event.subscription and event.subscription.expression, event.topic))

    events.on(Subscribed, hear)
    beat(clients, peer, consumers={"g": [topic("t", 5, "a")]})
    beat(clients, peer, consumers={"g": [topic("t", 5, "same version")]})
    beat(clients, peer, consumers={"g": [topic("t", 4, "older")]})
    assert clients.consumers["g"].subscriptions["t"].expression == "a"
    beat(clients, peer, consumers={"g": [topic("t", 6, "b")]})
    beat(clients, peer, consumers={"g": []})
    assert heard == [("g", "a", "t"), ("g", "b", "t"), ("g", None, "t")]
    assert clients.consumers["g"].subscriptions == {}


def test_a_topic_stays_while_another_member_may_want_it() -> None:
    clients, one, two = make(), Peer(), Peer()
    beat(clients, one, "c1", {"g": [topic("t"), topic("u")]})
    beat(clients, two, "c2", {"g": [topic("t")]})
    assert set(clients.consumers["g"].subscriptions) == {"t", "u"}
    clients.lost(one, now=0.0)  # type: ignore[arg-type]
    beat(clients, two, "c2", {"g": [topic("t")]})
    assert set(clients.consumers["g"].subscriptions) == {"t"}


def test_topics_that_nobody_names_any_more_go_however_many_members_there_are() -> None:
    clients, one, two = make(), Peer(), Peer()
    beat(clients, one, "c1", {"g": [topic("t")]})
    for number in range(50):
        beat(clients, two, "c2", {"g": [topic("t"), topic(f"u{number}")]})
        assert set(clients.consumers["g"].subscriptions) == {"t", f"u{number}"}
    beat(clients, two, "c2", {"g": []}, fingerprint=1, without_subscriptions=True)
    beat(clients, one, "c1", {"g": [topic("t"), topic("v")]})
    assert set(clients.consumers["g"].subscriptions) == {"t", "u49", "v"}, "a short heartbeat takes nothing back"


def test_there_is_an_end_to_what_a_client_may_name() -> None:
    clients, peer = make(), Peer()
    many = tuple(f"p{number}" for number in range(GROUPS_PER_CONNECTION_MAX))
    beat(clients, peer, producers=many)
    beat(clients, peer, producers=many)
    with pytest.raises(InvalidParameter, match="1001 groups"):
        beat(clients, peer, producers=("one more",))
    with pytest.raises(InvalidParameter, match="255 characters"):
        beat(clients, Peer(), producers=("x" * 256,))
    topics = [topic(f"t{number}") for number in range(SUBSCRIPTIONS_MAX)]
    beat(clients, peer, consumers={"g": topics})
    with pytest.raises(InvalidParameter, match="10001 topics"):
        beat(clients, peer, consumers={"g": [topic("one more")]}, producers=())
    assert len(clients.producers) == GROUPS_PER_CONNECTION_MAX
    assert len(clients.consumers["g"].subscriptions) == SUBSCRIPTIONS_MAX


def test_another_message_model_is_judged_anew() -> None:
    events = Events()
    clients, peer = make(events), Peer()
    heard: list[tuple[str, bool]] = []
    events.on(Subscribed, lambda event: heard.append((event.topic, clients.is_broadcasting(event.group))))
    beat(clients, peer, consumers={"g": [topic("t")]})
    beat(clients, peer, consumers={"g": [topic("t")]}, model=MessageModel.BROADCASTING)
    beat(clients, peer, consumers={"g": [topic("t")]}, model=MessageModel.BROADCASTING)
    assert heard == [("t", False), ("t", True)]
    assert not clients.is_broadcasting("unknown")


def test_a_short_heartbeat_leaves_subscriptions_alone() -> None:
    clients, peer = make(), Peer()
    beat(clients, peer, consumers={"g": [topic("t")]})
    beat(clients, peer, consumers={"g": []}, now=50.0, fingerprint=77, without_subscriptions=True)
    assert set(clients.consumers["g"].subscriptions) == {"t"}
    assert clients.expire(now=50.0 + EXPIRY_S) == [], "but it is a sign of life"
    beat(clients, peer, consumers={"g": []}, without_subscriptions=True)
    assert set(clients.consumers["g"].subscriptions) == set(), "only with a fingerprint it is a short one"


def test_who_is_silent_for_too_long_is_let_go() -> None:
    clients, one, two, three = make(), Peer("1"), Peer("2"), Peer("3")
    beat(clients, one, "c1", {"g": [topic("t")]}, producers=("p",), now=0.0)
    beat(clients, two, "c2", {"g": [topic("t")]}, now=10.0)
    beat(clients, three, "c3", producers=("p",), now=5.0)
    assert clients.expire(now=EXPIRY_S) == []
    assert clients.expire(now=EXPIRY_S + 1) == [one]
    assert set(clients.expire(now=EXPIRY_S + 11)) == {one, two, three}
    assert "c1" in clients.consumers["g"].client_ids, "until its connection is closed"


def test_an_empty_group_is_remembered_for_a_while() -> None:
    events = Events()
    clients, peer = make(events), Peer()
    gone: list[tuple[str, str]] = []
    beat(clients, peer, consumers={"g": [topic("t"), topic("u")]})
    events.on(Subscribed, lambda event: gone.append((event.group, event.topic)))
    clients.lost(peer, now=100.0)  # type: ignore[arg-type]
    assert [group.name for group in clients.subscribers("t")] == ["g"]
    clients.expire(now=100.0 + GROUP_EXPIRY_S)
    assert "g" in clients.consumers
    clients.expire(now=101.0 + GROUP_EXPIRY_S)
    assert clients.consumers == {}
    assert gone == [("g", "t"), ("g", "u")]


def test_members_are_found_by_name() -> None:
    clients, peer = make(), Peer()
    beat(clients, peer, "c1", {"g": [topic("t")]})
    found = clients.find("g", "c1")
    assert found is not None
    assert (found.connection, found.language, found.version) == (peer, 1, 2)
    assert clients.find("g", "c2") is None
    assert clients.find("other", "c1") is None
    assert list(clients.subscribers("other")) == []


@pytest.mark.parametrize("way", ["unregister", "lost"])
def test_a_connection_that_is_gone_leaves_nothing(way: str) -> None:
    clients, peer = make(), Peer()
    beat(clients, peer, consumers={"g": [topic("t")]}, producers=("p", "q"))
    if way == "unregister":
        for producer in ("p", "q", "unknown"):
            clients.unregister(peer, producer, None, now=0.0)  # type: ignore[arg-type]
        clients.unregister(peer, None, "g", now=0.0)  # type: ignore[arg-type]
        clients.unregister(peer, None, "unknown", now=0.0)  # type: ignore[arg-type]
    clients.lost(peer, now=0.0)  # type: ignore[arg-type]
    assert (clients.producers, clients.consumers["g"].members, clients._named) == ({}, {}, {})
    clients.lost(peer, now=0.0)  # type: ignore[arg-type]


class ClientsMachine(RuleBasedStateMachine):
    """Against a plain set of (connection, kind, group)."""

    peers = st.integers(0, 3)
    groups = st.sampled_from(["g1", "g2"])

    def __init__(self) -> None:
        super().__init__()
        self.clients = make()
        self.peers_made = [Peer(str(number)) for number in range(4)]
        self.now = 0.0
        self.seen: dict[tuple[int, str, str], float] = {}

    @rule(number=peers, consumes=st.sets(groups), produces=st.sets(groups))
    def heartbeat(self, number: int, consumes: set[str], produces: set[str]) -> None:
        subscriptions = {group: [topic("t")] for group in sorted(consumes)}
        beat(
            self.clients, self.peers_made[number], f"c{number}", subscriptions, tuple(sorted(produces)), self.now
        )  # fmt: skip
        self.seen |= {(number, "consumer", group): self.now for group in consumes}
        self.seen |= {(number, "producer", group): self.now for group in produces}

    @rule(number=peers, group=groups, kind=st.sampled_from(["producer", "consumer"]))
    def unregister(self, number: int, group: str, kind: str) -> None:
        names = (group, None) if kind == "producer" else (None, group)
        self.clients.unregister(self.peers_made[number], *names, self.now)  # type: ignore[arg-type]
        self.seen.pop((number, kind, group), None)

    @rule(number=peers)
    def lose(self, number: int) -> None:
        self.clients.lost(self.peers_made[number], self.now)  # type: ignore[arg-type]
        self.seen = {key: seen for key, seen in self.seen.items() if key[0] != number}

    @rule(seconds=st.sampled_from([1.0, EXPIRY_S / 2, EXPIRY_S, GROUP_EXPIRY_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def expire(self) -> None:
        stale = {self.peers_made[key[0]] for key, seen in self.seen.items() if self.now - seen > EXPIRY_S}
        found = self.clients.expire(self.now)
        assert set(found) == stale
        assert len(found) == len(stale)

    @invariant()
    def members_are_as_they_said(self) -> None:
        clients = self.clients
        found = {
            (int(peer.name), "producer", group)  # type: ignore[attr-defined]
            for group, members in clients.producers.items()
            for peer in members
        } | {
            (int(peer.name), "consumer", group.name)  # type: ignore[attr-defined]
            for group in clients.consumers.values()
            for peer in group.members
        }
        assert found == set(self.seen)
        assert all(clients.producers.values()), "a producer group without members is forgotten at once"


TestClients = ClientsMachine.TestCase
TestClients.settings = settings(max_examples=50, stateful_step_count=30)


@pytest.mark.parametrize("character", ["\n", "\x1b", "\r", "\u2028"])
def test_a_client_id_with_control_characters_is_refused(character: str) -> None:
    clients = make()
    with pytest.raises(InvalidParameter, match="control characters") as caught:
        beat(clients, Peer(), f"a{character}2026-01-01 ERROR forged", {"g": []}, ("p",))
    assert str(caught.value).isprintable()
    assert (clients.consumers, clients.producers) == ({}, {})
