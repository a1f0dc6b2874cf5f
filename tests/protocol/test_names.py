"""Which names are allowed, and which belong to the system."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.errors import InvalidParameter
from kappamq.protocol import names


@pytest.mark.parametrize(
    "topic", ["a", "A-b_c%d|9", "x" * 127, "%RETRY%" + "g" * 120, "%RETRY%g+t", "%DLQ%" + "g" * 200]
)
def test_good_topics(topic: str) -> None:
    assert names.check_topic(topic) == topic


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "is empty"),
        (" ", "is empty"),
        ("x" * 128, "128 characters, the limit is 127"),
        ("%RETRY%" + "x" * 249, "256 characters, the limit is 255"),
        ("../etc/passwd", "not allowed"),
        ("a/b", "not allowed"),
        ("a b", "not allowed"),
        ("a\n", "not allowed"),
        ("a+b", "not allowed"),
        ("%RETRY%a/b", "not allowed"),
        ("ä", "not allowed"),
        ("a\0", "not allowed"),
    ],
)
def test_bad_topics(topic: str, reason: str) -> None:
    with pytest.raises(InvalidParameter, match=reason):
        names.check_topic(topic)


@given(st.text(max_size=300))
def test_an_accepted_topic_is_a_harmless_file_name(topic: str) -> None:
    try:
        names.check_topic(topic)
    except InvalidParameter:
        return
    assert not set(topic) & set("/\\.\0")
    assert len(topic) <= 255


def test_groups_and_brokers() -> None:
    assert names.check_group("g" * 120)
    assert names.check_broker("broker-a.1")
    for bad in ("g" * 121, "", "a.b"):
        with pytest.raises(InvalidParameter):
            names.check_group(bad)
    for bad in ("", "a b", "a/b", "b" * 128, ".\0"):
        with pytest.raises(InvalidParameter):
            names.check_broker(bad)


def test_system_names() -> None:
    assert names.is_system_topic("TBW102")
    assert names.is_system_topic("rmq_sys_anything")
    assert names.is_system_topic("DefaultCluster", own={"DefaultCluster"})
    assert not names.is_system_topic("orders")
    assert names.is_system_group("CID_RMQ_SYS_REVIVE_GROUP")
    assert names.is_system_group("TOOLS_CONSUMER")
    assert not names.is_system_group("g")


@pytest.mark.parametrize("topic", [*sorted(names.NOT_SENDABLE_TOPICS), "rmq_sys_kappamq_offsets"])
def test_no_client_sends_there(topic: str) -> None:
    assert not names.is_sendable(topic)


def test_what_clients_may_send_to() -> None:
    assert all(map(names.is_sendable, ("orders", "TBW102", "BenchmarkTest", "DefaultCluster_REPLY_TOPIC")))


def test_prefixes() -> None:
    assert names.retry_topic("g") == "%RETRY%g"
    assert names.dlq_topic("g") == "%DLQ%g"
    assert names.reply_topic("c") == "c_REPLY_TOPIC"
    assert names.is_retry_topic("%RETRY%g")
    assert names.is_dlq_topic("%DLQ%g")
    assert not names.is_retry_topic("g")
    assert not names.is_dlq_topic("g")


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [("t", "ns%t"), ("%RETRY%g", "%RETRY%ns%g"), ("%DLQ%g", "%DLQ%ns%g"), ("TBW102", "TBW102"), ("ns%t", "ns%t")],
)
def test_namespace(name: str, wrapped: str) -> None:
    assert names.with_namespace("ns", name) == wrapped
    assert names.with_namespace("", name) == name
    if name != wrapped:
        assert names.without_namespace(wrapped) == name
    assert names.without_namespace("plain") == "plain"
    assert names.without_namespace("TOOLS_CONSUMER") == "TOOLS_CONSUMER"
