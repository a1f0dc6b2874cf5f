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
from typing import Any, Self, Unpack

from kappamq.broker.broker import Broker
from kappamq.client import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncLitePullConsumer,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncTransactionProducer,
    Consumer,
    LitePullConsumer,
    Producer,
    PullConsumer,
    TransactionProducer,
)
from kappamq.client.core.registry import lend_clock, withdraw_clock
from kappamq.client.group.group_member import current_reader
from kappamq.client.group.subscription import wanted_topics
from kappamq.client.options import (
    ConsumerOptions,
    LitePullConsumerOptions,
    ProducerOptions,
    PullConsumerOptions,
    TransactionProducerOptions,
)
from kappamq.config.client import ClientConfig, ClientOptions
from kappamq.errors import ConfigError
from kappamq.local import Local, LocalThread
from kappamq.message import ReceivedMessage
from kappamq.protocol.records.record import decode
from kappamq.store.checkpoint import Checkpoint
from kappamq.store.files import Files
from kappamq.testing.clock import KitClock, refuse_on_a_loop_of_clients
from kappamq.testing.settling import Settling

_SMALL = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 10_000),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
}
"""A broker of this size starts at once and takes little disk space."""
_STEP_MS = 3_600_000  # expired files are looked for this often: one hour of the day is the deletion hour

_IMPATIENT_S = 0.1


