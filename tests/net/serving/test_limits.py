"""Limits are pure: who comes, who goes, what time it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from kappamq.config.net import NetConfig
from kappamq.net.serving.limits import OTHER_DESCRIPTORS, ConnectionLimits, HeldBytes, overdue, shares


@pytest.mark.parametrize(
    ("left", "wished", "got"),
    [
        (20_000, (16_000, 2048), (16_000, 2048)),  # there is room for both
        (18_048, (16_000, 2048), (16_000, 2048)),  # just
        (18_047, (16_000, 2048), (15_999, 2048)),  # files first: they are fewer
        (4000, (16_000, 2048), (3000, 1000)),  # and never more than a quarter
        (4000, (16_000, 500), (3500, 500)),  # nor more than was wished
        (4000, (100, 5000), (100, 1000)),
        (0, (16_000, 2048), (16, 16)),  # hardly anything: a little of each all the same
        (-200, (16_000, 2048), (16, 16)),
        (0, (4, 5), (4, 5)),
    ],
)
def test_sockets_and_files_share_the_descriptors(left: int, wished: tuple[int, int], got: tuple[int, int]) -> None:
    assert shares(OTHER_DESCRIPTORS + left, *wished) == got


def test_connections_are_counted_in_total_and_per_address() -> None:
    limits = ConnectionLimits(NetConfig(connections_max=3, connections_per_ip_max=2))
    assert [limits.admit("a"), limits.admit("a")] == [None, None]
    assert "2 connections from a" in str(limits.admit("a"))
    assert limits.total == 2, "who is refused does not count"
    assert limits.admit("b") is None
    assert "3 connections already (connections_max)" in str(limits.admit("c"))
    limits.leave("a")
    assert limits.admit("a") is None, "a place is free again"
    assert limits.admit("b") is not None
    for ip in "aab":
        limits.leave(ip)
    assert limits.total == 0
    assert not limits._per_ip, "an address that is gone takes no memory"


def test_refused_addresses_are_not_remembered() -> None:
    limits = ConnectionLimits(NetConfig(connections_max=1, connections_per_ip_max=1))
    assert limits.admit("a") is None
    for number in range(100):
        assert limits.admit(f"stranger {number}") is not None
    assert limits.admit("a") is not None
    assert set(limits._per_ip) == {"a"}


BASE: dict[str, Any] = {"opened": 0.0, "last_read": 0.0, "last_write": 0.0, "partial_since": None, "spoken": True}


@pytest.mark.parametrize(
    ("now", "changes", "reason"),
    [
        (5.0, {"spoken": False}, None),
        (5.1, {"spoken": False}, "no complete frame within 5 s"),
        (5.1, {"spoken": False, "opened": 1.0}, None),
        (5.1, {"spoken": True}, None),
        (40.0, {"partial_since": 10.0, "last_read": 40.0}, None),
        (40.1, {"partial_since": 10.0, "last_read": 40.0}, "incomplete after 30 s"),  # though bytes keep trickling in
        (40.1, {"partial_since": None, "last_read": 40.0}, None),
        (120.0, {}, None),
        (120.1, {}, "idle for 120 s"),
        (120.1, {"last_read": 1.0}, None),
        (120.1, {"last_write": 1.0}, None),  # who only listens is not idle while we talk
    ],
)
def test_who_is_overdue(now: float, changes: dict[str, Any], reason: str | None) -> None:
    config = NetConfig(first_frame_s=5, frame_s=30, idle_s=120)
    said = overdue(config, now, **(BASE | changes))
    assert said is None if reason is None else said is not None and reason in said


def test_spare_connections_of_java_clients_are_left_alone() -> None:
    """They connect to every name server and speak to one."""
    assert overdue(NetConfig(), 59.0, **(BASE | {"spoken": False})) is None
    said = overdue(NetConfig(), 61.0, **(BASE | {"spoken": False}))
    assert said is not None
    assert "no complete frame" in said


def test_without_an_idle_time_nobody_is_idle() -> None:
    assert overdue(NetConfig(idle_s=0), 1e9, **BASE) is None


def test_a_connection_moves_to_another_address_unless_that_has_enough() -> None:
    limits = ConnectionLimits(NetConfig(connections_max=3, connections_per_ip_max=2))
    for ip in ("proxy", "proxy", "a"):
        limits.admit(ip)
    assert limits.move("proxy", "a") is None, "also when no more connections fit: it is one of them"
    assert limits.total == 3
    assert "2 connections from a" in str(limits.move("proxy", "a"))
    limits.leave("proxy")
    assert limits.admit("proxy") is None, "the one that had to go still counted where it came from"


@dataclass(eq=False)
class Peer:
    counted_as: str
    may_go: bool = True


def test_who_holds_most_of_the_address_that_holds_most_has_to_go() -> None:
    held: HeldBytes[Peer] = HeldBytes(100)
    a1, a2, b1, c1 = Peer("a"), Peer("a"), Peer("b"), Peer("c")

    def too_much(grown: str) -> Peer | None:
        return held.too_much(grown, lambda peer: peer.may_go)

    held.keep(b1, 60)
    assert too_much("b") is None, "one peer alone may have more than half"
    held.keep(a1, 20)
    held.keep(a2, 20)
    assert (too_much("a"), held.total, held.of_address("a"), held.of(a1)) == (None, 100, 40, 20)
    held.keep(c1, 1)
    assert too_much("c") is b1, "not the one that has grown"
    b1.may_go = False
    a1.may_go = False
    assert too_much("c") is a2, "then somebody of the next address"
    held.keep(c1, 0)
    held.keep(b1, 0)
    held.keep(a1, 31)
    a1.may_go = True
    assert too_much("a") is a1, "51 of 100 are more than one address may have"
    held.keep(a1, 0)
    assert too_much("a") is None
    held.keep(a2, 0)
    assert (held.total, held._addresses, held._sums) == (0, {}, {})
