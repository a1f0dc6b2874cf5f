"""What becomes of messages after their listener: acknowledged, given back, tried again, or let go.

Three ways to consume, three rules:
- side by side (`Concurrent`): a failed message goes back to the broker and comes again later; the others go on.
- in order (`InOrder`): a failed message comes again after a pause; until then its queue waits.
- broadcast (`Broadcast`): everybody got it, nobody can give it back: a failed message is let go.

What `reconsume_times` counts, and `reconsume_max` limits: side by side, how often a *broker* has delivered the message again.
While no broker takes it back it is tried here, as often as that takes, and these tries do not count (Java's client counts
them): an outage must not be the reason why a message is buried. In order, every try after the first counts, up to the limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
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
"""What a listener is taken to have said that did not come back in time."""


class Outcome(Protocol):
    def succeeded(self, delivery: Delivery) -> None:
        """All messages are done. On any thread."""

    async def failed(self, delivery: Delivery, verdict: Redeliver) -> None:
        """Not all are done. On the loop."""

    def gives_up(self, delivery: Delivery) -> bool:
        """A listener takes too long: may its messages go elsewhere while it is still at it?"""

    def forecast(self, delivery: Delivery, verdict: Redeliver) -> str:
        """What `failed` is going to do with the first message, for whoever reads the log: "it ..." """


class Concurrent:
    def __init__(self, inbox: Inbox, redelivery: Redelivery, again_s: float, later: Later = on_loop) -> None:
        self._inbox = inbox
        self._redelivery = redelivery
        self._again_s = again_s
        self._later = later

    def succeeded(self, delivery: Delivery) -> None:
        acknowledge(delivery.queue, delivery.messages)

    async def failed(self, delivery: Delivery, verdict: Redeliver) -> None:
        acknowledge(delivery.queue, delivery.messages[: verdict.done])
        await asyncio.gather(
            *(self._give_back(delivery.queue, message, verdict) for message in delivery.messages[verdict.done :])
        )

    def gives_up(self, delivery: Delivery) -> bool:
        return True

    def forecast(self, delivery: Delivery, verdict: Redeliver) -> str:
        if delivery.queue.dropped:
            return "comes again to whoever of the group has its queue now"
        tries, most = delivery.message.reconsume_times, self._redelivery.reconsume_max
        if reason_to_bury(delivery.message, verdict, most) is not None:
            return f"goes to the dead letters of group {self._redelivery.group}"
        pause = level_s(verdict.level or FIRST_LEVEL + tries)
        return f"comes again in {pause:g} s (try {tries + 1} of {most})"

    async def _give_back(self, queue: ProcessQueue, message: ReceivedMessage, verdict: Redeliver) -> None:
        if queue.dropped:
            return  # it comes again to whoever has the queue now
        try:
            await self._redelivery.give_back(message, verdict.level)
            queue.acknowledge(message.queue_offset)
            reason = reason_to_bury(message, verdict, self._redelivery.reconsume_max)
            if reason is not None:
                _tell_buried(message, self._redelivery.group, reason)
            return
        except Exception as error:  # not only what a broker says: a message that nobody has in hand stops the offset
            log.warning(
                "no broker takes message %s of topic %s back (%s): the listener gets it again in %g s, which counts as the same try",
                *(message.message_id, message.topic, error, self._again_s),
                exc_info=not isinstance(error, KappaError),
            )
        # Not acknowledged, so it holds the offset back: a crash now delivers it again as well.
        queue.resting += 1
        self._later(self._again_s, self._try_here, queue, message)

    def _try_here(self, queue: ProcessQueue, message: ReceivedMessage) -> None:
        queue.resting -= 1
        self._inbox.put(queue, [message])


class InOrder:
    """`reconsume_max`: how often a message is tried again; then it goes to the dead letters. None: without end.

    Without `redelivery` (broadcast in order) there are no dead letters: then it is let go.
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
            acknowledge(delivery.queue, delivery.messages)
        finally:
            self._inbox.done(delivery)

    async def failed(self, delivery: Delivery, verdict: Redeliver) -> None:
        queue = delivery.queue
        left = delivery.messages[verdict.done :]
        try:
            acknowledge(queue, delivery.messages[: verdict.done])
            # Not past one that stays, its turn comes first; and not of a queue that is somebody else's.
            while left and not queue.dropped and await self._is_buried(queue, left[0], verdict):
                left = left[1:]
        finally:  # until `done` the queue stands still
            if left:
                queue.suspended = True
                pause = self._suspend_s if verdict.pause_ms is None else verdict.pause_ms / 1000
                self._later(pause, self._resume, queue)
            # All were handed out together, so all have failed together.
            self._inbox.done(delivery, [self._tried_again(message) for message in left])

    def gives_up(self, delivery: Delivery) -> bool:
        # Whoever gets the next message while this one is still being worked on would overtake it.
        log.warning(
            "the listener has had message %s of %s for a long time; its queue waits for it",
            delivery.message.message_id,
            delivery.queue.queue,
        )
        return False

    def forecast(self, delivery: Delivery, verdict: Redeliver) -> str:
        if delivery.queue.dropped:
            return "comes again to whoever of the group has its queue now"
        tries, most = delivery.message.reconsume_times, self._reconsume_max
        if reason_to_bury(delivery.message, verdict, most) is not None:
            redelivery = self._redelivery
            return (
                "does not come again" if redelivery is None else f"goes to the dead letters of group {redelivery.group}"
            )
        pause = self._suspend_s if verdict.pause_ms is None else verdict.pause_ms / 1000
        limit = "without a limit" if most is None else f"of {most}"
        return f"comes again in {pause:g} s (try {tries + 1} {limit}); its queue waits"

    def _tried_again(self, message: ReceivedMessage) -> ReceivedMessage:
        times = message.reconsume_times + 1
        # One that cannot be buried yet is tried until it can; that is still its last try.
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
                    "broadcast message %s of topic %s does not come again: %s",
                    *(message.message_id, message.topic, reason),
                )
        except Exception as error:
            log.warning(
                "message %s of topic %s cannot be stored in the dead letters yet: %s",
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
        acknowledge(delivery.queue, delivery.messages)

    async def failed(self, delivery: Delivery, verdict: Redeliver) -> None:
        for message in delivery.messages[verdict.done :]:
            log.warning(
                "broadcast message %s of topic %s failed and does not come again", message.message_id, message.topic
            )
        acknowledge(delivery.queue, delivery.messages)

    def gives_up(self, delivery: Delivery) -> bool:
        return True

    def forecast(self, delivery: Delivery, verdict: Redeliver) -> str:
        return "does not come again, as nothing does that is broadcast"


def reason_to_bury(message: ReceivedMessage, verdict: Redeliver, limit: int | None) -> str | None:
    """Why a failed message does not come again, None if it does. `limit`: how often it may; None: without end."""
    if verdict.level < 0:
        return f"its listener gave it up (level={verdict.level})"
    if limit is not None and message.reconsume_times >= limit:
        return f"its listener failed after {message.reconsume_times} of at most {limit} redeliveries (reconsume_max)"
    return None


def _tell_buried(message: ReceivedMessage, group: str, reason: str) -> None:
    log.warning(
        "message %s of topic %s is a dead letter of group %s now, in topic %s: %s",
        *(message.message_id, message.topic, group, dlq_topic(group), reason),
    )


def level_s(level: int) -> float:
    """Seconds of a delay level, as brokers have them unless they are told otherwise; they do not tell clients."""
    levels = durations_ms("delay_levels", BrokerConfig.delay_levels)
    return levels[min(level, len(levels)) - 1] / 1000


def named(delivery: Delivery) -> str:
    """What a listener has got, for the log: the first message by topic, id and keys, and how many more there are."""
    message, others = delivery.message, len(delivery.messages) - 1
    keys = f", keys {' '.join(message.keys)}" if message.keys else ""
    more = f" and {others} more of its list" if others else ""
    return f"message {message.message_id} of topic {message.topic}{keys} (offset {message.queue_offset} of {message.queue}){more}"


def acknowledge(queue: ProcessQueue, messages: Iterable[ReceivedMessage]) -> None:
    for message in messages:
        queue.acknowledge(message.queue_offset)
