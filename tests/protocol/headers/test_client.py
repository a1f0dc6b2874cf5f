"""Every header of headers_client.py: there and back, and golden names."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.protocol.headers import client as headers_client
from kappamq.protocol.headers.header import Header
from tests.protocol.strategies import headers

KINDS = [
    kind
    for kind in vars(headers_client).values()
    if isinstance(kind, type) and issubclass(kind, Header) and kind.__module__ == headers_client.__name__
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=20)
def test_there_and_back(kind: type[Header], data: st.DataObject) -> None:
    header = data.draw(headers(kind))
    ext = header.encode()
    # An empty number never is written, so nothing reads as absent by accident.
    assert all(isinstance(value, str) for value in ext.values())
    assert kind.decode(ext) == header


def test_short_names_of_a_send() -> None:
    header = headers_client.SendMessageV2(
        producer_group="pg",
        topic="t",
        default_topic="TBW102",
        default_topic_queues=4,
        queue_id=0,
        sys_flag=0,
        born_ms=1,
        flag=0,
        properties="a\x01b\x02",
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name="b-a",
    )
    golden = {"a": "pg", "b": "t", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    golden |= {"i": "a\x01b\x02", "j": "0", "k": "false", "m": "false", "n": "b-a"}
    assert header.encode() == golden


@given(headers(headers_client.SendMessage))
def test_long_and_short_send_say_the_same(header: Header) -> None:
    assert isinstance(header, headers_client.SendMessage)
    assert headers_client.SendMessage.wire_names.keys() == headers_client.SendMessageV2.wire_names.keys()
    assert header.short().plain() == header
    assert header.plain() is header


def test_names_that_surprise() -> None:
    assert headers_client.PullMessage.wire_names["proxy_client_id"] == "proxyFrowardClientId"
    assert headers_client.UnregisterClient.wire_names["client_id"] == "clientID"
    assert headers_client.ResetClientOffset.wire_names["force"] == "isForce"


def test_boundary_is_lower_unless_upper() -> None:
    ext = {"topic": "t", "queueId": "0", "timestamp": "1"}
    assert headers_client.SearchOffset.decode(ext).boundary is None
    decoded = headers_client.SearchOffset.decode(ext | {"boundaryType": "upper"})
    assert decoded.boundary is headers_client.BoundaryType.UPPER
