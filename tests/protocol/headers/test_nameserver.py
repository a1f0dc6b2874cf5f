"""Every header of headers_nameserver.py: there and back, and golden names."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.protocol.headers import nameserver as headers_nameserver
from kappamq.protocol.headers.header import Header
from tests.protocol.strategies import headers

KINDS = [
    kind
    for kind in vars(headers_nameserver).values()
    if isinstance(kind, type) and issubclass(kind, Header) and kind.__module__ == headers_nameserver.__name__
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


def test_registration_defaults() -> None:
    ext = {"brokerName": "b", "brokerAddr": "a:1", "clusterName": "c", "haServerAddr": "a:2", "brokerId": "0"}
    header = headers_nameserver.RegisterBroker.decode(ext)
    assert (header.compressed, header.body_crc, header.timeout_ms, header.acting_master) == (False, 0, None, None)


def test_names_that_surprise() -> None:
    assert headers_nameserver.BrokerHeartbeat.wire_names["timeout_ms"] == "heartbeatTimeoutMills"
    assert headers_nameserver.RegisterBroker.wire_names["timeout_ms"] == "heartbeatTimeoutMillis"
