"""Consumer offsets that were committed to a node that does not write: told to the one that does, as soon as there is one.

Consumers that go on from a slave, or from members of a group without a leader, commit there. Without this only they would know how far
they have come, and whoever takes over from them would get the same messages again. The master takes what is further than it knows, and
records it; here it is forgotten when that record comes with the log. A reset that the log has brought meanwhile wins.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final

from kappamq.clock import Clock
from kappamq.errors import KappaError
from kappamq.net.channel import Channel
from kappamq.protocol.frame import request
from kappamq.protocol.headers.client import UpdateConsumerOffset
from kappamq.state.offsets import Offsets

log = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
_CONNECT_S: Final = 3.0
_ANSWER_S: Final = 5.0
_AT_ONCE: Final = 1000

Run = Callable[[Coroutine[Any, Any, None]], object]


class Forwarding:
    def __init__(
        self, offsets: Offsets, clock: Clock, master: Callable[[], str | None], tls: ssl.SSLContext | None, run: Run
    ) -> None:
        """`master`: where its clients reach the one that writes, once all is here that it had when we met it; None if nobody is to be
        told now."""
        self._offsets = offsets
        self._clock = clock
        self._master = master
        self._tls = tls
        self._run = run
        self._running = False
        self._next = 0.0
        self._told: dict[tuple[str, str, int], int] = {}
        self._told_to = ""

    def look(self) -> None:
        """From time to time."""
        now = self._clock.liveness()
        if self._running or now < self._next:
            return
        self._next = now + _EVERY_S
        master, beside = self._master(), self._offsets.beside()
        if master is None or not beside:
            return
        if master != self._told_to:
            self._told_to, self._told = master, {}
        kept = {(topic, group, queue) for topic, group, queue, _offset in beside}
        self._told = {key: offset for key, offset in self._told.items() if key in kept}
        news = [each for each in beside if self._told.get(each[:3]) != each[3]]
        if news:
            self._running = True
            self._run(self._forward(master, news[:_AT_ONCE]))

    async def _forward(self, master: str, news: list[tuple[str, str, int, int]]) -> None:
        told = refused = 0
        try:
            channel = await Channel.connect(master, timeout=_CONNECT_S, tls=self._tls)
            try:
                for topic, group, queue, offset in news:
                    commit = UpdateConsumerOffset(
                        consumer_group=group, topic=topic, queue_id=queue, commit_offset=offset, forward=True
                    )
                    answer = await channel.request(request(commit), timeout=_ANSWER_S)
                    told, refused = told + 1, refused + (answer.code != 0)
                    if self._told_to == master:
                        self._told[topic, group, queue] = offset  # what is refused is refused the next time, too
            finally:
                channel.close()
        except (TimeoutError, KappaError, OSError) as error:
            log.info(
                "copies: offsets that were committed here could not be told to %s, trying again: %s", master, error
            )
        finally:
            self._running = False
        if told:
            log.info(
                "copies: %d offsets that were committed here were told to %s, which refused %d", told, master, refused
            )
