"""Positions in bit maps, as RocketMQ 5.3.3 gives them."""

from __future__ import annotations

import pytest

from kappamq.filters import bloom


@pytest.mark.parametrize(
    ("group", "topic", "expected"),
    [
        ("g", "t", [22, 87, 58]),
        ("x", "y", [46, 59, 53]),
        ("GID_orders", "TopicTest", [53, 54, 88]),
        ("a-very-long-consumer-group-name", "a-very-long-topic-name", [103, 26, 61]),
        ("订单", "主题", [104, 61, 13]),
    ],
)
def test_positions(group: str, topic: str, expected: list[int]) -> None:
    assert bloom.positions(group, topic) == expected
    assert bloom.BITS == 112


def test_murmur3_of_nothing() -> None:
    assert bloom.murmur3(b"") == 0
