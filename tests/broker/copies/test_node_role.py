"""Decisions come at any time, a role begins and ends with awaits: what is done follows what was decided last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from kappamq.broker.copies import node_role
from kappamq.broker.copies.node_role import NodeRole
from kappamq.errors import NotMaster
from tests.broker.running import run
from tests.waiting import eventually_async


class Life:
    """A role that takes as long as the test wants."""

    def __init__(self, role: NodeRole) -> None:
        self.role = role
        self.said: list[str] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.ends_that_fail = 0
        self.begins_that_fail = 0

    async def begin(self, still: Callable[[], bool]) -> None:
        self.said.append("begins")
        await self.may_go_on.wait()
        if not still():
            self.said.append("not any more")
            raise NotMaster("no")
        if self.begins_that_fail:
            self.begins_that_fail -= 1
            raise OSError("half of it is there")
        self.said.append("begun")

    async def end(self) -> None:
        self.said.append("ends")
        if self.ends_that_fail:
            self.ends_that_fail -= 1
            raise OSError("a snapshot cannot be read")

    def told(self) -> None:
        self.said.append(f"id {self.role.broker_id} version {self.role.version}")


@asynccontextmanager
async def living(role: NodeRole) -> AsyncIterator[Life]:
    life = Life(role)
    task = asyncio.create_task(role.run(life.begin, life.end, life.told))
    try:
        yield life
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_node_without_elections_is_what_it_is() -> None:
    assert (NodeRole().broker_id, NodeRole().is_master) == (0, True)
    assert (NodeRole(2).broker_id, NodeRole(2).is_master) == (2, False)


def test_a_role_begins_and_ends_as_decided() -> None:
    async def test() -> None:
        async with living(NodeRole(3)) as life:
            life.role.lead(1)
            await eventually_async(lambda: life.role.is_master)
            life.role.follow(2)
            assert not life.role.is_master, "at once, for whoever asks"
            await eventually_async(lambda: len(life.said) == 5)
            assert life.said == ["begins", "begun", "id 0 version 1", "ends", "id 3 version 2"]

    run(test())


def test_a_decision_that_is_taken_back_while_the_role_begins() -> None:
    async def test() -> None:
        async with living(NodeRole(3)) as life:
            life.may_go_on.clear()
            life.role.lead(1)
            await eventually_async(lambda: life.said == ["begins"])
            life.role.follow(2)
            life.may_go_on.set()
            await eventually_async(lambda: life.said[-1] == "id 3 version 2")
            assert life.said == ["begins", "not any more", "id 3 version 2"]

    run(test())


def test_a_role_that_is_lost_and_won_again_in_one_moment_ends_in_between() -> None:
    async def test() -> None:
        async with living(NodeRole(3)) as life:
            life.role.lead(1)
            await eventually_async(lambda: life.role.is_master)
            life.said.clear()
            life.role.follow(2)
            life.role.lead(2)
            await eventually_async(lambda: life.role.is_master)
            assert life.said == ["ends", "begins", "begun", "id 0 version 2"]

    run(test())


def test_an_end_that_fails_is_tried_again_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(node_role, "_AGAIN_S", 0.01)
        async with living(NodeRole(3)) as life:
            life.role.lead(1)
            await eventually_async(lambda: life.role.is_master)
            life.said.clear()
            life.ends_that_fail = 2
            life.role.follow(2)
            await eventually_async(lambda: life.said[-1:] == ["id 3 version 2"])
            assert life.said == ["ends", "ends", "ends", "id 3 version 2"]
            assert not life.role.is_held

    run(test())


def test_what_began_in_part_ends_before_it_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(node_role, "_AGAIN_S", 0.01)
        async with living(NodeRole(3)) as life:
            life.begins_that_fail = 1
            life.role.lead(1)
            await eventually_async(lambda: life.role.is_master)
            assert life.said == ["begins", "ends", "begins", "begun", "id 0 version 1"]

    run(test())
