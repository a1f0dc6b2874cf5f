"""Forwards consumer offsets that were committed to a node that does not write to the one that does, as soon as there is one.

Consumers that go on from a slave, or from members of a group without a leader, commit there. Without this only they would know their
progress, and a consumer that takes over would get the same messages again. The master accepts offsets beyond its own, and
records them; here they are forgotten when that record arrives with the log. Until then they are sent again periodically: the master may
have crashed before it recorded them. A reset that has arrived with the log meanwhile wins.
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
_AGAIN_S: Final = 10.0  # an offset that was sent, and has not come back with the log for this long, is sent again

Run = Callable[[Coroutine[Any, Any, None]], object]


class Forwarding:
    def __init__(
        self, offsets: Offsets, clock: Clock, master: Callable[[], str | None], tls: ssl.SSLContext | None, run: Run
    ) -> None:
        """`master`: where clients reach the node that writes, once we have everything it had when we connected; None if nothing is to be
        sent now."""
        self._offsets = offsets
        self._clock = clock
        self._master = master
        self._tls = tls
        self._run = run
        self._running = False
        self._next = 0.0
        self._told: dict[tuple[str, str, int], tuple[int, float]] = {}  # the offset, and when
        self._told_to = ""

    def look(self) -> None:
        """Called periodically."""
        now = self._clock.liveness()
        if self._running or now < self._next:
            return
        self._next = now + _EVERY_S
        master = self._master()
        if master is None or master != self._told_to:
            self._told_to, self._told = master or "", {}
        if master is not None and (news := self._news(now)):
            self._running = True
            self._run(self._forward(master, news))

    def _news(self, now: float) -> list[tuple[str, str, int, int]]:
        """The offsets to forward now: new ones first, then those that were forwarded longest ago."""
        fresh: list[tuple[str, str, int, int]] = []
        again: list[tuple[float, tuple[str, str, int, int]]] = []
        told: dict[tuple[str, str, int], tuple[int, float]] = {}
        for each in self._offsets.each_beside():
            offset, when = self._told.get(each[:3], (-1, now))
            if offset != each[3]:
                fresh.append(each)
                if len(fresh) == _AT_ONCE:
                    return fresh
                continue
            told[each[:3]] = offset, when
            if now - when >= _AGAIN_S:
                again.append((when, each))
        self._told = told  # the rest is in the log by now
        return fresh + [each for _when, each in sorted(again)[: _AT_ONCE - len(fresh)]]

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
                        # A refused offset would be refused the next time, too.
                        self._told[topic, group, queue] = offset, self._clock.liveness()
            finally:
                channel.close()
        except (TimeoutError, KappaError, OSError) as error:
            log.info("copies: could not forward committed offsets to %s, retrying: %s", master, error)
        finally:
            self._running = False
        if told:
            log.info("copies: forwarded %d committed offsets to %s, which refused %d", told, master, refused)
