"""A name server and a broker for one test, on a thread of this process, with a clock of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kappamq.broker.broker import Broker
from kappamq.client import Admin, Consumer, Producer, PullConsumer, TransactionProducer
from kappamq.client.subscription import wanted_topics
from kappamq.config.client import ClientConfig
from kappamq.errors import ConfigError
from kappamq.local import Local, LocalThread
from kappamq.message import ReceivedMessage
from kappamq.protocol.record import decode
from kappamq.store.files import Files
from kappamq.testing.clock import KitClock

_SMALL = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 10_000),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
}
"""A broker of this size starts at once and leaves nothing behind worth speaking of."""
_STEP_MS = 3_600_000  # what has expired is looked for this often: one of the hours of a day is that of deletion
_QUIET_S = 0.01
_QUIET_ROUNDS = 2
_SETTLE_S_MAX = 5.0


def _as_text(value: object) -> str:
    """A value as broker.conf has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class BrokerKit:
    """A real broker: real sockets on loopback, real files in a temporary folder.

    `properties` are those of broker.conf. The clients it makes (`producer`, `consumer`, ...) share its clock; any other
    client can use it by its address `nameserver`."""

    def __init__(self, *, data: Path | None = None, properties: Mapping[str, object] | None = None) -> None:
        self.clock = KitClock()
        self._given = data
        self._properties = _SMALL | {name: _as_text(value) for name, value in (properties or {}).items()}
        self._consumers: list[Consumer] = []
        self._local: Local
        self._thread: LocalThread

    def __enter__(self) -> Self:
        self._data = self._given or Path(tempfile.mkdtemp(prefix="kappamq-test-"))
        self._local = Local.at(
            self._data, nameserver_port=0, broker_port=0, host="127.0.0.1", properties=self._properties, clock=self.clock,
            files=_TimedFiles(self.clock.message_ms),
        )  # fmt: skip
        if self._local.findings.unknown:
            self._remove_data()
            raise ConfigError(f"unknown properties: {', '.join(self._local.findings.unknown)}")
        self._thread = LocalThread(self._local)
        try:
            self._thread.__enter__()
        except BaseException:
            self._remove_data()
            raise
        self.clock.pass_ms = self._pass
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clock.pass_ms = None
        try:
            self._thread.__exit__(kind, error, trace)
        finally:
            self._remove_data()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def _remove_data(self) -> None:
        if self._given is None:
            shutil.rmtree(self._data, ignore_errors=True)

    # -- what a test uses --------------------------------------------------------------------------------------------------

    @property
    def nameserver(self) -> str:
        return self._local.nameserver

    @property
    def address(self) -> str:
        """Of the broker itself."""
        return self._local.broker

    @property
    def client_config(self) -> ClientConfig:
        """For clients that are made elsewhere and are to share the clock."""
        return ClientConfig(nameservers=(self.nameserver,), clock=self.clock)

    def producer(self, **options: Any) -> Producer:
        return Producer(config=self.client_config, **options)

    def transaction_producer(self, **options: Any) -> TransactionProducer:
        return TransactionProducer(config=self.client_config, **options)

    def consumer(self, **options: Any) -> Consumer:
        """Its topics are made if they are not there: it hears of the first message, not of the first after a while."""
        with self.admin() as admin:
            for topic in wanted_topics(options.get("topics", ())).keys() - set(admin.topics()):
                admin.create_topic(topic)
        consumer = Consumer(config=self.client_config, **options)
        self._consumers.append(consumer)
        return consumer

    def pull_consumer(self, **options: Any) -> PullConsumer:
        return PullConsumer(config=self.client_config, **options)

    def admin(self, **options: Any) -> Admin:
        return Admin(config=self.client_config, **options)

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """Everything that consumers of `topic` can see, oldest first; nothing if there is no such topic."""
        found: list[ReceivedMessage] = self.call(lambda broker: self._read(broker, topic))
        return found

    def bodies(self, topic: str) -> list[bytes]:
        return [message.body for message in self.messages(topic)]

    def call(self, work: Callable[[Broker], Any]) -> Any:
        """Run something on the broker's own loop and return what it says: for a look inside."""

        async def on_loop() -> Any:
            return work(self._local.running_broker)

        return self._thread.submit(on_loop()).result()

    def _read(self, broker: Broker, topic: str) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        for queue_id in broker.kernel.queue_ids(topic):
            low, end, _next, _stored = broker.kernel.queue_state(topic, queue_id)
            for offset in range(low, end):
                entry = broker.store.entry(topic, queue_id, offset)
                data = broker.store.record(entry[0]) if entry is not None else None
                if data is not None:
                    found.append(decode(data).to_message(broker.config.name))
        return sorted(found, key=lambda message: message.log_offset)

    # -- time --------------------------------------------------------------------------------------------------------------

    def _pass(self, ms: int) -> Future[Any]:
        return self._thread.submit(self._pass_on_loop(self._local.running_broker, ms))

    async def _pass_on_loop(self, broker: Broker, ms: int) -> None:
        clock, agenda = self.clock, broker.agenda
        target = clock.message_ms() + ms
        clean_ms = clock.message_ms() + _STEP_MS
        await self._settle(broker)
        while True:
            due = agenda.next_ms()
            step = min(target, clean_ms) if due is None else min(due, target, clean_ms)
            clock.not_before(step)
            before = broker.kernel.put_count
            for _ in iter(lambda: agenda.run_due(clock.message_ms()), False):
                await asyncio.sleep(0)  # what was stored becomes visible
            if broker.kernel.put_count != before or agenda.is_working:
                await self._settle(broker)  # whoever gets something may have something to say to it
                continue
            if step in (clean_ms, target):
                await broker.upkeep.clean()
                clean_ms = step + _STEP_MS
            if step == target:
                return

    async def _settle(self, broker: Broker) -> None:
        """Until nobody has anything to say any more."""
        until = self.clock.liveness() + _SETTLE_S_MAX
        quiet = 0
        while quiet < _QUIET_ROUNDS and self.clock.liveness() < until:
            before = _activity(broker)
            await asyncio.sleep(_QUIET_S)
            is_quiet = before == _activity(broker) and not broker.agenda.is_working and not self._is_consuming()
            quiet = quiet + 1 if is_quiet else 0

    def _is_consuming(self) -> bool:
        try:
            return any(consumer.inner.unfinished for consumer in self._consumers)
        except RuntimeError:  # its queues change while we look, on another thread
            return True


def _activity(broker: Broker) -> tuple[int, ...]:
    kernel = broker.kernel
    return kernel.put_count, kernel.get_count, kernel.fast_frames, kernel.left_frames


class _TimedFiles(Files):
    """Files as old as message time says: retention goes by the age of files."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms

    def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
        super().pwrite(fd, data, at)
        now = self._now_ms() * 1_000_000
        os.utime(fd, ns=(now, now))
