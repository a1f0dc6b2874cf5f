"""One request in flight, and the messages in it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kappamq.client.bursts.waiting import Waiting, each_its_own
from kappamq.client.core.routes import MASTER_ID, Route
from kappamq.client.producer.outgoing import Outgoing
from kappamq.client.producer.sending import MAYBE, Attempt, Failed, may_work_elsewhere
from kappamq.errors import ClientClosed, KappaError, SendTimeout
from kappamq.net.channel import Channel
from kappamq.protocol.frame import Frame

if TYPE_CHECKING:
    from kappamq.client.bursts.lanes import Lane
    from kappamq.client.bursts.sends import Sends

log = logging.getLogger(__name__)


class Burst:
    """Sends the messages that a lane gave it. The first attempt takes no task if route and connection are available."""

    def __init__(self, lane: Lane, entries: list[Waiting], outgoing: Outgoing) -> None:
        self._lane = lane
        self._sends: Sends = lane.sends
        self._entries = entries
        self._outgoing = outgoing
        self._deadline = max([entry.deadline for entry in entries])
        self._attempt: Attempt | None = None
        self._route: Route | None = None

    def start(self) -> Channel | None:
        """Send. Returns the connection on which bytes wait for `flush`, if any."""
        for entry in self._entries:
            entry.sent = True
        sends, queue = self._sends, self._lane.queue
        route = sends.core.routes.ready(queue.topic)
        address = route.addresses.get(queue.broker, {}).get(MASTER_ID) if route is not None else None
        channel = sends.core.brokers.ready(address) if address is not None else None
        if route is None or channel is None:
            self._leave_to_task(None)
            return None
        now = sends.core.clock.liveness()
        last = self._lane.ordered or not sends.sending.config.send_retries
        self._attempt = attempt = sends.sending.attempt(route, queue, max(self._deadline - now, 0.0), now, last=last)
        self._route = route
        outgoing = self._outgoing
        try:
            channel.post(sends.sending.request(outgoing, queue), self, attempt.left)
        except KappaError as error:
            self._fail(error)  # too large for a frame: nothing was sent
            self._lane.finished()
            return None
        return channel

    # --- called by the channel ---

    def answered(self, answer: Frame) -> None:
        assert self._attempt is not None
        sends = self._sends
        try:
            results = sends.sending.answered(sends.core, self._outgoing, self._attempt, answer)
        except KappaError as error:
            self._go_on(error)
            return
        except Exception as error:
            log.exception("an answer of %s could not be read", self._attempt.address)
            self._fail(error)
        else:
            sends.succeed(self._entries, results, self._outgoing)
        self._lane.finished()

    def failed(self, error: KappaError) -> None:
        assert self._attempt is not None
        self._go_on(self._sends.sending.unanswered(self._sends.core, self._attempt, error))

    # --- messages that the first attempt did not settle ---

    def _go_on(self, error: KappaError) -> None:
        assert self._attempt is not None
        assert self._route is not None
        self._leave_to_task(Failed(self._attempt, self._route, error))

    def _leave_to_task(self, first: Failed | None) -> None:
        if first is not None and not self._lane.ordered:
            self._lane.finished(in_trouble=True)  # waiting messages may choose another queue
            self._sends.spawn(self._try_on(first))
        else:
            self._sends.spawn(self._try_and_finish(first))

    async def _try_and_finish(self, first: Failed | None) -> None:
        try:
            await self._try_on(first)
        finally:
            self._lane.finished(in_trouble=not self._lane.ordered)

    async def _try_on(self, first: Failed | None) -> None:
        entries, sends = self._entries, self._sends
        key, queue = (entries[0].key, entries[0].queue) if len(entries) == 1 else (None, None)
        if self._lane.ordered and len(entries) > 1:
            queue = self._lane.queue  # their keys differ; only the queue is the same
        limit = max(entry.limit for entry in entries)
        try:
            results = await sends.sending.tries(
                sends.core, self._outgoing, key, queue, limit, self._deadline, first, self._lane.queue
            )
        except KappaError as error:
            if len(entries) > 1 and refused(error):
                await self._one_by_one()
            else:
                self._fail(error)
        except asyncio.CancelledError:
            self._fail(ClientClosed(f"this client was closed before the message was confirmed: {MAYBE}"))
            raise
        except Exception as error:
            log.exception("a send failed in an unexpected way")
            self._fail(error)
        else:
            sends.succeed(entries, results, self._outgoing)

    async def _one_by_one(self) -> None:
        """A broker refused the batch: send each message by itself, so that only those fail that caused the refusal."""
        sends = self._sends
        entries = [entry for entry in self._entries if not entry.settled]
        ids = dict(zip(self._entries, self._outgoing.message_ids, strict=True))
        if self._lane.ordered:
            for entry in entries:
                await sends.alone(entry, ids[entry])
        else:
            await asyncio.gather(*(sends.alone(entry, ids[entry]) for entry in entries))
        self._lane.batch_refused(sum(entry.weight for entry in entries))

    def _fail(self, error: BaseException) -> None:
        errors = each_its_own(error, len(self._entries))
        first = self._outgoing.message_ids[0]
        for entry, own, message_id in zip(self._entries, errors, self._outgoing.message_ids, strict=True):
            if isinstance(own, SendTimeout) and message_id != first:
                own.args = (str(own).replace(first, message_id, 1), *own.args[1:])
            self._sends.fail(entry, own, message_id)


def refused(error: KappaError) -> bool:
    """Whether a broker refused the request as such, so that it may accept parts of it."""
    return error.response_code is not None and not may_work_elsewhere(error)
