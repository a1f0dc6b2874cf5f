"""Process-long and role-long: the parts of a node that exist only while it may write, and those that always exist.

Store, threads, sockets, registration, tables, pulls and clients live as long as the process. A *role* is shorter: the configuration, or a
Raft group, which elects the master, begins and ends it any number of times while the process runs.
While the node has the role it stores messages, delivers what is due, asks about transactions, grants locks, records offsets and
deletes old log files. Without it, it answers pulls, queries and requests of operators; a request that would store something gets code 14
(NotMaster).

- There is one switch: the gate's reason NOT_MASTER, which also stops the broker's own records. It is closed before anything else
  ends, and opened when everything else is there; no `await` lies between opening it and serving.
- A role builds its objects anew, from tables and log, as a start does. None of them outlives it: their appenders are closed, so a
  request that was under way when the role ended cannot write even if the node has the role again by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final, NoReturn

from kappamq.broker.batches.batch_requests import BATCH_CODES
from kappamq.broker.delivery.delivery import Delivery
from kappamq.broker.events import ClockStepped, MasterFound, Tick
from kappamq.broker.foundation import Foundation
from kappamq.broker.requests.bursts import Bursts
from kappamq.broker.requests.request import Request
from kappamq.broker.sending.gate import NOT_MASTER, not_master
from kappamq.broker.timers.follower import TimerFollower
from kappamq.broker.timers.timers import Timers
from kappamq.broker.transactions.half_follower import HalfFollower
from kappamq.broker.upkeep.clock_watch import ClockWatch
from kappamq.broker.upkeep.upkeep import Upkeep
from kappamq.errors import KappaError
from kappamq.events import Listening
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.records.ids import UniqueIds

log = logging.getLogger(__name__)

SERVED: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
    RequestCode.RECALL_MESSAGE,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    *BATCH_CODES,
)
"""Requests that only the role serves. Others that change something (topics, groups, offsets) are refused when they come to the gate."""


class MasterRole:
    """The right to write, and everything that exists only while this node has it. It can begin and end repeatedly."""

    def __init__(
        self,
        base: Foundation,
        unique_ids: UniqueIds,
        bursts: Bursts,
        upkeep: Upkeep,
        clock_watch: ClockWatch,
        halves: HalfFollower,
        timers: TimerFollower,
    ) -> None:
        """`unique_ids`: for messages that come without one."""
        self._base = base
        self._unique_ids = unique_ids
        self._bursts = bursts
        self._upkeep = upkeep
        self._clock_watch = clock_watch
        self._halves, self._timers = halves, timers
        self._gate = base.gate
        self._listening = Listening(base.events)
        self._delivery: Delivery | None = None
        self._changing = asyncio.Lock()
        bursts.add_handlers(dict.fromkeys(SERVED, self._refuse))

    @property
    def is_held(self) -> bool:
        return self._delivery is not None

    @property
    def delivery(self) -> Delivery:
        """The delivery of the role. Raises NotMaster while this node does not have it."""
        if self._delivery is None:
            raise not_master()
        return self._delivery

    def timers(self) -> Timers | None:
        return None if self._delivery is None else self._delivery.timers

    async def begin(self, still: Callable[[], bool] = lambda: True) -> None:
        """Returns when clients can send. Does nothing if this node has the role already.

        `still`: whether it is to have it, asked in the end. Raises NotMaster if that has changed meanwhile."""
        async with self._changing:
            if self._delivery is None:
                await self._begin(still)

    async def _begin(self, still: Callable[[], bool]) -> None:
        # The parts built now rely on a log that does not grow, and whose records are all in the queues.
        self._close_gate()
        writer = self._base.writer
        writer.end_turn()
        await writer.visible(self._base.store.append_offset)
        try:
            followed, halves = await self._timers.take(), await self._halves.take()
            self._base.metadata.follow()  # what has become visible just now: from here on this node records changes itself
            delivery = Delivery(self._base, self._unique_ids, self._upkeep.write_derived, timers_followed=followed)
            await delivery.load(halves)
            if not still():
                raise not_master()
        except BaseException:
            self._give_back()
            raise
        # No `await` from here on: no request is served by half of it.
        self._gate.open(NOT_MASTER)
        self._listening.on(Tick, delivery.tick)
        self._listening.on(ClockStepped, delivery.clock_stepped)
        try:
            self._clock_watch.catch_up()
            delivery.start()
        except BaseException:
            await self._end(delivery, drain_s=0)
            raise
        self._upkeep.begin_role(delivery.keepers)
        self._bursts.replace_handlers(delivery.handlers())
        self._delivery = delivery

    async def end(self, drain_s: float) -> None:
        """Nothing is stored from the first moment on. Answers that wait for the disk get `drain_s` for that, then they say that it is
        not known. Returns when nothing of the role is left. Does nothing if this node does not have it."""
        async with self._changing:
            if self._delivery is not None:
                self._upkeep.record_commits()
                delivery, self._delivery = self._delivery, None
                await self._end(delivery, drain_s)

    async def _end(self, delivery: Delivery, drain_s: float) -> None:
        self._close_gate()
        self._bursts.replace_handlers(dict.fromkeys(SERVED, self._refuse))
        self._listening.end()
        delivery.close()
        async with AsyncExitStack() as rest:  # all of it, also if the caller does not wait any more
            rest.callback(self._give_back)
            rest.push_async_callback(delivery.stop)
            rest.push_async_callback(self._upkeep.end_role)
            await self._drain(drain_s)

    def _give_back(self) -> None:
        """Whether nothing of the role is left that would read or write files that followers use."""
        self._halves.give_back()
        self._timers.give_back()

    def _close_gate(self) -> None:
        if not self._gate.has(NOT_MASTER):  # it may name the master already
            self._gate.close(NOT_MASTER, not_master(), for_all=True)

    def _refuse(self, _request: Request[Any]) -> NoReturn:
        self._gate.check(own=True)
        raise not_master()

    async def _drain(self, drain_s: float) -> None:
        writer = self._base.writer
        try:
            async with asyncio.timeout(drain_s):
                await writer.confirmed(self._base.store.append_offset)
        except (KappaError, TimeoutError) as error:
            log.warning("the role of the master ends before the disk has confirmed everything: %s", error or "too late")
            writer.give_up("this broker is no longer the master")

    def master_found(self, event: MasterFound) -> None:
        """Name servers say where the master is."""
        self.leader_is(event.address)

    def leader_is(self, address: str | None) -> None:
        """From now on refusals name the node at `address` (None: not known) as the master."""
        if self._delivery is None:
            self._gate.close(NOT_MASTER, not_master(address), for_all=True)
