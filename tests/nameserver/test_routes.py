"""The route table: its rules one by one, then against a simple model under any sequence of events."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kappamq.errors import BrokerError
from kappamq.nameserver.routes import MinIdChange, RouteTable
from kappamq.protocol.bodies.all import ClusterInfo, DataVersion, QueueData, RegisterBrokerBody, TopicRouteData
from tests.nameserver.samples import body, header

MASTER, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911"


def addresses(route: TopicRouteData | None) -> dict[str, dict[int, str]]:
    return {} if route is None else {broker.broker_name: broker.addresses for broker in route.brokers}


def permissions(route: TopicRouteData | None) -> dict[str, int]:
    return {} if route is None else {queues.broker_name: queues.permission for queues in route.queues}


def counted(read: int = 4, write: int = 4) -> RegisterBrokerBody:
    found = body()
    found.topics.topics["T"].read_queues, found.topics.topics["T"].write_queues = read, write
    return found


def test_register_and_route() -> None:
    table: RouteTable[str] = RouteTable()
    assert table.register(header(), body(), "one", 0.0).new
    assert not table.register(header(), body(), "one", 1.0).new
    table.register(header("d", "10.0.0.4:1"), body(["T", "V"]), "two", 0.0)
    route = table.route("T")
    assert route is not None
    assert route.queues == [QueueData("b", 4, 4, 6), QueueData("d", 4, 4, 6)]
    assert addresses(route) == {"b": {0: MASTER}, "d": {0: "10.0.0.4:1"}}
    assert route.filter_servers == {}
    assert table.route("nothing") is None
    assert table.topics() == ["T", "U", "V"]
    assert table.cluster_info().clusters == {"c": {"b", "d"}}
    assert table.system_topics() == (["b", "c", "d"], MASTER)
    assert table.topics_of_cluster("c") == ["T", "U", "V"]
    assert table.topics_of_cluster("x") == []
    assert RouteTable[str]().system_topics() == ([], None)


def test_what_was_handed_out_is_not_changed_later() -> None:
    table: RouteTable[str] = RouteTable()
    table.register(header(), body(), "one", 0.0)
    route, info = table.route("T"), table.cluster_info()
    table.wipe_write("b")
    table.register(header(address=SLAVE, broker_id=1), body(), "two", 0.0)
    assert permissions(route) == {"b": 6}
    assert addresses(route) == {"b": {0: MASTER}}
    assert info.brokers["b"].addresses == {0: MASTER}


def test_slave_learns_its_master() -> None:
    table: RouteTable[str] = RouteTable()
    early = table.register(header(address=SLAVE, broker_id=1), body(), "slave", 0.0)
    assert (early.master_address, early.ha_address) == (None, None)
    assert table.route("T") is None, "a slave alone is not asked about topics"
    assert table.register(header(), body(), "master", 0.0).master_address is None
    found = table.register(header(address=SLAVE, broker_id=1), body(), "slave", 0.0)
    assert (found.master_address, found.ha_address) == (MASTER, MASTER + "2")
    assert addresses(table.route("T")) == {"b": {0: MASTER, 1: SLAVE}}
    assert table.members("c", "b").addresses == {0: MASTER, 1: SLAVE}
    assert table.members("x", "b").addresses == {}


def test_last_broker_takes_its_topics_along() -> None:
    table: RouteTable[str] = RouteTable()
    table.register(header(), body(), "master", 0.0)
    table.register(header(address=SLAVE, broker_id=1), body(), "slave", 0.0)
    assert table.unregister("c", MASTER, "master")
    assert addresses(table.route("T")) == {"b": {1: SLAVE}}
    assert permissions(table.route("T")) == {"b": 6}
    assert table.connection_lost("slave") == [SLAVE]
    assert table.route("T") is None
    assert table.topics() == []
    assert table.cluster_info() == ClusterInfo()


def test_stale_news_is_ignored() -> None:
    table: RouteTable[str] = RouteTable()
    table.register(header(), body(), "old connection", 0.0)
    table.register(header(), body(), "new connection", 1.0)
    assert not table.unregister("c", MASTER, "old connection")
    assert table.connection_lost("old connection") == []
    assert not table.unregister("other cluster", MASTER, "new connection")
    assert table.route("T") is not None
    assert table.unregister("c", MASTER, "new connection")
    assert not table.unregister("c", MASTER, "new connection")
    assert table.route("T") is None


def test_expiry() -> None:
    table: RouteTable[str] = RouteTable(expiry_ms=120_000)
    table.register(header(), body(), "one", 0.0)
    table.register(header("d", SLAVE, timeout_ms=10_000), body(), "two", 0.0)
    assert table.expire(10.0) == []
    assert table.expire(10.1) == [(SLAVE, "two")]
    assert table.heartbeat("c", MASTER, 100.0)
    assert not table.heartbeat("c", SLAVE, 100.0)
    assert table.expire(220.0) == []
    assert table.expire(220.1) == [(MASTER, "one")]
    assert table.topics() == []


def test_first_registration_with_one_topic_is_refused() -> None:
    table: RouteTable[str] = RouteTable()
    with pytest.raises(BrokerError, match=r"register broker failed: b at 10\.0\.0\.1:10911 is not registered yet"):
        table.register(header(), body(["T"]), "one", 0.0)
    assert table.cluster_info() == ClusterInfo()
    table.register(header(), body([]), "one", 0.0)
    table.register(header(), body(["T"], counter=1), "one", 0.0)
    assert table.topics() == ["T"]
    with pytest.raises(BrokerError, match="is not registered yet"):
        table.register(header(address=SLAVE, broker_id=1), body(["T"]), "two", 0.0)


def test_topics_change_only_with_the_version() -> None:
    table: RouteTable[str] = RouteTable()
    table.register(header(), body(), "one", 0.0)
    assert table.wipe_write("b") == 2
    table.register(header(), body(), "one", 0.0)
    assert permissions(table.route("T")) == {"b": 4}, "the same version says nothing new"
    table.register(header(), body(["T", "V"]), "one", 0.0)
    assert permissions(table.route("T")) == {"b": 4}
    assert permissions(table.route("V")) == {"b": 6}, "a topic that was missing is taken in any case"
    table.register(header(), body(counter=1), "one", 0.0)
    assert permissions(table.route("T")) == {"b": 6}
    assert table.topics() == ["T", "U", "V"], "topics that are not mentioned stay"


def test_topics_not_mentioned_go_if_wanted_but_not_after_an_increment() -> None:
    table: RouteTable[str] = RouteTable(delete_topics_on_registration=True)
    table.register(header(), body(["T", "U", "V"]), "one", 0.0)
    table.register(header(), body(["T"], counter=1), "one", 0.0)
    assert table.topics() == ["T", "U", "V"]
    table.register(header(), body(["T", "U"], counter=2), "one", 0.0)
    assert table.topics() == ["T", "U"]


def test_write_permission() -> None:
    table: RouteTable[str] = RouteTable()
    table.register(header(), body(permission=7), "one", 0.0)
    assert table.wipe_write("b") == 2
    assert permissions(table.route("T")) == {"b": 5}
    assert table.add_write("b") == 2
    assert permissions(table.route("T")) == {"b": 6}
    assert table.wipe_write("nobody") == table.add_write("nobody") == 0


def test_broker_changes_its_id() -> None:
    table: RouteTable[str] = RouteTable()
    table.register(header(broker_id=1), body(), "one", 0.0)
    table.register(header(broker_id=0), body(), "one", 0.0)
    assert table.members("c", "b").addresses == {0: MASTER}


def test_broker_changes_its_name_or_cluster() -> None:
    table: RouteTable[str] = RouteTable()
    table.register(header("b"), body(), "one", 0.0)
    table.register(header("new"), body(), "two", 0.0)
    assert addresses(table.route("T")) == {"new": {0: MASTER}}
    table.register(header("new", cluster="other"), body(), "three", 0.0)
    assert table.cluster_info().clusters == {"other": {"new"}}
    assert table.connection_lost("two") == table.connection_lost("one") == []
    with pytest.raises(BrokerError, match=r"broker name new is in use by 10\.0\.0\.1:10911 of cluster other"):
        table.register(header("new", SLAVE, cluster="c", broker_id=1), body(), "four", 0.0)


def test_another_address_takes_the_place_unless_it_is_older() -> None:
    table: RouteTable[str] = RouteTable()
    table.register(header(address=MASTER), body(state_version=5), "one", 0.0)
    with pytest.raises(BrokerError, match=f"{SLAVE} is not the master of b any more: {MASTER} is the master"):
        table.register(header(address=SLAVE), body(state_version=4), "two", 0.0)
    assert addresses(table.route("T")) == {"b": {0: MASTER}}
    assert table.connection_lost("two") == []
    table.register(header(address=SLAVE), body(state_version=5), "two", 0.0)
    assert addresses(table.route("T")) == {"b": {0: SLAVE}}
    assert table.connection_lost("one") == [], "who lost its place takes nothing away"
    assert addresses(table.route("T")) == {"b": {0: SLAVE}}


def test_a_master_that_sends_beats_is_not_replaced_by_its_equal() -> None:
    table: RouteTable[str] = RouteTable()
    table.register(header(timeout_ms=3000), body(state_version=5), "one", 0.0)
    with pytest.raises(
        BrokerError, match=f"b has a master already: {MASTER} is registered with id 0 and state version 5"
    ):
        table.register(header(address=SLAVE, timeout_ms=3000), body(state_version=5), "two", 1.0)
    assert addresses(table.route("T")) == {"b": {0: MASTER}}
    moved = table.register(header(address="10.0.0.7:1", timeout_ms=3000), body(state_version=5), "one", 1.0)
    assert moved.replaced is None, "over its own connection: it has moved"
    promoted = table.register(header(address=SLAVE, timeout_ms=3000), body(state_version=6), "two", 1.0)
    assert promoted.replaced is None, "that is what elections are for"
    assert addresses(table.route("T")) == {"b": {0: SLAVE}}
    assert not table.heartbeat("c", "10.0.0.7:1", 1.5), "its beats tell it that it is not registered any more"
    demoted = table.register(header(address=MASTER, broker_id=1, timeout_ms=3000), body(state_version=6), "one", 2.0)
    assert (demoted.master_address, demoted.ha_address, demoted.master_version) == (SLAVE, SLAVE + "2", 6)
    assert addresses(table.route("T")) == {"b": {0: SLAVE, 1: MASTER}}


def test_a_slave_becomes_the_master_and_the_master_its_slave() -> None:
    table: RouteTable[str] = RouteTable()
    table.register(header(timeout_ms=3000), body(state_version=1), "one", 0.0)
    table.register(header(address=SLAVE, broker_id=1, timeout_ms=3000), body(state_version=1), "two", 0.0)
    table.register(header(address=SLAVE, timeout_ms=3000), body([], state_version=2), "two", 1.0)
    assert addresses(table.route("T")) == {"b": {0: SLAVE}}, "an empty table tells the role, topics stay"
    table.register(header(broker_id=1, timeout_ms=3000), body(state_version=2), "one", 1.0)
    assert addresses(table.route("T")) == {"b": {0: SLAVE, 1: MASTER}}


def test_a_replaced_master_does_not_come_back_while_its_successor_restarts() -> None:
    table: RouteTable[str] = RouteTable()
    table.register(header(timeout_ms=3000), body(state_version=1), "one", 0.0)
    table.register(header(address=SLAVE, timeout_ms=3000), body(state_version=2), "two", 0.0)
    table.connection_lost("two")
    with pytest.raises(BrokerError, match=f"{SLAVE} was until recently the master with state version 2"):
        table.register(header(timeout_ms=3000), body(state_version=1), "one", 5.0)
    assert table.route("T") is None
    table.register(header(timeout_ms=3000), body(state_version=1), "one", 601.0)
    assert addresses(table.route("T")) == {"b": {0: MASTER}}, "after ten minutes nobody knows"


def test_beats_are_missed_sooner() -> None:
    table: RouteTable[str] = RouteTable(expiry_ms=1000)
    table.register(header("silent"), body(), "apache", 0.0)
    table.register(header("b", SLAVE, timeout_ms=3000), body(), "ours", 0.0)
    table.heard("ours", 2.0)
    assert table.expire(5.0, beating=True) == [], (
        "a beat at 2 s counts until 5 s, and of others nothing is expected here"
    )
    assert table.expire(5.1, beating=True) == [(SLAVE, "ours")]
    assert table.expire(5.1) == [(MASTER, "apache")]


def test_slaves_alone_are_shown_by_a_name_server_that_never_saw_their_master() -> None:
    table: RouteTable[str] = RouteTable()
    table.register(header(address=SLAVE, broker_id=1, timeout_ms=3000), body(state_version=3), "slave", 0.0)
    assert addresses(table.route("T")) == {"b": {1: SLAVE}}
    assert permissions(table.route("T")) == {"b": 4}
    table.register(header(timeout_ms=3000), body(state_version=4), "master", 0.0)
    assert permissions(table.route("T")) == {"b": 6}
    table.connection_lost("master")
    table.register(header(address=SLAVE, broker_id=1, timeout_ms=3000), body(["T", "V"], state_version=4), "slave", 0.0)
    assert permissions(table.route("T")) == {"b": 6}, "a slave changes no topic that is known"
    assert permissions(table.route("V")) == {"b": 4}


def test_data_version() -> None:
    table: RouteTable[str] = RouteTable()
    table.register(header(), body(counter=3), "one", 0.0)
    assert table.data_version("c", MASTER, "one") == DataVersion(0, 0, 3)
    assert table.data_version("c", MASTER, "another connection") is None
    assert table.data_version("c", SLAVE, "one") is None


def test_acting_master() -> None:
    table: RouteTable[str] = RouteTable(acting_master=True)
    table.register(header(acting_master=True), body(["T", "rmq_sys_SYNC_BROKER_MEMBER_b"]), "master", 0.0)
    table.register(header(address=SLAVE, broker_id=2, acting_master=True), body(), "slave", 0.0)
    table.register(header(address="10.0.0.3:1", broker_id=3, acting_master=True), body(), "other", 0.0)
    assert addresses(table.route("T")) == {"b": {0: MASTER, 2: SLAVE, 3: "10.0.0.3:1"}}
    table.connection_lost("master")
    assert permissions(table.route("T")) == {"b": 4}
    assert addresses(table.route("T")) == {"b": {0: SLAVE, 3: "10.0.0.3:1"}}
    assert addresses(table.route("rmq_sys_SYNC_BROKER_MEMBER_b")) == {"b": {2: SLAVE, 3: "10.0.0.3:1"}}
    assert table.members("c", "b").addresses == {2: SLAVE, 3: "10.0.0.3:1"}
    table.register(header(address=SLAVE, broker_id=2, acting_master=True), body(["T", "V"], counter=9), "slave", 0.0)
    assert permissions(table.route("V")) == {"b": 4}, "the stand-in brings topics, but nobody writes to it"
    table.register(header(acting_master=True), body(counter=10), "master again", 0.0)
    assert permissions(table.route("T")) == {"b": 6}
    assert addresses(table.route("T")) == {"b": {0: MASTER, 2: SLAVE, 3: "10.0.0.3:1"}}


def test_acting_master_only_where_switched_on() -> None:
    for table, flag in ((RouteTable[str](), True), (RouteTable[str](acting_master=True), False)):
        table.register(header(acting_master=flag), body(), "master", 0.0)
        table.register(header(address=SLAVE, broker_id=1, acting_master=flag), body(), "slave", 0.0)
        table.connection_lost("master")
        assert addresses(table.route("T")) == {"b": {1: SLAVE}}


def test_changes_of_the_smallest_id() -> None:
    table: RouteTable[str] = RouteTable()
    table.register(header(address=SLAVE, broker_id=1), body(), "slave", 0.0)
    assert table.take_changes() == [MinIdChange("b", 1, SLAVE, None, SLAVE + "2", (SLAVE,))]
    table.register(header(address=SLAVE, broker_id=1), body(), "slave", 0.0)
    assert table.take_changes() == []
    table.register(header(), body(), "master", 0.0)
    assert table.take_changes() == [MinIdChange("b", 0, MASTER, None, MASTER + "2", (SLAVE,))]
    table.connection_lost("master")
    assert table.take_changes() == [MinIdChange("b", 1, SLAVE, MASTER, MASTER + "2", (SLAVE,))]
    table.connection_lost("slave")
    assert table.take_changes() == []


def test_zones() -> None:
    table: RouteTable[str] = RouteTable()
    table.register(header("a", "10.0.0.1:1", zone="east"), body(), 1, 0.0)  # type: ignore[arg-type]
    table.register(header("b", "10.0.0.2:1", zone="west"), body(), "2", 0.0)
    table.register(header("b", "10.0.0.3:1", broker_id=1, zone="west"), body(), "3", 0.0)
    assert set(addresses(table.route("T"))) == {"a", "b"}
    assert set(addresses(table.route("T", zone="east"))) == {"a"}
    assert table.route("T", zone="north") is None
    table.connection_lost("2")
    assert set(addresses(table.route("T", zone="east"))) == {"a", "b"}


def test_filter_servers() -> None:
    table: RouteTable[str] = RouteTable()
    table.register(header(), body(filter_servers=["f:1"]), "one", 0.0)
    route = table.route("T")
    assert route is not None
    assert route.filter_servers == {MASTER: ["f:1"]}
    table.register(header(), body(), "one", 0.0)
    assert table.route("T") == TopicRouteData(route.queues, route.brokers)


def test_mappings_of_static_topics() -> None:
    table: RouteTable[str] = RouteTable()
    registration = body()
    registration.topics.mapping_infos = {"T": {"epoch": 1}, "unknown": {}}
    table.register(header(), registration, "one", 0.0)
    route, other = table.route("T"), table.route("U")
    assert route is not None
    assert other is not None
    assert (route.mappings, other.mappings) == ({"b": {"epoch": 1}}, None)


def test_topics_by_hand() -> None:
    table: RouteTable[str] = RouteTable(topics_max=3)
    table.register(header(), body(), "one", 0.0)
    table.register(header("d", SLAVE, cluster="e"), body(), "two", 0.0)
    table.delete_topic("T", "e")
    assert set(addresses(table.route("T"))) == {"b"}
    table.delete_topic("T")
    table.delete_topic("T")
    assert table.topics() == ["U"]
    table.register_topic("T", [QueueData("b", 1, 1, 6)])
    assert set(addresses(table.route("T"))) == {"b"}
    table.register_topic("W", [QueueData("b", 1, 1, 6)])
    for topic, queues, reason in (
        ("T", [QueueData("nobody")], "no broker nobody is registered here"),
        ("", [QueueData("b")], "1 to 255 characters"),
        ("t" * 256, [QueueData("b")], "1 to 255 characters"),
        ("W", [QueueData("b", 1, 1, 6), QueueData("d", 1 << 31, 1, 6)], "a topic has 0 to 65536 queues"),
        ("X", [QueueData("b")], "the limit of 3 registered topics is reached"),
    ):
        with pytest.raises(BrokerError, match=reason):
            table.register_topic(topic, queues)


def test_unit_topics() -> None:
    table: RouteTable[str] = RouteTable()
    table.register(header(), body(["T", "U"], sys_flag=3), "one", 0.0)
    assert table.unit_topics(2) == ["T", "U"]
    assert table.unit_topics(2, 1) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda: (header(""), body()), "a broker name must have 1 to 255 characters"),
        (lambda: (header("x" * 256), body()), "a broker name must have 1 to 255 characters"),
        (lambda: (header(cluster=""), body()), "a cluster name must have"),
        (lambda: (header(address=""), body()), "a broker address must have"),
        (lambda: (header(broker_id=-1), body()), "broker id -1 is negative"),
        (lambda: (header(), body(["", "T"])), "a topic name must have"),
        (lambda: (header(), body(["t" * 256, "T"])), "a topic name must have"),
        (
            lambda: (header(), counted(read=2_147_483_647)),
            "a topic has 0 to 65536 queues on a broker, not 2147483647 to read",
        ),
        (lambda: (header(), counted(write=65_537)), "a topic has 0 to 65536 queues .* 65537 to write: 'T'"),
        (lambda: (header(), counted(read=-1)), "a topic has 0 to 65536 queues"),
        (lambda: (header("e", SLAVE), body()), "the limit of 1 registered brokers is reached"),
        (lambda: (header(), body(["V", "W"])), "2 new topics besides 2 registered ones exceed the limit of 3"),
    ],
)
def test_refused_registrations_change_nothing(
    change: Callable[[], tuple[object, RegisterBrokerBody]], reason: str
) -> None:
    table: RouteTable[str] = RouteTable(brokers_max=1, topics_max=3)
    table.register(header(), body(), "one", 0.0)
    before = (table.cluster_info(), table.topics(), table.take_changes())
    wrong, registration = change()
    with pytest.raises(BrokerError, match=f"register broker failed: .*{reason}"):
        table.register(wrong, registration, "two", 0.0)  # type: ignore[arg-type]
    assert (table.cluster_info(), table.topics()) == before[:2]
    assert table.take_changes() == []


NAMES, ADDRESSES, OWNERS, TOPICS = ("a", "b"), ("h:1", "h:2", "h:3"), ("x", "y", "z"), ("T", "U", "V")


class AgainstModel(RuleBasedStateMachine):
    """The model is a list of what each address last said, and the topics of each broker; everything is found by search."""

    def __init__(self) -> None:
        super().__init__()
        self.table: RouteTable[str] = RouteTable(expiry_ms=10_000)
        self.now = 0.0
        self.places: dict[tuple[str, int], dict[str, object]] = {}  # (name, id) -> address, owner, heard, versions
        self.topics: dict[tuple[str, str], int] = {}  # (topic, name) -> permission
        self.masters: dict[str, tuple[str, int]] = {}  # name -> address and state version of its last master

    def _leave(self, place: tuple[str, int]) -> None:
        del self.places[place]
        if not any(name == place[0] for name, _ in self.places):
            self.topics = {key: value for key, value in self.topics.items() if key[1] != place[0]}

    def _places_where(self, **facts: object) -> list[tuple[str, int]]:
        return [
            place for place, entry in self.places.items() if all(entry[name] == fact for name, fact in facts.items())
        ]

    @rule(
        name=st.sampled_from(NAMES),
        broker_id=st.integers(0, 2),
        address=st.sampled_from(ADDRESSES),
        owner=st.sampled_from(OWNERS),
        topics=st.sets(st.sampled_from(TOPICS)),
        permission=st.sampled_from([6, 7]),
        counter=st.integers(0, 2),
        state_version=st.integers(0, 1),
    )
    def register(
        self,
        name: str,
        broker_id: int,
        address: str,
        owner: str,
        topics: set[str],
        permission: int,
        counter: int,
        state_version: int,
    ) -> None:
        registration = body(topics, counter=counter, state_version=state_version, permission=permission)
        request = header(name, address, broker_id=broker_id)
        place, version = (name, broker_id), (state_version, counter)
        known = self.places.get(place)
        if known is None and len(topics) == 1:
            with pytest.raises(BrokerError):
                self.table.register(request, registration, owner, self.now)
            return
        later = known is not None and known["address"] != address and known["version"][0] > state_version  # type: ignore[index]
        later = later and known is not None and known["owner"] != owner
        last = self.masters.get(name)
        later |= broker_id == 0 and last is not None and last[0] != address and last[1] > state_version
        if later:
            with pytest.raises(BrokerError):
                self.table.register(request, registration, owner, self.now)
            return
        self.table.register(request, registration, owner, self.now)
        if broker_id == 0:
            self.masters[name] = address, state_version
        everything = known is None or known["address"] != address or known["version"] != version
        entry: dict[str, object] = {"address": address, "owner": owner, "heard": self.now, "version": version}
        moved = [other for other in self._places_where(address=address) if other != place]
        for other in moved:
            if other[0] != name:
                self._leave(other)
            else:
                del self.places[other]
        self.places[place] = entry
        if broker_id == 0:
            for topic in topics:
                if everything or (topic, name) not in self.topics:
                    self.topics[topic, name] = permission

    @rule(address=st.sampled_from(ADDRESSES), owner=st.sampled_from(OWNERS))
    def unregister(self, address: str, owner: str) -> None:
        found = self._places_where(address=address, owner=owner)
        assert self.table.unregister("c", address, owner) == bool(found)
        for place in found:
            self._leave(place)

    @rule(owner=st.sampled_from(OWNERS))
    def connection_lost(self, owner: str) -> None:
        found = self._places_where(owner=owner)
        lost = [str(self.places[place]["address"]) for place in found]
        assert self.table.connection_lost(owner) == sorted(lost)
        for place in found:
            self._leave(place)

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        found = [place for place, entry in self.places.items() if float(entry["heard"]) + 10 < self.now]  # type: ignore[arg-type]
        expected = sorted((str(self.places[place]["address"]), str(self.places[place]["owner"])) for place in found)
        assert sorted(self.table.expire(self.now)) == expected
        for place in found:
            self._leave(place)

    @rule(address=st.sampled_from(ADDRESSES))
    def heartbeat(self, address: str) -> None:
        found = self._places_where(address=address)
        assert self.table.heartbeat("c", address, self.now) == bool(found)
        for place in found:
            self.places[place]["heard"] = self.now

    @rule(name=st.sampled_from(NAMES), wipe=st.booleans())
    def write_permission(self, name: str, wipe: bool) -> None:
        touched = [key for key in self.topics if key[1] == name]
        assert (self.table.wipe_write(name) if wipe else self.table.add_write(name)) == len(touched)
        for key in touched:
            self.topics[key] = self.topics[key] & ~2 if wipe else 6

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        self.table.delete_topic(topic, "c")
        self.topics = {key: value for key, value in self.topics.items() if key[0] != topic}

    @invariant()
    def routes_agree(self) -> None:
        groups: dict[str, dict[int, str]] = {}
        for (name, number), entry in self.places.items():
            groups.setdefault(name, {})[number] = str(entry["address"])
        for topic in TOPICS:
            brokers = {name: permission for (of, name), permission in self.topics.items() if of == topic}
            route = self.table.route(topic)
            assert permissions(route) == brokers
            assert addresses(route) == {name: groups[name] for name in brokers}
        info = self.table.cluster_info()
        assert {name: broker.addresses for name, broker in info.brokers.items()} == groups
        assert info.clusters == ({"c": set(groups)} if groups else {})
        assert self.table.topics() == sorted({topic for topic, _ in self.topics})
        assert self.table.topics_of_cluster("c") == self.table.topics()

    @invariant()
    def changes_tell_nobody_who_left(self) -> None:
        for change in self.table.take_changes():
            assert change.min_id in range(3)
            assert change.min_address in ADDRESSES
            assert set(change.notify) <= set(ADDRESSES) - {change.offline_address}


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
