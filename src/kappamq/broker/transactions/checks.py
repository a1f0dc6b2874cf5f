"""Asks producers about transactions that stay open, and keeps open ones from holding back retention and positions.

A part of the agenda. When a half is due it is copied to the end of its queue with one more check counted, and any live
producer of its group is asked about the copy. If no producer is connected nothing is counted: the transaction waits. After a number of
checks without a decision it is given up. All of this at a bounded rate.

An old half that stays open would keep the positions in the queues, and the log files, where they are. So it is copied as well
when much was settled behind it, or when its log file is about to be deleted.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import islice
from typing import Any

from kappamq.broker.clients.registry import Client, Clients
from kappamq.broker.delivery.agenda import Part
from kappamq.broker.sending.appending import Draft
from kappamq.broker.transactions.half_log import HalfLog
from kappamq.broker.transactions.open_transactions import Half
from kappamq.broker.upkeep.slices import Worker
from kappamq.clock import Clock
from kappamq.config.broker import BrokerConfig
from kappamq.errors import KappaError, NotAvailable
from kappamq.protocol import names
from kappamq.protocol.frame import request
from kappamq.protocol.headers.client import CheckTransaction
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Record
from kappamq.store.log.clock_steps import ClockStep

log = logging.getLogger(__name__)

Job = tuple[Half, Callable[[Half, Record], None]]
Found = Record | Exception | None
_SLICE = 8
_SLICE_S = 0.001
_COLD_COUNT_MAX, _COLD_BYTES_MAX = 32, 8 << 20  # read from disk in one go
_BURST_MS = 100  # so much of a second's allowance may be used at once
_TRIES = 3
_LOOKED_AT_MAX = 100
BEHIND_MAX = 10_000
"""Places behind the oldest open half, besides four for each that is open: a start reads them all."""


class TransactionChecks:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        half_log: HalfLog,
        clients: Clients,
        worker: Worker,
        spawn: Callable[[Part, Coroutine[Any, Any, None]], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._log = half_log
        self._clients = clients
        self._worker = worker
        self._spawn = spawn
        self._spent_ms = 0.0  # message time up to which the allowance of questions is used
        self._renew_from_ms = 0  # message time before which what lies far behind is left there
        self._reading = False

    # -- the part of the agenda --------------------------------------------------------------------------------------------

    def due_ms(self) -> int | None:
        if self._reading:
            return None
        due = self._log.halves.due_ms()
        if due is not None:
            due = max(due, int(self._spent_ms))
        if self._is_behind():
            return self._renew_from_ms if due is None else min(due, self._renew_from_ms)
        return due

    def clock_stepped(self, step: ClockStep) -> None:
        """The wall clock was set: transactions wait as long as before."""
        self._log.halves.shift_times(step.step_ms)
        self._spent_ms = min(self._spent_ms + step.step_ms, self._clock.message_ms())
        self._renew_from_ms += step.step_ms

    def run(self, now_ms: int) -> None:
        until = self._clock.liveness() + _SLICE_S
        cold: list[Job] = []
        cold_bytes = 0
        try:
            for _ in range(_SLICE):
                job = self._next(now_ms, [job[0] for job in cold])
                if job is None:
                    break
                at = job[0].log_offset
                if self._log.is_hot(at):
                    self._do(job, at, self._read(at, hot=True))
                else:
                    cold.append(job)
                    cold_bytes += job[0].size
                if cold_bytes > _COLD_BYTES_MAX or self._clock.liveness() >= until:
                    break
        finally:
            if cold:
                self._reading = True
                self._spawn(self, self._do_cold(cold))

    def _next(self, now_ms: int, chosen: list[Half]) -> Job | None:
        """What to do now, besides what is going to be done to those that were chosen before."""
        halves = self._log.halves
        if self._spent_ms <= now_ms:
            for _ in range(_LOOKED_AT_MAX):
                half = halves.take_due(now_ms)
                if half is None:
                    break
                old = now_ms - half.since_ms > self._config.transaction_keep_ms
                if old or half.checks >= self._config.transaction_check_max:
                    return half, self._give_up
                if self._producer(half.group) is not None:
                    cost_ms = 1000 / self._config.transaction_checks_per_s
                    self._spent_ms = max(self._spent_ms, now_ms - _BURST_MS) + cost_ms
                    return half, self._ask
                # No producer is connected: that is not the transaction's fault, and does not count.
                halves.postpone(half, now_ms + self._config.transaction_check_interval_ms)
        if self._is_behind() and self._renew_from_ms <= now_ms:
            for half in halves.below(self._log.end, _SLICE):
                if half not in chosen:
                    return (half, self._log.renew) if self._log.places_behind(half) > self._behind_max else None
        return None

    def _is_behind(self) -> bool:
        return self._log.behind > self._behind_max

    @property
    def _behind_max(self) -> int:
        return BEHIND_MAX + 4 * len(self._log.halves)

    # -- what is done with a half ------------------------------------------------------------------------------------------

    def _ask(self, half: Half, record: Record) -> None:
        client = self._producer(half.group)
        if client is None:
            self._postpone(half)  # it has just gone
            return
        draft = self._log.check(half, record)
        client.connection.send(self._question(half, record, draft))

    def _give_up(self, half: Half, record: Record) -> None:
        self._log.give_up(half, record)
        log.warning(
            "gave up a transaction of %s for topic %s after %d checks with its producers: see %s",
            *(half.group, half.topic, half.checks, names.TRANSACTION_GIVEN_UP_TOPIC),
        )

    def _question(self, half: Half, record: Record, draft: Draft) -> bytes:
        """Request 39: the newest copy of the half, as the message that it will be."""
        unique = draft.properties.get(properties.UNIQUE_KEY)
        message = replace(
            record,
            topic=half.topic,
            queue_id=int(draft.properties[properties.REAL_QUEUE_ID]),
            properties=properties.encode(draft.properties),
            queue_offset=half.queue_offset,
            log_offset=half.log_offset,
            prepared_offset=half.root,
            tail_crc=False,
        )
        header = CheckTransaction(
            topic=half.topic,
            transaction_offset=half.queue_offset,
            log_offset=half.log_offset,
            message_id=unique,
            transaction_id=draft.properties.get(properties.TRANSACTION_ID, unique),
            offset_id=message.offset_id,
            logical_broker=self._config.name,
        )
        return request(header, message.encode(), oneway=True).encode()

    def _producer(self, group: str) -> Client | None:
        """Return any live producer of a group that reads what it is sent."""
        members = self._clients.producers.get(group)
        if not members:
            return None
        for _ in range(_TRIES):
            client = next(islice(members.values(), random.randrange(len(members)), None))
            if client.connection.is_open and not client.connection.is_stalled:
                return client
        return None

    # -- one after the other -----------------------------------------------------------------------------------------------

    def _read(self, at: int, *, hot: bool = False) -> Found:
        """For workers, too, unless it is hot."""
        try:
            if hot:
                self._log.write_up_to(at)
            return self._log.record_at(at)
        except Exception as error:
            return error

    def _do(self, job: Job, at: int, found: Found) -> None:
        """Do it with what was `found` where the half was when it was chosen. Whatever happens, it is asked about again."""
        half, act = job
        if not self._is_at(half, at):
            return  # it was ended or copied meanwhile
        try:
            if isinstance(found, Exception):
                raise found
            if found is None:
                log.error("the half message at log offset %d is damaged: it can no longer be committed", at)
                self._log.drop(half)
            else:
                act(half, found)
        except KappaError as error:
            log.warning("the check of the transaction at log offset %d is postponed: %s", at, error)
            self._try_later(half)
        except Exception:
            log.exception("the check of the transaction at log offset %d is postponed", at)
            self._try_later(half)

    async def _do_cold(self, jobs: list[Job]) -> None:
        left = deque(jobs)
        try:
            places = [half.log_offset for half, _act in jobs]
            for at, found in zip(places, await self._worker(self._read_all, places), strict=True):
                self._do(left[0], at, found)
                left.popleft()
                await asyncio.sleep(0)
        except Exception:
            log.exception("the checks of %d transactions are postponed", len(left))
        finally:
            for half, _act in left:
                self._try_later(half)
            self._reading = False

    def _read_all(self, places: list[int]) -> list[Found]:
        """Worker: told where they were, for where they are only the loop knows."""
        return [self._read(at) for at in places]

    def _is_at(self, half: Half, at: int) -> bool:
        return half.log_offset == at and self._log.halves.get(half.root) is half

    def _try_later(self, half: Half) -> None:
        self._postpone(half)
        self._renew_from_ms = half.due_ms

    def _postpone(self, half: Half) -> None:
        self._log.halves.postpone(half, self._clock.message_ms() + self._config.transaction_check_interval_ms)

    # -- old log files -----------------------------------------------------------------------------------------------------

    @property
    def needed_from(self) -> int:
        return self._log.needed_from

    async def renew_below(self, log_min: int) -> None:
        """Copy every half that would be lost with the log below `log_min`."""
        while halves := self._log.halves.below(log_min, _COLD_COUNT_MAX):
            places = [half.log_offset for half in halves]
            for half, at, found in zip(halves, places, await self._worker(self._read_all, places), strict=True):
                if self._is_at(half, at):
                    if isinstance(found, Exception):
                        raise found
                    if found is None:
                        self._log.drop(half)
                    else:
                        self._log.renew(half, found)
                await asyncio.sleep(0)
        try:
            await self._log.positions_behind(log_min)
        except TimeoutError:
            raise NotAvailable("the disk has not confirmed the copies in time") from None
