"""Every header of headers_admin.py: there and back, and golden names."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.protocol.headers import admin as headers_admin
from kappamq.protocol.headers.header import Header
from tests.protocol.strategies import headers

KINDS = [
    kind
    for kind in vars(headers_admin).values()
    if isinstance(kind, type) and issubclass(kind, Header) and kind.__module__ == headers_admin.__name__
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


def test_names_that_surprise() -> None:
    assert headers_admin.GetBrokerConsumeStats.wire_names["order"] == "isOrder"
    assert headers_admin.ResetOffsetByBroker.wire_names["force"] == "isForce"
    assert headers_admin.DeleteGroup.wire_names["group"] == "groupName"
