"""Messages that the kernel stores by itself although they are not for consumers yet: half messages, timers, delay levels.

While this node may write, the kernel is allowed to take such sends, and to end transactions that it has opened; its reports
of them are passed on here, before any later request is served. Python does the rest, and all unusual cases; the
bytes in the log are the same.
"""

from __future__ import annotations

from collections.abc import Callable

from kappamq.broker.delivery.delay_levels import Delays
from kappamq.broker.events import KernelNoted
from kappamq.broker.timers.timers import Timers
from kappamq.broker.transactions.half_log import HalfLog
from kappamq.config.broker import BrokerConfig
from kappamq.events import Events, Listening
from kappamq.native.interface import Kernel
from kappamq.native.layout import HalfEnded, HalfOpened, LevelParked
from kappamq.state.events import SettingsChanged

_LEVELS_MAX = 63
_SETTINGS = frozenset({"broker.reject_transactions", "broker.timers", "broker.timer_delay_max_s"})


class KernelWaits:
    def __init__(
        self,
        kernel: Kernel,
        config: BrokerConfig,
        halves: HalfLog,
        timers: Timers,
        delays: Delays,
        events: Events,
        now_ms: Callable[[], int],
    ) -> None:
        self._kernel = kernel
        self._config = config
        self._halves = halves
        self._timers = timers
        self._delays = delays
        self._listening = Listening(events)
        self._now_ms = now_ms

    def begin(self) -> None:
        """This node may write."""
        self._listening.on(KernelNoted, self.noted)
        self._listening.on(SettingsChanged, self.settings_changed)
        self._allow()

    def end(self) -> None:
        self._kernel.let_wait(False, 0, 0, "")
        self._listening.end()

    def _allow(self) -> None:
        config = self._config
        timer_ms_max = config.timer_delay_max_s * 1000 if config.timers else 0
        levels = min(len(config.delays_ms), _LEVELS_MAX)
        self._kernel.let_wait(not config.reject_transactions, timer_ms_max, levels, config.name)

    def settings_changed(self, event: SettingsChanged) -> None:
        if event.fields & _SETTINGS:
            self._allow()

    def noted(self, event: KernelNoted) -> None:
        now_ms = self._now_ms()
        of_halves: list[HalfOpened | HalfEnded] = []
        for note in event.notes:
            if not isinstance(note, LevelParked):
                of_halves.append(note)
            elif note.level:
                self._delays.parked(note.level, now_ms)
            else:
                self._timers.wake()
        if of_halves:
            self._halves.noted(of_halves, now_ms)
