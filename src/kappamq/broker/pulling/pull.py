"""Pulls that the kernel could not answer alone, and those it does not know.

An empty pull waits in the long-poll table. Entries that are only on disk are read and lent to the kernel; records that may
not be in memory are warmed by a worker first. In each case the kernel then makes the answer, so no record is ever decoded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import Any

from kappamq.broker.events import ConnectionLost, Resubscribed, Tick
from kappamq.broker.foundation import Foundation
from kappamq.broker.pulling.filtering import Filtering
from kappamq.broker.pulling.kernel_rows import Subscriptions
from kappamq.broker.pulling.last_pulls import LastPulls
from kappamq.broker.pulling.lending import Lending
from kappamq.broker.pulling.long_poll import OWNER_QUEUE_MAX
from kappamq.broker.pulling.pull_subscriptions import expressions_of, subscription_of
from kappamq.broker.pulling.read_ahead import COMPACT_BYTES, ReadAhead
from kappamq.broker.pulling.sql_pull import Sieve
from kappamq.broker.pulling.waking import PullRequest
from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.upkeep.damage import EntryRepair
from kappamq.errors import InvalidParameter, NoPermission
from kappamq.native.layout import (
    BROKEN,
    COLD,
    EMPTY,
    FOUND,
    GONE,
    NEED_ENTRIES,
    NO_MATCH,
    NO_MESSAGES,
    PULL_COMMIT,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    TOO_LARGE,
    TOO_SMALL,
    PullTuple,
)
from kappamq.net.requests.reader import InOrder
from kappamq.net.serving.connection import Connection
from kappamq.protocol.bodies.clients import SubscriptionData
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import PullMessage, PullMessageResponse
from kappamq.protocol.names import is_retry_topic
from kappamq.protocol.records.tags import ALL

log = logging.getLogger(__name__)

_BEHIND_MAX = 1024
_TRIES = 4
_COLD_PULL_BYTES = 512 << 10

_REMARKS = {
    EMPTY: (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE"),
    NO_MESSAGES: (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE"),
    NEED_ENTRIES: (ResponseCode.PULL_NOT_FOUND, "OFFSET_FOUND_NULL"),
    COLD: (ResponseCode.PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING"),
    NO_MATCH: (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"),
    GONE: (ResponseCode.PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING"),
    TOO_SMALL: (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL"),
    TOO_LARGE: (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY"),
}


class Pulls:
    def __init__(
        self,
        base: Foundation,
        subscriptions: Subscriptions,
        filtering: Filtering,
        ahead: ReadAhead,
        repairs: EntryRepair,
    ) -> None:
        self._store, self._kernel, self._config, self._clock = base.store, base.kernel, base.config, base.clock
        self._clients, self._topics, self._groups = base.clients, base.tables.topics, base.tables.groups
        self._offsets, self._resets = base.tables.offsets, base.tables.pending_resets
        self._subscriptions, self._filtering = subscriptions, filtering
        self._run = base.run
        # Without the role our queues may end before those of the master that a consumer comes from.
        self._may_lag = base.is_without_role
        self.waiting = base.parked
        self._behind: deque[tuple[PullRequest, int, Any]] = deque()
        self._is_serving_behind = False
        self.worker = base.workers.read
        self.lending = Lending(base.store, base.kernel, base.workers.read, base.run)
        self.ahead = ahead
        self.repairs = repairs
        self.last = LastPulls(self._groups)
        self.missed = 0  # pulls that were answered without a message

    # -- from the kernel ---------------------------------------------------------------------------------------------------

    def left_by_kernel(self, connection: Connection, pulls: list[PullTuple]) -> None:
        for verdict, number, queue_id, offset, count, sys_flag, suspend_ms, opaque, binary, payload in pulls:
            row = self._subscriptions.row(number)
            suspend = suspend_ms if sys_flag & PULL_SUSPEND else 0
            request = PullRequest(
                connection,
                row.group,
                row.topic,
                queue_id,
                offset,
                count,
                row.codes,
                suspend,
                opaque,
                binary,
                self._again,
            )
            if verdict in (NEED_ENTRIES, COLD, BROKEN) and len(self._behind) < _BEHIND_MAX:
                self._behind.append((request, verdict, payload))
            else:
                self._go_on(request, verdict, payload)
        if self._behind and not self._is_serving_behind:
            self._is_serving_behind = True
            asyncio.get_running_loop().call_soon(self._serve_behind)

    def _serve_behind(self) -> None:
        """Serve one of the pulls that read from disk. A consumer's queues run out of memory at the same time: a client that sends meanwhile
        must not wait for all of them."""
        request, verdict, payload = self._behind.popleft()
        try:
            if request.connection.is_open:
                self._go_on(request, verdict, payload)
        finally:
            self._is_serving_behind = bool(self._behind)
            if self._behind:
                asyncio.get_running_loop().call_soon(self._serve_behind)

    def commits_by_kernel(self, connection: Connection, commits: list[tuple[int, int, int]]) -> None:
        for number, queue_id, offset in commits:
            row = self._subscriptions.row(number)
            self._commit(connection, row.group, row.topic, queue_id, offset)

    def _commit(self, connection: Connection, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A commit that has come with a pull."""
        client, member = self._clients.identify(connection, group)
        queue = (group, topic, queue_id)
        if self._resets.may_commit(client, queue, self._clock.liveness(), member=member, tool=False):
            self._offsets.commit(group, topic, queue_id, offset)

    def handed_out_to(self, group: str, topic: str, queue_id: int) -> int:
        """Where the last pull of a queue began: what lies before has been handed out. -1: it was never pulled."""
        fast = int(self._kernel.asked(group, topic, queue_id))
        return fast if fast >= 0 else self.last.get(group, topic, queue_id)

    def handlers(self) -> dict[int, Handler]:
        return dict.fromkeys((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE), self.handle)

    # -- the slow way ------------------------------------------------------------------------------------------------------

    def handle(self, request: Request[PullMessage], prepared: bool = False) -> InOrder | None:
        """A pull the kernel did not know: check it by all the rules, and give the kernel a row if it is plain.

        `prepared`: its expressions were parsed in a thread, if that takes long."""
        header = request.header
        if not self._config.readable:
            raise NoPermission(f"the broker[{self._config.name}] pulling message is forbidden")
        group = self._groups.existing(header.consumer_group)
        if not group.consume_enable:
            raise NoPermission(f"subscription group no permission, {group.name}")
        topic = self._topics.readable(header.topic)
        if not 0 <= header.queue_id < topic.read_queues:
            raise InvalidParameter(
                f"queueId[{header.queue_id}] is illegal, topic:[{topic.name}] topicConfig.readQueueNums:[{topic.read_queues}]"
            )
        if header.count_max <= 0:
            raise InvalidParameter(f"maxMsgNums must be positive, not {header.count_max}")
        if self._groups.is_forbidden(group.name, topic.name):
            raise NoPermission(f"the consumer group[{group.name}] is forbidden for topic[{topic.name}]")
        subscription = subscription_of(header, self._clients, group.consume_broadcast_enable)
        codes, sieve = None, None
        is_sql = self._filtering.is_sql(subscription.expression_type)
        if not prepared:
            long = [
                each
                for each in expressions_of(header, subscription, self._clients, self._config)
                if self._filtering.takes_long(each)
            ]
            if long:
                return InOrder(self._prepared_first(request, long))
        if is_sql:
            sieve = self._filtering.sieve(subscription.expression)
        else:
            codes, sieve = self._by_tags(header, subscription)
        pull = PullRequest(
            request.connection,
            group.name,
            topic.name,
            header.queue_id,
            header.queue_offset,
            min(header.count_max, self._store.config.transfer_count_max),
            codes,
            header.hold_ms if header.sys_flag & PULL_SUSPEND else 0,
            request.opaque,
            request.is_binary,
            self._again,
            sieve=sieve,
        )
        self.last.note(group.name, topic.name, header.queue_id, header.queue_offset)
        if not request.is_oneway and self._moved(pull):
            return None
        if header.sys_flag & PULL_COMMIT and header.sys_flag & PULL_SUSPEND:
            self._commit(request.connection, group.name, topic.name, header.queue_id, header.commit_offset)
        if request.is_oneway:
            return None  # no peer waits for an answer; its commit counts all the same
        if header.queue_offset < 0:
            low, end, _next, _stored = self._kernel.queue_state(topic.name, header.queue_id)
            self._refuse(pull, TOO_SMALL, (low, low, end))
            return None
        self._try(pull, warm=False)
        return None

    async def _prepared_first(self, request: Request[PullMessage], long: list[SubscriptionData]) -> None:
        for subscription in long:
            await self._filtering.prepare(request.connection, subscription)
        if request.connection.is_open:
            self.handle(request, prepared=True)

    def _by_tags(
        self, header: PullMessage, subscription: SubscriptionData
    ) -> tuple[frozenset[int] | None, Sieve | None]:
        """Return the hashes of the requested tags, None for all; the kernel may answer the next one like it alone."""
        codes = self._filtering.tag_codes(subscription)
        group = self._clients.consumers.get(header.consumer_group)
        if group is not None and is_retry_topic(header.topic):
            sieve = self._filtering.retry_sieve(group.subscriptions)
            if sieve is not None:
                return None, sieve
        if not header.sys_flag & PULL_SUBSCRIPTION:
            self._subscriptions.allow(header.consumer_group, header.topic, False, subscription.version, codes)
        elif header.subscription == ALL:
            self._subscriptions.allow(header.consumer_group, header.topic, True, 0, None)
        return codes, None

    # -- going on ----------------------------------------------------------------------------------------------------------

    def _again(self, request: PullRequest) -> None:
        """Retry a pull that has waited, and may find messages now."""
        self._try(request, warm=False)

    def _try(self, request: PullRequest, warm: bool, tries: int = 0) -> None:
        if request.sieve is None:
            verdict, payload = self._kernel.pull(
                request.topic,
                request.queue_id,
                request.offset,
                request.count,
                request.codes,
                request.opaque,
                request.binary,
                warm,
            )
        else:
            bytes_max = self._store.config.transfer_bytes_max
            verdict, payload = request.sieve.pull(self._kernel, request, bytes_max, warm, self.ahead.has)
        self._go_on(request, verdict, payload, tries)

    def _go_on(self, request: PullRequest, verdict: int, payload: Any, tries: int = 0) -> None:
        """Answer a pull, or park it to wait. Each step but the last costs a try."""
        if verdict == FOUND:
            request.connection.send(payload)
        elif request.suspend_ms and self._is_at_end(request, verdict):
            self._park(request, verdict, payload)
        elif verdict == NO_MATCH and request.suspend_ms and request.until is not None and tries < _TRIES:
            # It was woken for messages it does not match: it waits on after them, without an answer to its consumer.
            request.offset = payload[0]
            self._try(request, False, tries + 1)
        elif verdict == NEED_ENTRIES and tries < _TRIES:
            if self.lending.lend_resident(request):
                self._try(request, False, tries + 1)
            else:
                self._work_for(request, self._fetch_entries(request, tries))
        elif verdict == COLD and tries < _TRIES:
            if self.ahead.has(*payload):
                self._try(request, True, tries + 1)
            else:
                self._work_for(request, self._fetch_records(request, payload, tries))
        elif verdict == TOO_SMALL and tries < _TRIES and self._is_of_former_life(request, payload[1]):
            # Code 21 would be right as well, but Java's consumers then wait for their next rebalance: up to 20 s.
            request.offset = payload[1]
            self._try(request, False, tries + 1)
        elif verdict == BROKEN:
            self._go_on_broken(request, payload, tries)
        else:
            self._refuse(request, verdict, payload)

    def _is_at_end(self, request: PullRequest, verdict: int) -> bool:
        """Return whether the message may still come: the master may have shown messages beyond the end of a copy that lags."""
        is_beyond = verdict == TOO_LARGE or (verdict == NO_MESSAGES and request.offset != 0)
        return self._may_lag() if is_beyond else verdict in (EMPTY, NO_MESSAGES)

    def _is_of_former_life(self, request: PullRequest, low: int) -> bool:
        """Its topic was deleted and made again, and it asks for an offset from before, with nothing missing since: `low` is
        where the queue begins now."""
        return request.offset < low == self._topics.first_offset(request.topic, request.queue_id)

    def _go_on_broken(self, request: PullRequest, payload: Any, tries: int) -> None:
        """The entry of message payload[0] is wrong: repair it from the log, or skip it if the log does not have the message any more."""
        number, low, end = payload
        if self.repairs.known_lost(request.topic, request.queue_id, number) is None and tries < _TRIES:
            self._work_for(request, self._repair(request, number, tries))
        else:
            following = self.repairs.go_on_at(request.topic, request.queue_id, number, request.offset)
            self._refuse(request, GONE, (following, low, end))

    async def _repair(self, request: PullRequest, number: int, tries: int) -> None:
        try:
            await self.repairs.repair(request.topic, request.queue_id, number)
        except Exception as error:
            self._unreadable(request, error)
            return
        if request.connection.is_open:
            self._try(request, True, tries + 1)

    def _work_for(self, request: PullRequest, job: Coroutine[Any, Any, None]) -> None:
        """Read in a worker. Meanwhile the pull counts as a large request, which limits how many a peer may cause."""
        request.connection.owe(_COLD_PULL_BYTES)

        async def work() -> None:
            try:
                await job
            finally:
                request.connection.settle(_COLD_PULL_BYTES)

        self._run(work())

    async def _fetch_entries(self, request: PullRequest, tries: int) -> None:
        try:
            lent = await self.lending.fetch(request)
        except OSError as error:
            self._unreadable(request, error)
            return
        if request.connection.is_open:
            self._try(request, False, tries + 1 if lent else _TRIES)

    async def _fetch_records(self, request: PullRequest, span: tuple[int, int], tries: int) -> None:
        low, high = span
        try:
            if high - low > COMPACT_BYTES:
                await self.worker(self.lending.read_records, request)
            else:
                try:
                    await self.ahead.fetch(low, high)
                except OSError:  # something near it cannot be read, maybe nothing that is asked for
                    await self.worker(self.lending.read_records, request)
        except OSError as error:
            if self._store.log.fd_at(low) is not None:
                self._unreadable(request, error)
                return
            # Its file was deleted meanwhile: the kernel knows where the queue begins now.
        if request.connection.is_open:
            self._try(request, True, tries + 1)

    def _unreadable(self, request: PullRequest, error: Exception) -> None:
        why = getattr(error, "strerror", None) or error
        text = f"messages of {request.topic}/{request.queue_id} from {request.offset} on cannot be read: {why}"
        log.error("%s", text, exc_info=None if isinstance(error, OSError) else error)
        self._answer(request, ResponseCode.SYSTEM_ERROR, f"{text}; check the broker's disk", {})

    # -- waiting and refusing ----------------------------------------------------------------------------------------------

    def _park(self, request: PullRequest, verdict: int, payload: Any) -> None:
        wait_ms = (
            min(request.suspend_ms, self._config.poll_hold_ms_max)
            if self._config.long_polling
            else self._config.short_polling_ms
        )
        if request.until is None:
            request.until = self._clock.liveness() + wait_ms / 1000
        topic, queue_id, connection = request.topic, request.queue_id, request.connection
        if self.waiting.park(request, request.until):
            return
        waits = self.waiting.waits_for(topic, queue_id, connection)
        if waits < OWNER_QUEUE_MAX:
            self._refuse(request, verdict, payload)
        else:
            text = (
                f"{waits} pulls of this connection wait for {topic}/{queue_id}, no more may: take their answers first"
            )
            self._answer(request, ResponseCode.SYSTEM_BUSY, text, {})

    def resubscribed(self, event: Resubscribed) -> None:
        """A group's subscription differs from that of its waiting pulls: make its consumers pull again with the present one."""
        group, topic = event.group, event.topic
        for connection in group.members:
            for request in self.waiting.take_of(connection, topic):
                if request.group == group.name:
                    low, end, _next, _stored = self._kernel.queue_state(topic, request.queue_id)
                    self._refuse(request, NO_MATCH, (request.offset, low, end))
                else:
                    self.waiting.wake([request])

    def reset(self, topic: str, queue_id: int) -> None:
        """A group was moved in this queue: answer all waiting pulls of its members now."""
        for request in self.waiting.take(topic, queue_id):
            if request.connection.is_open and not self._moved(request, parked=True):
                self.waiting.wake([request])

    def _moved(self, request: PullRequest, *, parked: bool = False) -> bool:
        """Answer a pull with its group's new offset, if that was reset and the client does not know it: see resets.py."""
        place = (request.group, request.topic, request.queue_id)
        stored = self._offsets.get(*place)
        if stored is None or self._clients.is_broadcasting(request.group):
            return False
        client, _member = self._clients.identify(request.connection, request.group)
        now = self._clock.liveness()
        if not self._resets.must_move(client, place, request.offset, stored, now, parked=parked):
            return False
        low, end, _next, _stored = self._kernel.queue_state(request.topic, request.queue_id)
        header = PullMessageResponse(suggested_broker_id=0, next_offset=stored, min_offset=low, max_offset=end)
        self.missed += 1
        self._answer(request, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", header.encode())
        return True

    def expire(self) -> None:
        """From time to time: pulls that have waited long enough get the answer that there is nothing."""
        self.waiting.expire(self._clock.liveness())

    def ticked(self, event: Tick) -> None:
        self.expire()
        self.ahead.expire()

    def connection_lost(self, event: ConnectionLost) -> None:
        self.waiting.lost(event.connection)

    def _refuse(self, request: PullRequest, verdict: int, payload: Any) -> None:
        self.missed += 1
        code, remark = _REMARKS[verdict]
        if verdict == NO_MESSAGES and request.offset:
            code = ResponseCode.PULL_OFFSET_MOVED
        next_offset, low, end = payload if verdict != COLD else (request.offset, 0, 0)
        if code == ResponseCode.PULL_OFFSET_MOVED and self._is_at_end(request, verdict):
            (code, remark), next_offset = _REMARKS[EMPTY], request.offset
        header = PullMessageResponse(suggested_broker_id=0, next_offset=next_offset, min_offset=low, max_offset=end)
        self._answer(request, code, remark, header.encode())

    def _answer(self, request: PullRequest, code: ResponseCode, remark: str, ext: dict[str, str]) -> None:
        response = Frame(code=code, opaque=request.opaque, flag=1, remark=remark, ext=ext, binary=request.binary)
        request.connection.send(response.encode())
