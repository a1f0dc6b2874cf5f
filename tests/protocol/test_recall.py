"""Recall handles, as RocketMQ makes and reads them."""

from __future__ import annotations

import base64

import pytest

from kappamq.errors import IllegalOperation
from kappamq.protocol.recall import RecallHandle, delete_key


def test_there_and_back() -> None:
    handle = RecallHandle("tea", "broker-a", 1_700_000_000_001, "7F000001")
    text = handle.encode()
    assert base64.urlsafe_b64decode(text) == b"v1 tea broker-a 1700000000001 7F000001"
    assert RecallHandle.decode(text) == RecallHandle.decode(text.rstrip("=")) == handle
    assert delete_key("tea", "7F") == "tea+7F"


@pytest.mark.parametrize(
    "raw", [b"", b"v2 t b 1 k", b"v1 t b x k", b"v1 t b 1", b"v1 t b 1 k k", b"v1 t b -1 k", b"\xff", b"v1 t b 1 "]
)
def test_nonsense(raw: bytes) -> None:
    with pytest.raises(IllegalOperation, match="recall handle is invalid"):
        RecallHandle.decode(base64.urlsafe_b64encode(raw).decode())


@pytest.mark.parametrize("text", ["", "???", "a" * 5000, "\u00e9"])
def test_no_base64(text: str) -> None:
    with pytest.raises(IllegalOperation, match=r"recall handle is invalid: .* was not returned by a send"):
        RecallHandle.decode(text)
