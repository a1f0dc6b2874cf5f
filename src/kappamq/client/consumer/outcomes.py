"""What happens to messages after the listener returned: acknowledged, redelivered, retried locally, or dropped.

Three ways to consume, three rules:
- `Concurrent`: a failed message goes back to the broker and is redelivered later; other messages continue.
- `InOrder`: a failed message is retried after a pause; until then its queue is blocked.
- `Broadcast`: every member got it, so no broker takes it back: a failed message is dropped.

`reconsume_times`, which `reconsume_max` limits, counts for `Concurrent` how often a *broker* has redelivered the message.
While no broker takes it back it is retried locally, without limit and without counting (Java's client counts these): an
outage must not turn a message into a dead letter. `InOrder` counts every retry, up to the limit.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final, Protocol

from kappamq.client.consumer.inbox import Delivery, Inbox
from kappamq.client.consumer.redelivery import FIRST_LEVEL, Redelivery
from kappamq.client.core.pauses import Later, on_loop
from kappamq.client.pulling.process_queue import ProcessQueue
from kappamq.config.broker import BrokerConfig
from kappamq.config.checks import durations_ms
from kappamq.errors import KappaError
from kappamq.message import ReceivedMessage, Redeliver
from kappamq.protocol.names import dlq_topic

log = logging.getLogger(__name__)

EXPIRED: Final = Redeliver(level=3)
"""The verdict for a listener that exceeded its timeout."""


class Outcome(Protocol):
    def succeeded(self, delivery: Delivery) -> None:
        """Handle a delivery whose messages were all processed. Called on any thread."""

    async def failed(self, delivery: Delivery, verdict: Redeliver) -> None:
        """Handle a delivery of which not all messages were processed. Called on the loop."""

    def gives_up(self, delivery: Delivery) -> bool:
        """A listener takes too long: return whether its messages may be redelivered while it is still running."""

    def forecast(self, delivery: Delivery, verdict: Redeliver) -> str:
        """Describe for the log what `failed` will do with the first message, to follow the word "it"."""


class Concurrent:
    def __init__(self, inbox: Inbox, redelivery: Redelivery, again_s: float, later: Later = on_loop) -> None:
        self._inbox = inbox
        self._redelivery = redelivery
        self._again_s = again_s
        self._later = later

    def succeeded(self, delivery: Delivery) -> None:
        delivery.acknowledge()

    async def failed(self, delivery: Delivery, verdict: Redeliver) -> None:
        delivery.acknowledge(0, verdict.done)
        await asyncio.gather(
            *(self._give_back(delivery.queue, message, verdict) for message in delivery.messages[verdict.done :])
        )

    def gives_up(self, delivery: Delivery) -> bool:
        return True

    def forecast(self, delivery: Delivery, verdict: Redeliver) -> str:
        if delivery.queue.dropped:
            return "will be redelivered to the member that has its queue now"
        tries, most = delivery.message.reconsume_times, self._redelivery.reconsume_max
        if reason_to_bury(delivery.message, verdict, most) is not None:
            return f"goes to the dead-letter queue of group {self._redelivery.group}"
        pause = level_s(verdict.level or FIRST_LEVEL + tries)
        return f"will be redelivered in {pause:g} s (attempt {tries + 1} of {most})"

    async def _give_back(self, queue: ProcessQueue, message: ReceivedMessage, verdict: Redeliver) -> None:
        if queue.dropped:
            return  # the member that has the queue now gets it
        try:
            await self._redelivery.give_back(message, verdict.level)
            queue.acknowledge(message.queue_offset)
            reason = reason_to_bury(message, verdict, self._redelivery.reconsume_max)
            if reason is not None:
                _tell_buried(message, self._redelivery.group, reason)
            return
        except Exception as error:  # not only broker errors: a message that is neither acknowledged nor retried would hold the offset back
            log.warning(
                "no broker takes back message %s of topic %s (%s); the listener gets it again in %g s, counted as the same attempt",
                *(message.message_id, message.topic, error, self._again_s),
                exc_info=not isinstance(error, KappaError),
            )
        # It stays unacknowledged and holds the offset back, so it is redelivered after a crash, too.
        queue.resting += 1
        self._later(self._again_s, self._try_here, queue, message)

    def _try_here(self, queue: ProcessQueue, message: ReceivedMessage) -> None:
        queue.resting -= 1
        self._inbox.put(queue, [message])


class InOrder:
    """`reconsume_max`: how often a message is retried before it goes to the dead-letter queue. None: no limit.

    Without `redelivery` (ordered broadcasting) there is no dead-letter queue, and the message is dropped.
    """

    def __init__(
        self,
        inbox: Inbox,
        redelivery: Redelivery | None,
        suspend_s: float,
        reconsume_max: int | None,
        later: Later = on_loop,
    ) -> None:
        self._inbox = inbox
        self._redelivery = redelivery
        self._suspend_s = suspend_s
        self._reconsume_max = reconsume_max
        self._later = later

    def succeeded(self, delivery: Delivery) -> None:
        try:
            delivery.acknowledge()
        finally:
            self._inbox.done(delivery)

    async def failed(self, delivery: Delivery, verdict: Redeliver) -> None:
        queue = delivery.queue
        left = delivery.messages[verdict.done :]
        try:
            delivery.acknowledge(0, verdict.done)
            # Stop at the first message that must be retried, since its turn comes first; and skip queues we have lost.
            while left and not queue.dropped and await self._is_buried(queue, left[0], verdict):
                left = left[1:]
        finally:  # the queue is blocked until `done`
            if left:
                queue.suspended = True
                pause = self._suspend_s if verdict.pause_ms is None else verdict.pause_ms / 1000
                self._later(pause, self._resume, queue)
            # All were delivered together, so all have failed together.
            self._inbox.done(delivery, [self._tried_again(message) for message in left])

    def gives_up(self, delivery: Delivery) -> bool:
        # The next message would overtake the one that is still being processed.
        log.warning(
            "the listener is still processing message %s of %s; the queue is blocked until it returns",
            delivery.message.message_id,
            delivery.queue.queue,
        )
        return False

    def forecast(self, delivery: Delivery, verdict: Redeliver) -> str:
        if delivery.queue.dropped:
            return "will be redelivered to the member that has its queue now"
        tries, most = delivery.message.reconsume_times, self._reconsume_max
        if reason_to_bury(delivery.message, verdict, most) is not None:
            redelivery = self._redelivery
            return "is dropped" if redelivery is None else f"goes to the dead-letter queue of group {redelivery.group}"
        pause = self._suspend_s if verdict.pause_ms is None else verdict.pause_ms / 1000
        limit = "without limit" if most is None else f"of {most}"
        return f"will be retried in {pause:g} s (attempt {tries + 1} {limit}); its queue is blocked until then"

    def _tried_again(self, message: ReceivedMessage) -> ReceivedMessage:
        times = message.reconsume_times + 1
        # While the dead-letter queue is not reachable the message is retried; that still counts as its last attempt.
        return replace(
            message, reconsume_times=times if self._reconsume_max is None else min(times, self._reconsume_max)
        )

    async def _is_buried(self, queue: ProcessQueue, message: ReceivedMessage, verdict: Redeliver) -> bool:
        reason = reason_to_bury(message, verdict, self._reconsume_max)
        if reason is None:
            return False
        try:
            if self._redelivery is not None:
                await self._redelivery.bury(message)
                _tell_buried(message, self._redelivery.group, reason)
            else:
                log.warning(
                    "dropped broadcast message %s of topic %s: %s",
                    *(message.message_id, message.topic, reason),
                )
        except Exception as error:
            log.warning(
                "could not store message %s of topic %s in the dead-letter queue, retrying: %s",
                *(message.message_id, message.topic, error),
                exc_info=not isinstance(error, KappaError),
            )
            return False
        queue.acknowledge(message.queue_offset)
        return True

    def _resume(self, queue: ProcessQueue) -> None:
        queue.suspended = False
        self._inbox.look_again(queue)


class Broadcast:
    def succeeded(self, delivery: Delivery) -> None:
        delivery.acknowledge()

    async def failed(self, delivery: Delivery, verdict: Redeliver) -> None:
        for message in delivery.messages[verdict.done :]:
            log.warning(
                "dropped broadcast message %s of topic %s after its listener failed", message.message_id, message.topic
            )
        delivery.acknowledge()

    def gives_up(self, delivery: Delivery) -> bool:
        return True

    def forecast(self, delivery: Delivery, verdict: Redeliver) -> str:
        return "is dropped, since broadcast messages are not redelivered"


def reason_to_bury(message: ReceivedMessage, verdict: Redeliver, limit: int | None) -> str | None:
    """Return why a failed message is not redelivered, None if it is. `limit`: how often it may be; None: no limit."""
    if verdict.level < 0:
        return f"its listener rejected it (level={verdict.level})"
    if limit is not None and message.reconsume_times >= limit:
        return f"its listener failed after {message.reconsume_times} of at most {limit} redeliveries (reconsume_max)"
    return None


def _tell_buried(message: ReceivedMessage, group: str, reason: str) -> None:
    log.warning(
        "message %s of topic %s went to the dead-letter queue of group %s, topic %s: %s",
        *(message.message_id, message.topic, group, dlq_topic(group), reason),
    )


def level_s(level: int) -> float:
    """Return the seconds of a delay level by default; brokers do not tell clients if they are configured differently."""
    levels = durations_ms("delay_levels", BrokerConfig.delay_levels)
    return levels[min(level, len(levels)) - 1] / 1000


def named(delivery: Delivery) -> str:
    """Describe a delivery for the log: the first message by topic, id and keys, and how many more there are."""
    message, others = delivery.message, len(delivery.messages) - 1
    keys = f", keys {' '.join(message.keys)}" if message.keys else ""
    more = f" and {others} more in its batch" if others else ""
    return f"message {message.message_id} of topic {message.topic}{keys} (offset {message.queue_offset} of {message.queue}){more}"
