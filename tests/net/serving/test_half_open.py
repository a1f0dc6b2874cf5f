"""Sockets that are no connections yet take places, and give them back to others."""

from __future__ import annotations

from typing import Any

from kappamq.config.net import NetConfig
from kappamq.net.serving.half_open import HalfOpen
from kappamq.net.serving.limits import ConnectionLimits


class Room:
    """Opens sockets by name: `a1` is one from address a."""

    def __init__(self, sockets_max: int = 100, trusted: str = "", **net: Any) -> None:
        self.limits = ConnectionLimits(NetConfig(**net))
        self.half_open = HalfOpen(self.limits, lambda ip: ip == trusted)
        self.sockets_max = sockets_max
        self.gone: list[str] = []

    @staticmethod
    def ends(name: str) -> tuple[tuple[str, int], tuple[str, int]]:
        return (name[0], int(name[1:])), ("server", 1)

    def open(self, *names: str) -> str | None:
        for name in names:
            reason = self.half_open.make_room(name[0], self.sockets_max)
            if reason is not None:
                return reason
            self.half_open.begin(self.ends(name), lambda name=name: self.gone.append(name))  # type: ignore[misc]
        return None

    def spoke(self, *names: str) -> None:
        for name in names:
            self.half_open.spoke(self.ends(name))

    def end(self, *names: str) -> None:
        for name in names:
            self.half_open.end(self.ends(name))


def test_they_count_for_the_limit_of_their_address() -> None:
    room = Room(connections_per_ip_max=3)
    assert room.limits.admit("a") is None
    assert room.open("a1", "a2", "b1") is None
    assert "3 connections from a already (connections_per_ip_max)" in str(room.limits.admit("a"))
    assert (room.open("a3"), room.gone) == (None, ["a1"]), "who has been silent for longest goes"
    room.spoke("a2", "a3")
    assert "3 connections from a already" in str(room.open("a4")), "who has begun to speak stays"
    room.end("a2")
    assert room.limits.admit("a") is None, "it is a connection now, with the place that it had"
    assert room.gone == ["a1"]


def test_they_count_in_all_and_the_address_that_has_most_gives_way() -> None:
    room = Room(connections_max=4)
    assert room.limits.admit("a") is None
    assert room.open("b1", "a1", "a2") is None
    assert "4 connections already (connections_max)" in str(room.limits.admit("c"))
    assert (room.open("c1"), room.gone) == (None, ["a1"])
    room.end("b1")
    assert room.open("a3") is None
    room.spoke("a2", "a3")
    assert (room.open("d1"), room.gone) == (None, ["a1", "a2"]), "for another address also who has begun"


def test_who_has_most_gains_nothing_by_opening_more() -> None:
    room = Room(sockets_max=3)
    assert room.open("b1", "a1", "a2") is None
    room.spoke("a1", "a2")
    assert room.open("a3") == "3 connections have not completed their handshake"
    assert (room.open("c1"), room.gone) == (None, ["a1"])


def test_connections_alone_leave_no_room() -> None:
    room = Room(connections_max=1)
    assert room.limits.admit("a") is None
    assert "1 connections already (connections_max)" in str(room.open("b1"))


def test_a_trusted_proxy_has_no_limit_of_its_own() -> None:
    room = Room(connections_per_ip_max=1, connections_max=3, trusted="p")
    assert room.open("p1", "p2", "p3") is None
    assert (room.open("a1"), room.gone) == (None, ["p1"]), "but its sockets count in all"


def test_nothing_is_left_of_those_that_ended() -> None:
    room = Room()
    room.open("a1", "a2", "b1")
    assert len(room.half_open) == 3
    room.end("a1", "a1", "a2", "b1")
    room.spoke("a1")
    assert len(room.half_open) == 0
    assert (room.half_open._sockets, room.limits._opening, room.limits._opening_total) == ({}, {}, 0)
