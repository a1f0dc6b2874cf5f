from __future__ import annotations

import asyncio

from kappamq.client.admin.admin import AsyncAdmin
from kappamq.client.core import registry
from kappamq.client.core.core import ClientCore
from kappamq.clock import VirtualClock
from kappamq.config.client import ClientConfig
from tests.client.loop import on_loop

ADDRESS, OTHER = "127.0.0.1:9", "127.0.0.1:7"


@on_loop
async def test_clients_are_found_by_their_name_server_while_they_live() -> None:
    loop = asyncio.get_running_loop()
    async with AsyncAdmin([OTHER, ADDRESS]) as admin:
        core = admin.start()
        assert registry.running({ADDRESS}) == registry.running({OTHER, "elsewhere:1"}) == [core]
        assert registry.running({"elsewhere:1"}) == []
        assert registry.lives_on(loop)
    assert registry.running({ADDRESS}) == []
    assert not registry.lives_on(loop)


def test_clients_whose_loop_has_ended_are_not_waited_for() -> None:
    async def leave_open() -> ClientCore:
        return AsyncAdmin(ADDRESS).start()

    core = asyncio.run(leave_open())
    assert registry.running({ADDRESS}) == []
    registry.remove(core)


@on_loop
async def test_a_clock_is_lent_to_those_who_have_none() -> None:
    lent, own = VirtualClock(), VirtualClock()
    registry.lend_clock([ADDRESS], lent)
    try:
        async with AsyncAdmin(ADDRESS) as admin:
            assert admin.start().clock is lent
        async with AsyncAdmin(config=ClientConfig(nameservers=(ADDRESS,), clock=own)) as admin:
            assert admin.start().clock is own
        async with AsyncAdmin(OTHER) as admin:
            assert admin.start().clock not in (lent, own)
    finally:
        registry.withdraw_clock([ADDRESS])
    async with AsyncAdmin(ADDRESS) as admin:
        assert admin.start().clock is not lent
