"""When to wait, when to go elsewhere, when to give up: against a name server that is a dict."""

from __future__ import annotations

import pytest

from kappamq.client.core.patience import FOLLOWS_MAX, Patience, seen_from
from kappamq.clock import SystemClock
from kappamq.errors import Busy, KappaError, NoMaster, NoRoute, NotConnected, NotMaster, UnknownTopic
from kappamq.protocol.bodies.topics import QueueData
from kappamq.protocol.leader_hint import with_leader
from tests.client.core.test_routes import Asked, data
from tests.client.loop import on_loop

TEA = data(QueueData("b", 1, 1, 6), b={0: "h:1", 1: "h:2"})
MOVED = data(QueueData("b", 1, 1, 6), b={0: "h:2", 1: "h:1"})
HEADLESS = data(QueueData("b", 1, 1, 6), b={1: "h:2"})


async def asked() -> Asked:
    server = Asked(SystemClock(), tea=TEA)  # pauses are short, and real
    await server.routes.find("tea")
    return server


def patience(server: Asked, seconds: float | None) -> Patience:
    now = server.clock.liveness
    return Patience(server.routes, "tea", now, None if seconds is None else now() + seconds)


@on_loop
async def test_the_leader_is_followed_without_asking_anybody() -> None:
    server = await asked()
    waits = patience(server, 10)
    assert await waits.after(NotMaster(with_leader("no", "h:2")), "b", "h:1")
    route = server.routes.cached("tea")
    assert route is not None
    assert route.addresses == {"b": {0: "h:2"}}
    assert server.asked == ["tea"]


@on_loop
async def test_two_that_name_each_other_are_not_believed_for_ever() -> None:
    server = await asked()
    waits = patience(server, None)
    for number in range(FOLLOWS_MAX):
        assert await waits.after(NotMaster(with_leader("no", f"h:{2 - number % 2}")), "b", f"h:{1 + number % 2}")
    assert not await waits.after(NotMaster(with_leader("no", "h:2")), "b", "h:1"), "the name server knows no other"
    assert server.asked == ["tea", "tea"]


@pytest.mark.parametrize("error", [NotConnected("refused"), NoMaster("gone"), NotMaster(with_leader("no", None))])
@on_loop
async def test_a_new_master_is_found_at_once(error: KappaError) -> None:
    server = await asked()
    server.known["tea"] = MOVED
    assert await patience(server, None).after(error, "b", "h:1"), "even without patience"
    assert await patience(server, 10).after(error, "b", "h:1")


@pytest.mark.parametrize("error", [NotConnected("refused"), NoMaster("gone"), NotMaster(with_leader("no", None))])
@on_loop
async def test_without_a_master_there_is_a_pause_until_the_time_is_over(error: KappaError) -> None:
    server = await asked()
    server.known["tea"] = HEADLESS
    assert not await patience(server, None).after(error, "b", "h:1")
    waits, tries = patience(server, 0.5), 0
    while await waits.after(error, "b", "h:1"):
        tries += 1
    assert 2 <= tries <= 20, "pauses grow"


@on_loop
async def test_other_errors_are_not_waited_for() -> None:
    server = await asked()
    waits = patience(server, 10)
    assert not await waits.after(Busy("no"), "b", "h:1")
    assert not await waits.after(KappaError("no"), "b", "h:1")
    assert server.asked == ["tea"]


@on_loop
async def test_a_topic_whose_only_broker_is_restarting_is_waited_for_but_not_one_that_never_was() -> None:
    server = await asked()
    waits = patience(server, 10)
    del server.known["tea"]
    assert await waits.after(UnknownTopic("no route"))
    assert server.routes.cached("tea") is None
    assert await patience(server, 10).after(NoRoute("no broker")), "also by a request that begins only now"
    never = Patience(server.routes, "coffee", server.clock.liveness, server.clock.liveness() + 10)
    assert not await never.after(UnknownTopic("no route"))


@on_loop
async def test_a_name_server_that_is_gone_does_not_change_the_route() -> None:
    server = await asked()
    server.broken = True
    assert await patience(server, 10).after(NotConnected("refused"), "b", "h:1")
    assert server.routes.cached("tea") is not None


@pytest.mark.parametrize(
    ("leader", "named_by", "seen"),
    [
        ("127.0.0.1:7", "127.0.0.1:5", "127.0.0.1:7"),
        ("127.0.0.1:7", "10.0.0.1:5", "10.0.0.1:7"),
        ("[::1]:7", "[2001:db8::1]:5", "[2001:db8::1]:7"),
        ("10.0.0.2:7", "10.0.0.1:5", "10.0.0.2:7"),
        ("127.0.0.1:7", None, "127.0.0.1:7"),
    ],
)
def test_loopback_addresses_mean_the_machine_that_named_them(leader: str, named_by: str | None, seen: str) -> None:
    assert seen_from(leader, named_by) == seen
