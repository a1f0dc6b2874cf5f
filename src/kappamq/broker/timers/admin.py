"""Timers as operators and slaves see them: the checkpoint, how many are pending, how far we are.

Lives as long as the process; timers are delivered only by the master, so there may be none to ask."""

from __future__ import annotations

from collections.abc import Callable

from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.sending.gate import not_master
from kappamq.broker.timers.progress import TimerMetrics
from kappamq.broker.timers.timers import Timers
from kappamq.clock import Clock
from kappamq.protocol import fastjson
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import GetTimerCheckpoint, GetTimerMetrics


class TimerAdmin:
    def __init__(self, timers: Callable[[], Timers | None], metrics: TimerMetrics, clock: Clock) -> None:
        self._timers = timers
        self._metrics = metrics
        self._clock = clock
        self._seen = (clock.liveness(), 0, 0)

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.GET_TIMER_CHECK_POINT: self.checkpoint, RequestCode.GET_TIMER_METRICS: self.metrics}

    def checkpoint(self, request: Request[GetTimerCheckpoint]) -> Frame:
        timers = self._timers()
        if timers is None:
            raise not_master()
        return request.reply(body=timers.checkpoint.encode())

    def metrics(self, request: Request[GetTimerMetrics]) -> Frame:
        return request.reply(body=fastjson.dumps(self._metrics.table()))

    def runtime(self) -> dict[str, str]:
        """RocketMQ's keys about timers; rates since the last time somebody asked."""
        timers, now = self._timers(), self._clock.liveness()
        since, entered_before, delivered_before = self._seen
        entered, delivered = (timers.entered, timers.delivered) if timers is not None else (0, 0)
        self._seen = now, entered, delivered
        if entered < entered_before or delivered < delivered_before:
            entered_before = delivered_before = 0  # the timers of another role, which count from 0
        seconds = max(now - since, 0.001)
        return {
            "timerReadBehind": str(timers.behind_ms() // 1000 if timers is not None else 0),
            "timerOffsetBehind": str(timers.behind if timers is not None else 0),
            "timerCongestNum": str(self._metrics.total),
            "timerEnqueueTps": f"{(entered - entered_before) / seconds:.1f}",
            "timerDequeueTps": f"{(delivered - delivered_before) / seconds:.1f}",
        }
