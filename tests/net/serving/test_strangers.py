"""Who is refused is told once for each peer and reason, whatever else comes."""

from __future__ import annotations

import logging

import pytest

from kappamq.net.serving.opening import Kind, Opening
from kappamq.net.serving.strangers import REMEMBERED_MAX, Strangers, not_served


def test_each_peer_and_reason_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    strangers = Strangers()
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            strangers.tell("10.0.0.1", "http/2", "it speaks HTTP/2")
            strangers.tell("10.0.0.2", "http/2", "it speaks HTTP/2")
            strangers.tell("10.0.0.1", "tls", "it speaks TLS")
    assert [record.message for record in caplog.records] == [
        "refused 10.0.0.1: it speaks HTTP/2",
        "refused 10.0.0.2: it speaks HTTP/2",
        "refused 10.0.0.1: it speaks TLS",
    ]


def test_memory_is_bounded_and_keeps_who_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    strangers = Strangers()
    for number in range(3 * REMEMBERED_MAX):
        strangers.tell("faithful", "tls", "x")
        strangers.tell(f"peer {number}", "tls", "x")
    assert len(strangers._told) == REMEMBERED_MAX
    assert [record.message for record in caplog.records].count("refused faithful: x") == 1


@pytest.mark.parametrize(
    ("opening", "tls_offered", "text"),
    [
        (Opening(Kind.FRAMES), False, None),
        (Opening(Kind.FRAMES), True, None),
        (Opening(Kind.MORE), True, None),
        (Opening(Kind.TLS), True, None),
        (Opening(Kind.TLS, inside=(b"http/1.1",)), True, None),
        (Opening(Kind.TLS), False, "no certificate"),
        (Opening(Kind.TLS, inside=(b"h2",)), True, "gRPC client"),
        (Opening(Kind.TLS, inside=(b"h2",)), False, "gRPC client"),
        (Opening(Kind.HTTP_2), False, "rocketmq-client"),
        (Opening(Kind.HTTP_1), True, "this port is for RocketMQ clients"),
    ],
)
def test_reasons(opening: Opening, tls_offered: bool, text: str | None) -> None:
    reason = not_served(opening, tls_offered=tls_offered)
    assert (reason is None) if text is None else (reason is not None and text in reason)
