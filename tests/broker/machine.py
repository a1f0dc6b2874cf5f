"""For hypothesis: a real broker whose message time stands still until a rule moves it, and which may be restarted or killed."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine

from kappamq.broker.broker import Broker
from kappamq.clock import VirtualClock
from tests.broker.running import Speaker, crash_copy, running, speaking

T = TypeVar("T")

# Not shrunk: every try is a broker of its own, and the steps of a failure are few enough to read.
FEW = settings(max_examples=12, stateful_step_count=25, phases=[Phase.explicit, Phase.reuse, Phase.generate])


class BrokerMachine(RuleBasedStateMachine):
    broker: Broker
    member: Speaker  # a consumer
    tool: Speaker

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.home = Path(tempfile.mkdtemp(prefix="kappamq-machine-"))
        self.folder = self.home / "0"
        self.clock = VirtualClock()
        self.stack = AsyncExitStack()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 30))

    async def opened(self) -> None:
        """The broker is there, for the first time or again."""

    def open(self) -> None:
        async def opening() -> None:
            # A long interval: what is recorded when is for the test to say.
            options: dict[str, Any] = {"clock": self.clock, "net": {"idle_s": 0}, "offsets_flush_ms": 3_600_000}
            self.broker = await self.stack.enter_async_context(running(self.folder, **options))
            self.member = await self.stack.enter_async_context(speaking(self.broker))
            self.tool = await self.stack.enter_async_context(speaking(self.broker))
            await self.opened()

        self.run(opening())

    def reopen(self, crash: bool) -> None:
        """Stop and start it; with `crash` it finds what its files hold at this moment."""
        if crash:
            copied = self.home / str(int(self.folder.name) + 1)
            self.run(self._copy(copied))
        self.run(self.stack.aclose())
        if crash:
            self.folder = copied
        self.open()

    async def _copy(self, target: Path) -> None:
        self.broker.offsets.record_commits()
        self.broker.writer.end_turn()
        await crash_copy(self.broker, target)

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.loop.close()
        shutil.rmtree(self.home)
