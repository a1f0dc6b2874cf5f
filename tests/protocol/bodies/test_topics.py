"""Bodies about topics: golden texts of the Java classes, registrations in both forms."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.errors import ProtocolError
from kappamq.protocol.bodies import topics as bodies_topics
from kappamq.protocol.bodies.body import Body
from kappamq.protocol.bodies.topics import (
    BrokerData,
    BrokerMemberGroup,
    BrokerMembers,
    ClusterInfo,
    DataVersion,
    KVTable,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicList,
    TopicRouteData,
    TopicTable,
)
from tests.protocol.round_trips import there_and_back_tests
from tests.protocol.strategies import int32s, names, texts

test_there_and_back, test_any_json_is_read_or_refused = there_and_back_tests(bodies_topics)

ROUTE = TopicRouteData(
    [QueueData("b-a", 4, 4, 6, 0)], [BrokerData("c", "b-a", {0: "1.1.1.1:10911", 1: "2.2.2.2:10911"})]
)
OLD = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"1.1.1.1:10911",1:"2.2.2.2:10911"},"brokerName":"b-a","cluster":"c",'
    b'"enableActingMaster":false}],"filterServerTable":{},'
    b'"queueDatas":[{"brokerName":"b-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (ROUTE, OLD),
        (
            ClusterInfo({"b-a": BrokerData("c", "b-a", {0: "x"})}, {"c": {"b-a"}}),
            b'{"brokerAddrTable":{"b-a":{"brokerAddrs":{0:"x"},"brokerName":"b-a","cluster":"c",'
            b'"enableActingMaster":false}},"clusterAddrTable":{"c":["b-a"]}}',
        ),
        (DataVersion(0, 1794770778388, 0), b'{"counter":0,"stateVersion":0,"timestamp":1794770778388}'),
        (TopicList(["T"]), b'{"topicList":["T"]}'),
        (KVTable({"a": "b"}), b'{"table":{"a":"b"}}'),
        (
            BrokerMemberGroup(BrokerMembers("c", "b", {0: "x"})),
            b'{"brokerMemberGroup":{"brokerAddrs":{0:"x"},"brokerName":"b","cluster":"c"}}',
        ),
        (
            TopicConfig("T"),
            b'{"attributes":{},"order":false,"perm":6,"readQueueNums":16,"topicFilterType":"SINGLE_TAG",'
            b'"topicName":"T","topicSysFlag":0,"writeQueueNums":16}',
        ),
    ],
)
def test_golden(body: Body, text: bytes) -> None:
    assert body.encode() == text
    assert type(body).decode(text) == body


def test_standard_route() -> None:
    assert ROUTE.encode(standard=True) == OLD.replace(b"{0:", b'{"0":').replace(b",1:", b',"1":')


def test_next_version() -> None:
    assert DataVersion(3, 5, 7).next(9) == DataVersion(3, 9, 8)


topics = st.builds(
    TopicConfig, names, int32s, int32s, int32s, names, attributes=st.dictionaries(texts, texts, max_size=2)
)
registrations = st.builds(
    RegisterBrokerBody,
    st.builds(
        TopicTable,
        st.lists(topics, max_size=3).map(lambda many: {one.name: one for one in many}),
        st.builds(DataVersion, int32s, int32s, int32s),
        mapping_infos=st.dictionaries(names, st.just({}), max_size=2).map(
            lambda found: {name: {"topic": name, "epoch": 1} for name in found}
        ),
    ),
    st.lists(texts, max_size=2),
)


@given(registrations)
def test_registration_in_both_forms(body: RegisterBrokerBody) -> None:
    assert RegisterBrokerBody.decode_any(body.encode()) == body
    packed = body.encode_compressed()
    assert RegisterBrokerBody.decode_any(packed, compressed=True) == body
    old = RegisterBrokerBody.decode_any(packed, compressed=True, version=412)
    assert old.topics.topics == body.topics.topics
    assert old.topics.mapping_infos == {}


def test_registration_of_old_brokers_and_of_none() -> None:
    table = TopicTable({"T": TopicConfig("T")})
    assert RegisterBrokerBody.decode_any(table.encode(), version=36).topics == table
    assert (
        RegisterBrokerBody.decode_any(b"")
        == RegisterBrokerBody.decode_any(b"", compressed=True)
        == RegisterBrokerBody()
    )


@pytest.mark.parametrize(
    ("plain", "reason"),
    [
        (b"", "ends too early"),
        (struct.pack(">i", -1), "impossible count of -1"),
        (struct.pack(">i", 1 << 30), "impossible count of 1073741824"),
        (struct.pack(">iii", 0, 1, 1) + b"x", "a topic of the compressed registration cannot be decoded"),
        (struct.pack(">iii", 0, 1, 12) + b"T 1 x 6 S {}" + bytes(8), "cannot be decoded"),
        (struct.pack(">iii", 0, 1, 12) + b"T 1 1 6 S []" + bytes(8), "attributes of topic 'T'"),
        (struct.pack(">iii", 0, 0, 2) + b"{}" + bytes(4), "not a list of strings"),
        (struct.pack(">iii", 0, 0, 2) + b"[]" + struct.pack(">ii", 1, 2) + b"{}", "names no topic"),
    ],
)
def test_wrong_compressed_registrations(plain: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        RegisterBrokerBody.decode_any(zlib.compress(plain), compressed=True)


def test_registration_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies_topics, "REGISTRATION_BYTES_MAX", 1000)
    with pytest.raises(ProtocolError, match="longer than 1000"):
        RegisterBrokerBody.decode_any(zlib.compress(bytes(2000)), compressed=True)
    with pytest.raises(ProtocolError, match="cannot be decompressed"):
        RegisterBrokerBody.decode_any(b"no zlib", compressed=True)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_registration_or_refused(data: bytes) -> None:
    for compressed, packed in ((False, data), (True, data), (True, zlib.compress(data))):
        try:
            RegisterBrokerBody.decode_any(packed, compressed=compressed)
        except ProtocolError:
            pass
