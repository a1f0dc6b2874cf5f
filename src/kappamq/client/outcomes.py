"""What becomes of messages after their listener: acknowledged, given back, tried again, or let go.

Three ways to consume, three rules:
- side by side (`Concurrent`): a failed message goes back to the broker and comes again later; the others go on.
- in order (`InOrder`): a failed message comes again after a pause; until then its queue waits.
- broadcast (`Broadcast`): everybody got it, nobody can give it back: a failed message is let go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Protocol

from kappamq.client.inbox import Delivery, Inbox
from kappamq.client.process_queue import ProcessQueue
from kappamq.client.redelivery import FIRST_LEVEL, Redelivery
from kappamq.config.broker import BrokerConfig
from kappamq.config.checks import durations_ms
from kappamq.errors import KappaError
from kappamq.message import ReceivedMessage, Redeliver

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
    def __init__(self, inbox: Inbox, redelivery: Redelivery, again_s: float) -> None:
        self._inbox = inbox
        self._redelivery = redelivery
        self._again_s = again_s

    def succeeded(self, delivery: Delivery) -> None:
        acknowledge(delivery.queue, delivery.messages)

    async def failed(self, delivery: Delivery, verdict: Redeliver) -> None:
        acknowledge(delivery.queue, delivery.messages[: verdict.done])
        await asyncio.gather(
            *(self._give_back(delivery.queue, message, verdict.level) for message in delivery.messages[verdict.done :])
        )

    def gives_up(self, delivery: Delivery) -> bool:
        return True

    def forecast(self, delivery: Delivery, verdict: Redeliver) -> str:
        if delivery.queue.dropped:
            return "comes again to whoever of the group has its queue now"
        tries, most = delivery.message.reconsume_times, self._redelivery.reconsume_max
        if verdict.level < 0 or tries >= most:
            return f"is now a dead letter of group {self._redelivery.group}"
        pause = level_s(verdict.level or FIRST_LEVEL + tries)
        return f"comes again in {pause:g} s (try {tries + 1} of {most})"

    async def _give_back(self, queue: ProcessQueue, message: ReceivedMessage, level: int) -> None:
        if queue.dropped:
            return  # it comes again to whoever has the queue now
        try:
            await self._redelivery.give_back(message, level)
            queue.acknowledge(message.queue_offset)
            return
        except Exception as error:  # not only what a broker says: a message that nobody has in hand stops the offset
            log.warning(
                "no broker takes message %s back (%s): it comes again here in %g s",
                message.message_id,
                error,
                self._again_s,
                exc_info=not isinstance(error, KappaError),
            )
        # Not acknowledged, so it holds the offset back: a crash now delivers it again as well.
        again = replace(message, reconsume_times=message.reconsume_times + 1)
        asyncio.get_running_loop().call_later(self._again_s, self._inbox.put, queue, [again])


class InOrder:
    """`reconsume_max`: how often a message is tried again; then it goes to the dead letters. None: without end.

    Without `redelivery` (broadcast in order) there are no dead letters: then it is let go.
    """

    def __init__(
        self, inbox: Inbox, redelivery: Redelivery | None, suspend_s: float, reconsume_max: int | None
    ) -> None:
        self._inbox = inbox
        self._redelivery = redelivery
        self._suspend_s = suspend_s
        self._reconsume_max = reconsume_max

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
            while left and not queue.dropped and await self._is_buried(queue, left[0], verdict.level < 0):
                left = left[1:]
        finally:  # until `done` the queue stands still
            if left:
                queue.suspended = True
                pause = self._suspend_s if verdict.pause_ms is None else verdict.pause_ms / 1000
                asyncio.get_running_loop().call_later(pause, self._resume, queue)
            # All were handed out together, so all have failed together.
            self._inbox.done(
                delivery, [replace(message, reconsume_times=message.reconsume_times + 1) for message in left]
            )

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
        if verdict.level < 0 or (most is not None and tries >= most):
            redelivery = self._redelivery
            return "does not come again" if redelivery is None else f"is now a dead letter of group {redelivery.group}"
        pause = self._suspend_s if verdict.pause_ms is None else verdict.pause_ms / 1000
        limit = "without a limit" if most is None else f"of {most}"
        return f"comes again in {pause:g} s (try {tries + 1} {limit}); its queue waits"

    async def _is_buried(self, queue: ProcessQueue, message: ReceivedMessage, at_once: bool) -> bool:
        limit = self._reconsume_max
        if not at_once and (limit is None or message.reconsume_times < limit):
            return False
        try:
            if self._redelivery is not None:
                await self._redelivery.bury(message)
            else:
                log.warning("broadcast message %s failed too often and does not come again", message.message_id)
        except Exception as error:
            log.warning(
                "message %s cannot be put to the dead letters yet: %s",
                message.message_id,
                error,
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
            log.warning("broadcast message %s failed and does not come again", message.message_id)
        acknowledge(delivery.queue, delivery.messages)

    def gives_up(self, delivery: Delivery) -> bool:
        return True

    def forecast(self, delivery: Delivery, verdict: Redeliver) -> str:
        return "does not come again, as nothing does that is broadcast"


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
