"""Every header of batch transactions: there and back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.protocol.headers import batches
from kappamq.protocol.headers.header import Header
from tests.protocol.strategies import headers

KINDS = [
    kind
    for kind in vars(batches).values()
    if isinstance(kind, type) and issubclass(kind, Header) and kind.__module__ == batches.__name__
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=20)
def test_there_and_back(kind: type[Header], data: st.DataObject) -> None:
    header = data.draw(headers(kind))
    assert kind.decode(header.encode()) == header
