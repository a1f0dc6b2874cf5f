"""Places messages with a delivery time in the timer topic; times beyond the limit are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kappamq.broker.delivery.parking import park
from kappamq.broker.sending.appending import Draft
from kappamq.config.broker import BrokerConfig
from kappamq.errors import BrokerError, IllegalMessage
from kappamq.protocol.names import TIMER_TOPIC, is_retry_topic
from kappamq.protocol.recall import RecallHandle
from kappamq.protocol.records import properties
from kappamq.protocol.timing import asked_ms, number
from kappamq.store.timer.entries import slot_ms

_ADDED_BYTES = 200  # what a copy's properties may have more than the parked message's


class TimerPlacer:
    def __init__(self, config: BrokerConfig, on_parked: Callable[[], None] = lambda: None) -> None:
        self._config = config
        self._on_parked = on_parked

    def place(self, draft: Draft, now_ms: int) -> None:
        """A placer, in front of that of the delay levels: a level goes before a time, as with RocketMQ."""
        pairs = draft.properties
        if not properties.TIMER_NAMES & pairs.keys() or properties.TIMER_OUT_MS in pairs:
            return  # it asks for no time, or has waited for it: dead letters and whoever passes a message on keep what it says
        if _has_level(pairs):
            for name in properties.TIMER_NAMES:
                pairs.pop(name, None)
            return
        due_ms = self.check(draft, now_ms)
        if due_ms is None:
            return
        pairs[properties.TIMER_OUT_MS] = str(slot_ms(due_ms))  # RocketMQ's precision
        pairs[properties.TIMER_DELIVER_MS] = str(due_ms)  # ours
        park(draft, TIMER_TOPIC, 0)
        self._on_parked()

    def check(self, draft: Draft, now_ms: int, more_bytes: int = 0) -> int | None:
        """When a message is to be delivered, None if at once. Raises IllegalMessage, BrokerError if that cannot be promised.

        `more_bytes`: what its properties will have grown by when it is placed."""
        pairs = draft.properties
        if properties.TIMER_OUT_MS in pairs:
            return None  # it has waited
        due_ms = asked_ms(pairs, now_ms)
        if due_ms is None or _has_level(pairs):
            return None
        if due_ms <= now_ms:
            if properties.TIMER_DELETE_UNIQUE_KEY in pairs:
                raise IllegalMessage("it is too late to recall the message: its time has come")
            return None
        if not self._config.timers:
            raise BrokerError("timers are switched off at this broker (timerWheelEnable): send it without a time")
        if due_ms - now_ms > self._config.timer_delay_max_s * 1000:
            raise IllegalMessage(
                f"the message is to be delivered in {(due_ms - now_ms) / 1000:g} s, the limit is "
                f"{self._config.timer_delay_max_s} s (timerMaxDelaySec)"
            )
        text_bytes = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in pairs.items())
        if text_bytes + more_bytes + len(draft.topic.encode()) + _ADDED_BYTES > properties.TEXT_BYTES_MAX:
            raise IllegalMessage(
                f"the message has {text_bytes} bytes of properties, too many for one that is delivered later: what the "
                f"broker adds must fit in, too; msg properties length limit {properties.TEXT_BYTES_MAX}"
            )
        return due_ms


def _has_level(pairs: Mapping[str, str]) -> bool:
    return (number(pairs, properties.DELAY) or 0) > 0


def recall_handle(draft: Draft, broker: str) -> str | None:
    """Return the handle by which a sender can recall a parked message; None if it cannot be recalled."""
    pairs = draft.properties
    topic = pairs.get(properties.REAL_TOPIC, "")
    if draft.topic != TIMER_TOPIC or is_retry_topic(topic):
        return None
    due_ms = int(pairs[properties.TIMER_DELIVER_MS])
    return RecallHandle(topic, broker, due_ms, pairs[properties.UNIQUE_KEY]).encode()