def _as_text(value: object) -> str:
    """Return a value as in broker.conf."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class BrokerKit:
    """A real broker: real sockets on loopback, real files in a temporary folder.

    `properties` are those of broker.conf. All clients of this process that use it share its clock: those it creates (`producer`,
    `async_consumer`, ...) and those of the application, which only need its address `nameserver`."""

    def __init__(
        self, *, data: Path | None = None, properties: Mapping[str, object] | None = None, patience: float = 10.0
    ) -> None:
        """`patience`: how many seconds of real time to wait for a listener that hangs, each time it holds up others."""
        self.clock = KitClock()
        self._patience = patience
        self._given = data
        self._properties = _SMALL | {name: _as_text(value) for name, value in (properties or {}).items()}
        self._names: frozenset[str] = frozenset()
        self._local: Local
        self._thread: LocalThread

    def __enter__(self) -> Self:
        self._data = self._given or Path(tempfile.mkdtemp(prefix="kappamq-test-"))
        # Reopened, it continues at its last message time: what another kit's clock passed is in the past.
        self.clock.not_before(Checkpoint.load(self._data / "checkpoint").physic_ms)
        self._local = Local.at(
            self._data,
            nameserver_port=0,
            broker_port=0,
            host="127.0.0.1",
            properties=self._properties,
            clock=self.clock,
            files=_TimedFiles(self.clock.message_ms),
        )
        if self._local.findings.unknown:
            self._remove_data()
            raise ConfigError(f"unknown properties: {', '.join(self._local.findings.unknown)}")
        self._thread = LocalThread(self._local)
        try:
            self._thread.__enter__()
        except BaseException:
            self._remove_data()
            raise
        _, _, port = self.nameserver.rpartition(":")
        self._names = frozenset({self.nameserver, f"127.0.0.1:{port}", f"localhost:{port}"})
        lend_clock(self._names, self.clock)
        self.clock.pass_ms = self._pass
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clock.pass_ms = None
        withdraw_clock(self._names)
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

    # -- for tests ---------------------------------------------------------------------------------------------------------

    @property
    def nameserver(self) -> str:
        return self._local.nameserver

    @property
    def address(self) -> str:
        """The address of the broker itself."""
        return self._local.broker

    @property
    def client_config(self) -> ClientConfig:
        """For clients that are created elsewhere and should share the clock."""
        return ClientConfig(nameservers=(self.nameserver,), clock=self.clock)

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        return Producer(config=self.client_config, **options)

    def transaction_producer(self, **options: Unpack[TransactionProducerOptions]) -> TransactionProducer:
        return TransactionProducer(config=self.client_config, **options)

    def consumer(self, **options: Unpack[ConsumerOptions]) -> Consumer:
        """Creates its topics if they do not exist, so that it does not have to wait until it discovers them."""
        if "topics" in options:  # else the consumer says that they are missing
            with self.admin() as admin:
                for topic in wanted_topics(options["topics"]).keys() - set(admin.topics()):
                    admin.create_topic(topic)
        return Consumer(config=self.client_config, **options)

    def pull_consumer(self, **options: Unpack[PullConsumerOptions]) -> PullConsumer:
        return PullConsumer(config=self.client_config, **options)

    def lite_pull_consumer(self, **options: Unpack[LitePullConsumerOptions]) -> LitePullConsumer:
        return LitePullConsumer(config=self.client_config, **options)

    def admin(self, **options: Unpack[ClientOptions]) -> Admin:
        return Admin(config=self.client_config, **options)

    def async_producer(self, **options: Unpack[ProducerOptions]) -> AsyncProducer:
        return AsyncProducer(config=self.client_config, **options)

    def async_transaction_producer(self, **options: Unpack[TransactionProducerOptions]) -> AsyncTransactionProducer:
        return AsyncTransactionProducer(config=self.client_config, **options)

    def async_consumer(self, **options: Unpack[ConsumerOptions]) -> AsyncConsumer:
        """Its topics need not exist: `settle_async` and `advance_async` let it find those created after it started."""
        return AsyncConsumer(config=self.client_config, **options)

    def async_pull_consumer(self, **options: Unpack[PullConsumerOptions]) -> AsyncPullConsumer:
        return AsyncPullConsumer(config=self.client_config, **options)

    def async_lite_pull_consumer(self, **options: Unpack[LitePullConsumerOptions]) -> AsyncLitePullConsumer:
        return AsyncLitePullConsumer(config=self.client_config, **options)

    def async_admin(self, **options: Unpack[ClientOptions]) -> AsyncAdmin:
        return AsyncAdmin(config=self.client_config, **options)

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return all messages that consumers of `topic` can see, oldest first; none if the topic does not exist."""
        found: list[ReceivedMessage] = self.call(lambda broker: self._read(broker, topic))
        return found

    def bodies(self, topic: str) -> list[bytes]:
        return [message.body for message in self.messages(topic)]

    def call(self, work: Callable[[Broker], Any]) -> Any:
        """Run a function on the broker's own loop and return its result, for a look inside."""

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

    def settle(self) -> None:
        """Wait until the broker and all clients of this process that use it are idle, without advancing the clock.

        That includes the application's own clients. Raises TimeoutError, whose text says which are still busy."""
        refuse_on_a_loop_of_clients("settle")
        self._settled(self._pass(0).result())

    async def settle_async(self) -> None:
        """Like `settle`, from a coroutine, whose loop keeps running."""
        self._settled(await asyncio.wrap_future(self._pass(0)))

    def _settled(self, reason: str | None) -> None:
        if reason is not None:
            raise TimeoutError(f"not settled after {self._patience:g} s: {reason}")

    def _pass(self, ms: int) -> Future[str | None]:
        return self._thread.submit(self._pass_on_loop(self._local.running_broker, ms, caller=current_reader()))

    async def _pass_on_loop(self, broker: Broker, ms: int, caller: object) -> str | None:
        """Return None, or why the clock was advanced before all had settled."""
        clock, agenda = self.clock, broker.delivery.agenda
        settling = Settling(broker, clock, self._names)
        target = clock.message_ms() + ms
        clean_ms = clock.message_ms() + _STEP_MS
        hung = await settling.wait(self._patience, caller)
        while True:
            due = [moment for moment in (agenda.next_ms(), clock.next_alarm_ms()) if moment is not None]
            step = min(target, clean_ms, *due)
            clock.not_before(step)
            before = broker.kernel.put_count
            rang = clock.ring_due()
            for _ in iter(lambda: agenda.run_due(clock.message_ms()), False):
                await asyncio.sleep(0)  # what was stored becomes visible
            if rang or broker.kernel.put_count != before or agenda.is_working:
                # Consumers may send messages in turn. Wait for a hanging one only once, not at every step.
                patience = self._patience if hung is None else min(self._patience, _IMPATIENT_S)
                hung = await settling.wait(patience, caller) or hung
                continue
            if step in (clean_ms, target) and ms:
                await broker.upkeep.clean()
                clean_ms = step + _STEP_MS
            if step == target:
                return hung


class _TimedFiles(Files):
    """Files with message time as modification time, since retention uses the age of files."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms

    def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
        super().pwrite(fd, data, at)
        now = self._now_ms() * 1_000_000
        os.utime(fd, ns=(now, now))
