"""What the name server answers, request by request."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.clock import VirtualClock
from kappamq.config import properties
from kappamq.config.nameserver import NameServerConfig
from kappamq.errors import (
    BrokerError,
    BrokerNotFound,
    HeaderError,
    KappaError,
    NotSupported,
    ProtocolError,
    QueryNotFound,
    TopicNotFound,
)
from kappamq.nameserver.routes import MinIdChange
from kappamq.nameserver.service import NameService
from kappamq.protocol.bodies.all import (
    BrokerMemberGroup,
    ClusterInfo,
    DataVersion,
    KVTable,
    QueueData,
    RegisterBrokerBody,
    TopicList,
    TopicRouteData,
)
from kappamq.protocol.frame import Frame, request
from kappamq.protocol.headers import nameserver as h
from kappamq.protocol.headers.header import Header
from tests.nameserver.samples import body, header


class FakePeer:
    def __init__(self, local: str = "10.0.0.9", peer: str = "10.0.0.5") -> None:
        self.local = (local, 9876)
        self.peer = (peer, 40000)
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Server:
    """A service and one broker connection, with requests as calls."""

    def __init__(self, **options: Any) -> None:
        self.clock = VirtualClock()
        self.noticed: list[MinIdChange] = []
        self.service = NameService(NameServerConfig(**options), self.clock, notify=self.noticed.append)
        self.broker = FakePeer()

    def ask(self, what: Header, data: bytes = b"", *, by: FakePeer | None = None, version: int = 479) -> Frame:
        frame = request(what, data)
        frame.version = version
        return self.send(frame, by=by)

    def send(self, frame: Frame, *, by: FakePeer | None = None) -> Frame:
        answer = self.service.handle(by or self.broker, frame)
        if inspect.iscoroutine(answer):
            answer = asyncio.run(answer)
        assert isinstance(answer, Frame)
        assert answer.opaque == frame.opaque
        assert answer.is_response
        assert answer.code == 0
        return answer

    def register(self, what: h.RegisterBroker | None = None, registration: RegisterBrokerBody | None = None) -> Frame:
        return self.ask(what or header(), (registration or body()).encode())

    def route(self, topic: str = "T", *, by: FakePeer | None = None) -> TopicRouteData:
        return TopicRouteData.decode(self.ask(h.GetRoute(topic=topic), by=by).body)


def test_every_request_of_the_name_server_has_an_answer() -> None:
    wanted = {
        kind.code
        for kind in vars(h).values()
        if isinstance(kind, type) and issubclass(kind, Header) and kind.__module__ == h.__name__ and kind.code
    }
    assert set(Server().service._handlers) == wanted - {h.NotifyMinBrokerId.code}


def test_unknown_request() -> None:
    with pytest.raises(NotSupported, match=r"^ request type 310 not supported$"):
        Server().service.handle(FakePeer(), Frame(code=310))


def test_register_and_route() -> None:
    server = Server()
    assert server.register().ext == {}
    route = server.route()
    assert route.queues == [QueueData("b", 4, 4, 6)]
    assert route.brokers[0].addresses == {0: "10.0.0.1:10911"}
    with pytest.raises(TopicNotFound, match="No topic route info in name server for the topic: nothing"):
        server.ask(h.GetRoute(topic="nothing"))


@pytest.mark.parametrize("field", ["broker_address", "ha_address", "broker_name", "cluster"])
def test_a_registration_cannot_forge_log_lines(field: str, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    forged = {field: "10.0.0.2\n2026-01-01 ERROR forged\x1b[31m:1"}
    with pytest.raises(KappaError, match="control characters") as caught:
        server.register(dataclasses.replace(header(), **forged))
    assert str(caught.value).isprintable()
    assert server.service.routes.topics() == []
    assert "forged" not in caplog.text


def test_two_live_brokers_of_one_name_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    other, restarted = FakePeer(), FakePeer()
    assert server.register().remark is None
    assert server.register(header(address="10.0.0.3:10911")).remark is None, "the same connection: it has moved"
    registration = body().encode()
    remark = server.ask(header(address="10.0.0.2:10911"), registration, by=other).remark
    assert remark is not None
    for word in ("two running brokers", "name b ", "id 0", "10.0.0.2:10911", "10.0.0.3:10911", "--name"):
        assert word in remark
    assert remark in caplog.text
    server.clock.advance(60)
    assert server.register(header(address="10.0.0.3:10911")).remark is not None, "and back"
    server.service.connection_lost(server.broker)
    for peer in (other, restarted):
        assert server.ask(header(address="10.0.0.2:10911"), registration, by=peer).remark is None, (
            "nobody else is there"
        )
    slave = server.ask(header(address="10.0.0.4:10911", broker_id=1), registration, by=FakePeer())
    assert slave.remark is None, "another id is another place"
    assert caplog.text.count("two running brokers") == 2


def test_a_beat_is_answered_with_the_place_of_the_master() -> None:
    server = Server()
    slave, name = FakePeer(), {"cluster": "c", "broker_name": "b"}
    beat = h.BrokerHeartbeat(broker_address="10.0.0.2:10911", **name)
    with pytest.raises(BrokerNotFound, match=r"10\.0\.0\.2:10911 is not registered here: register it again"):
        server.ask(beat, by=slave)
    registration = body(state_version=4).encode()
    server.ask(header(address="10.0.0.2:10911", broker_id=1, timeout_ms=3000), registration, by=slave)
    assert server.ask(beat, by=slave).ext == {}, "there is none yet"
    server.register(header(timeout_ms=3000), body(state_version=4))
    told = {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:109112", "masterStateVersion": "4"}
    assert server.ask(beat, by=slave).ext == told
    assert server.ask(h.BrokerHeartbeat(broker_address="10.0.0.1:10911", **name)).ext == {}


def test_whatever_a_broker_sends_is_a_sign_of_life() -> None:
    server = Server()
    server.register(header(timeout_ms=3000))
    for _ in range(4):
        server.clock.advance(2)
        server.service.expire(beating=True)
        server.route()  # over the broker's own connection
    assert server.service.routes.topics() == ["T", "U"]
    server.clock.advance(3.1)
    server.service.expire(beating=True)
    assert server.service.routes.topics() == []
    assert server.broker.closed


def test_a_second_living_master_is_refused_and_told_who_is() -> None:
    server = Server()
    server.register(header(timeout_ms=3000))
    other = FakePeer()
    rival = header(address="10.0.0.2:10911", timeout_ms=3000)
    with pytest.raises(BrokerError, match=r"b has a master already: 10\.0\.0\.1:10911 is registered with id 0"):
        server.ask(rival, body().encode(), by=other)
    assert server.route().brokers[0].addresses == {0: "10.0.0.1:10911"}
    server.service.connection_lost(server.broker)
    assert server.ask(rival, body().encode(), by=other).remark is None
    assert server.route().brokers[0].addresses == {0: "10.0.0.2:10911"}


def test_two_brokers_that_take_turns_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    registration, other = body().encode(), FakePeer()
    server.register()
    for number in range(100):
        peer, address = (server.broker, "10.0.0.1:10911") if number % 2 else (other, "10.0.0.2:10911")
        answer = server.ask(header(address=address), registration, by=peer)
        assert "two running brokers" in (answer.remark or ""), "the brokers themselves are always told"
    assert caplog.text.count("two running brokers") == 1
    server.clock.advance(60)
    server.service.expire()
    assert "suppressed 99 more warnings about broker name b" in caplog.text


@pytest.mark.parametrize(("version", "standard", "quoted"), [(400, None, False), (400, True, True), (401, None, True)])
def test_route_in_standard_json_for_who_can_read_it(version: int, standard: bool | None, quoted: bool) -> None:
    server = Server()
    server.register()
    answer = server.ask(h.GetRoute(topic="T", standard_json=standard), version=version)
    assert (b'"brokerAddrs":{"0":' in answer.body) is quoted
    assert (b'"brokerAddrs":{0:' in answer.body) is not quoted


def test_compressed_registration_with_checksum() -> None:
    server = Server()
    packed = body().encode_compressed()
    fields = header().encode() | {"compressed": "true", "bodyCrc32": str(zlib.crc32(packed) & 0x7FFFFFFF)}
    server.ask(h.RegisterBroker.decode(fields), packed)
    assert server.service.routes.topics() == ["T", "U"]
    with pytest.raises(BrokerError, match="crc32 not match"):
        server.ask(h.RegisterBroker.decode(fields | {"bodyCrc32": "1"}), packed)


@pytest.mark.parametrize(
    ("data", "changed"),
    [
        (b"{", {}),
        (b'{"topicConfigSerializeWrapper":1}', {}),
        (b"", {"brokerAddr": "nowhere"}),
        (b"", {"brokerAddr": "a" * 64 + ".x:10911"}),  # a label that no resolver takes
        (b"x", {"compressed": "true"}),
    ],
)
def test_bad_registrations(data: bytes, changed: dict[str, str]) -> None:
    server = Server()
    with pytest.raises(ProtocolError):
        server.ask(h.RegisterBroker.decode(header().encode() | changed), data)
    assert server.service.routes.cluster_info() == ClusterInfo()


def test_order_topics_are_told_to_brokers() -> None:
    server = Server()
    server.ask(h.PutKv(namespace="ORDER_TOPIC_CONFIG", key="T", value="b:4"))
    assert KVTable.decode(server.register().body).table == {"T": "b:4"}
    assert server.route().order_conf is None
    server.ask(h.UpdateNameServerConfig(), b"orderMessageEnable=true\nreturnOrderTopicConfigToBroker=false\n")
    assert server.route().order_conf == "b:4"
    assert server.register().body == b""


def test_sign_off() -> None:
    server = Server()
    server.register()
    sign_off = h.UnregisterBroker(broker_name="b", broker_address="10.0.0.1:10911", cluster="c", broker_id=0)
    server.ask(sign_off, by=FakePeer())
    assert server.route()
    server.ask(sign_off)
    assert server.service.routes.topics() == []


def test_lost_connection() -> None:
    server = Server()
    server.register()
    server.service.connection_lost(FakePeer())
    assert server.route()
    server.service.connection_lost(server.broker)
    assert server.service.routes.topics() == []


def test_expiry_closes_the_connection() -> None:
    server = Server()
    server.register(header(timeout_ms=10_000))
    server.clock.advance(9)
    server.ask(h.BrokerHeartbeat(cluster="c", broker_address="10.0.0.1:10911", broker_name="b"))
    server.clock.advance(9)
    server.service.expire()
    assert not server.broker.closed
    server.clock.advance(2)
    server.service.expire()
    assert server.broker.closed
    assert server.service.routes.topics() == []


def test_data_version_question_keeps_alive() -> None:
    server = Server()
    question = h.QueryDataVersion(broker_name="b", broker_address="10.0.0.1:10911", cluster="c", broker_id=0)
    answer = server.ask(question, DataVersion().encode())
    assert (answer.ext, answer.body) == ({"changed": "true"}, b"")
    server.register(header(timeout_ms=10_000), body(counter=3))
    server.clock.advance(9)
    answer = server.ask(question, DataVersion(0, 0, 3).encode())
    assert (answer.ext, DataVersion.decode(answer.body)) == ({"changed": "false"}, DataVersion(0, 0, 3))
    assert server.ask(question, DataVersion(0, 0, 4).encode()).ext == {"changed": "true"}
    assert server.ask(question, DataVersion(0, 0, 3).encode(), by=FakePeer()).ext == {"changed": "true"}
    server.clock.advance(9)
    server.service.expire()
    assert server.route()


LOOPBACK = header(address="127.0.0.1:10911")


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        ("127.0.0.1", "127.0.0.1:10911"),
        ("10.0.0.9", "10.0.0.9:10911"),
        ("::ffff:10.0.0.9", "10.0.0.9:10911"),
        ("fe80::9", "[fe80::9]:10911"),
    ],
)
def test_loopback_broker_is_shown_where_the_client_reached_us(local: str, expected: str) -> None:
    server = Server()
    server.register(LOOPBACK, body(filter_servers=["f:1"]))
    client = FakePeer(local)
    route = server.route(by=client)
    assert route.brokers[0].addresses == {0: expected}
    assert route.filter_servers == {expected: ["f:1"]}
    info = ClusterInfo.decode(server.ask(h.GetClusterInfo(), by=client).body)
    assert info.brokers["b"].addresses == {0: expected}
    members = BrokerMemberGroup.decode(server.ask(h.GetBrokerMembers(cluster="c", broker_name="b"), by=client).body)
    assert members.group is not None
    assert members.group.addresses == {0: expected}
    assert TopicList.decode(server.ask(h.GetSystemTopics(), by=client).body).broker_address == expected
    slave = header(address="10.0.0.2:10911", broker_id=1)
    answer = server.ask(slave, body().encode(), by=client)
    assert answer.ext["masterAddr"] == expected


def test_other_addresses_are_left_alone() -> None:
    server = Server()
    server.register(header(address="broker-a:10911"))
    assert server.route(by=FakePeer("10.0.0.9")).brokers[0].addresses == {0: "broker-a:10911"}


def test_topics_and_permissions() -> None:
    server = Server()
    server.register(registration=body(["T", "U"], sys_flag=1))
    assert TopicList.decode(server.ask(h.GetAllTopics()).body).topics == ["T", "U"]
    assert TopicList.decode(server.ask(h.GetTopicsByCluster(cluster="c")).body).topics == ["T", "U"]
    assert TopicList.decode(server.ask(h.GetUnitTopics()).body).topics == ["T", "U"]
    assert TopicList.decode(server.ask(h.GetUnitSubscribedTopics()).body).topics == []
    assert TopicList.decode(server.ask(h.GetUnitSubscribedOnlyTopics()).body).topics == []
    assert server.ask(h.WipeWritePermission(broker_name="b")).ext == {"wipeTopicCount": "2"}
    assert server.route().queues[0].permission == 4
    assert server.ask(h.AddWritePermission(broker_name="b")).ext == {"addTopicCount": "2"}
    server.ask(h.DeleteTopicInNameServer(topic="T", cluster="c"))
    server.ask(h.RegisterTopic(topic="V"), TopicRouteData([QueueData("b", 1, 1, 6)]).encode())
    assert server.service.routes.topics() == ["U", "V"]


def test_lists_can_be_switched_off() -> None:
    server = Server(list_topics=False)
    for what in (h.GetAllTopics(), h.GetTopicsByCluster(cluster="c"), h.GetUnitTopics()):
        with pytest.raises(BrokerError, match="disable"):
            server.ask(what)


def test_kv(tmp_path: Path) -> None:
    server = Server(root=tmp_path)
    server.ask(h.PutKv(namespace="ns", key="k", value="v"))
    assert server.ask(h.GetKv(namespace="ns", key="k")).ext == {"value": "v"}
    assert KVTable.decode(server.ask(h.GetKvNamespace(namespace="ns")).body).table == {"k": "v"}
    server.ask(h.DeleteKv(namespace="ns", key="k"))
    with pytest.raises(QueryNotFound, match="namespace: ns key: k"):
        server.ask(h.GetKv(namespace="ns", key="k"))
    with pytest.raises(QueryNotFound, match="namespace: none"):
        server.ask(h.GetKvNamespace(namespace="none"))


def test_settings() -> None:
    server = Server()
    server.ask(h.UpdateNameServerConfig(), b"deleteTopicWithBrokerRegistration=true\n")
    shown = properties.parse_bytes(server.ask(h.GetNameServerConfig()).body)
    assert shown["deleteTopicWithBrokerRegistration"] == "true"
    server.register(registration=body(["T", "U", "V"]))
    server.register(registration=body(["T", "U"], counter=1))
    assert server.service.routes.topics() == ["T", "U"]


@pytest.mark.parametrize("wanted", [True, False])
def test_change_of_smallest_id_is_noticed_if_wanted(wanted: bool) -> None:
    server = Server(notify_min_broker_id=wanted)
    server.register()
    assert [change.min_address for change in server.noticed] == (["10.0.0.1:10911"] if wanted else [])


@given(
    st.sampled_from(sorted(Server().service._handlers)),
    st.dictionaries(
        st.sampled_from(
            "brokerName brokerAddr clusterName haServerAddr brokerId topic cluster namespace key value".split()
        ),
        st.sampled_from(["", "0", "-1", "x", "a:1", "127.0.0.1:1", "ORDER_TOPIC_CONFIG"]),
    ),
    st.sampled_from([b"", b"{}", b"[]", b"x=y", b"\xff", body().encode(), b'{"queueDatas":[{"brokerName":"x"}]}']),
    st.integers(0, 500),
)
def test_any_request_gets_an_answer_or_one_of_our_errors(
    code: int, ext: dict[str, str], data: bytes, version: int
) -> None:
    server = Server()
    server.register()
    try:
        server.send(Frame(code=code, ext=ext, body=data, version=version))
    except KappaError:
        pass
    for topic in server.service.routes.topics():
        server.route(topic)
    server.service.connection_lost(server.broker)


def test_missing_field_is_named() -> None:
    with pytest.raises(HeaderError, match="'topic' of GetRoute is missing"):
        Server().service.handle(FakePeer(), Frame(code=105))
