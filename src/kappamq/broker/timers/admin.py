"""Timers as operators and slaves see them: the checkpoint, how many are pending, how far we are."""

from __future__ import annotations

from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.timers.book import TimerBook
from kappamq.broker.timers.progress import TimerMetrics
from kappamq.broker.timers.timers import Timers
from kappamq.clock import Clock
from kappamq.protocol import fastjson
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import GetTimerCheckpoint, GetTimerMetrics


class TimerAdmin:
    def __init__(self, timers: Timers, book: TimerBook, metrics: TimerMetrics, clock: Clock) -> None:
        self._timers = timers
        self._book = book
        self._metrics = metrics
        self._clock = clock
        self._seen = (clock.liveness(), 0, 0)

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.GET_TIMER_CHECK_POINT: self.checkpoint, RequestCode.GET_TIMER_METRICS: self.metrics}

    def checkpoint(self, request: Request[GetTimerCheckpoint]) -> Frame:
        return request.reply(body=self._book.files.checkpoint.encode())

    def metrics(self, request: Request[GetTimerMetrics]) -> Frame:
        return request.reply(body=fastjson.dumps(self._metrics.table()))

    def runtime(self) -> dict[str, str]:
        """RocketMQ's keys about timers; rates since the last time somebody asked."""
        timers, now = self._timers, self._clock.liveness()
        since, entered, delivered = self._seen
        self._seen = now, timers.entered, timers.delivered
        seconds = max(now - since, 0.001)
        return {
            "timerReadBehind": str(timers.behind_ms() // 1000),
            "timerOffsetBehind": str(timers.behind),
            "timerCongestNum": str(self._metrics.total),
            "timerEnqueueTps": f"{(timers.entered - entered) / seconds:.1f}",
            "timerDequeueTps": f"{(timers.delivered - delivered) / seconds:.1f}",
        }
