"""Builds the operator's side of a broker and wires it; no other logic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kappamq.broker.admin.client_calls import Relay
from kappamq.broker.admin.clients import AdminClients
from kappamq.broker.admin.groups import AdminGroups
from kappamq.broker.admin.maintenance import Chores
from kappamq.broker.admin.offset_resets import Moves
from kappamq.broker.admin.progress import Progress
from kappamq.broker.admin.queues import QueueViews
from kappamq.broker.admin.runtime_info import Others, Runtime
from kappamq.broker.admin.topics import AdminTopics
from kappamq.broker.events import SentBack
from kappamq.broker.requests.answers import answer_when_stored
from kappamq.broker.requests.request import Request
from kappamq.broker.requests.unsupported import EmptyTables
from kappamq.broker.telemetry.stats import Stats
from kappamq.protocol.frame import Frame
from kappamq.state.events import CommitsRecorded, TopicDeleted

if TYPE_CHECKING:
    from kappamq.broker.broker import Broker


class Administration:
    """What operators ask and tell a broker. Made when all other parts are there."""

    def __init__(self, broker: Broker) -> None:
        self._writer, self._kernel = broker.writer, broker.kernel
        config, store, clock, worker = broker.config, broker.store, broker.clock, broker.upkeep.read
        topics, groups, clients, offsets = broker.topics, broker.groups, broker.clients, broker.offsets
        self.stats = Stats(broker.kernel, clock, config.cluster, store.log.end, worker, lambda: broker.pulls.missed)
        turns, beside = broker.bursts.reader.turns, broker.bursts.reader.beside
        self.topics = AdminTopics(config, topics, worker, self.when_safe, broker.registration.told, turns)
        self.groups = AdminGroups(config, groups, offsets, worker, self.when_safe, turns, broker.pending_resets)
        self.clients = AdminClients(clients, offsets, clock, worker)
        self.queues = QueueViews(
            config.name, store, topics, clients, worker, broker.delivery_tables.filters.get, broker.filtering.tag_codes, self.stats.put_tps
        )  # fmt: skip
        self.progress = Progress(
            config.name, lambda: broker.address, store, clock, topics, groups, clients, offsets, worker, self.when_safe,
            self.stats.get_tps, broker.pulls.asked,
        )  # fmt: skip
        self.moves = Moves(
            config, store, clock, topics, groups, clients, offsets, broker.pending_resets, broker.own_records, worker,
            self.when_safe, broker.pulls.reset,
        )  # fmt: skip
        self.relay = Relay(config.name, store, topics, groups, clients, worker, beside)
        self.runtime = Runtime(
            store,
            clock,
            self.stats,
            broker.writer.latency,
            broker.gate,
            broker.kernel_module.NAME,
            worker,
            broker.bursts.reader.watch,
            Others(
                connections=lambda: len(broker.server.connections),
                timers=broker.timer_admin.runtime,
                delay_position=broker.delivery_tables.delay_positions.position,
                parked_pulls=lambda: broker.pulls.waiting.count,
                conflicts=broker.clients.conflicts,
                wall_clock=broker.clock_watch.runtime,
                damage=lambda: {**broker.damage.table(), **broker.scrubber.table()},
            ),
        )
        self.chores = Chores(store, topics, broker.upkeep, broker.forget_topic)
        self._handle(broker)
        self._listen(broker)
        self._follow_settings(broker)

    def when_safe(self, request: Request[Any], response: Frame) -> None:
        # Everything recorded up to now: who waited in between must not come before those who waited meanwhile.
        answer_when_stored(self._writer, request, response, self._kernel.append_offset)

    def _handle(self, broker: Broker) -> None:
        for part in (
            self.topics, self.groups, self.clients, self.queues, self.progress, self.moves, self.relay, self.runtime, self.stats,
            self.chores, broker.settings, EmptyTables(),
        ):  # fmt: skip
            broker.bursts.add_handlers(part.handlers())

    def _listen(self, broker: Broker) -> None:
        broker.upkeep.on_tick.append(self.stats.tick)
        broker.upkeep.on_entered = self.stats.entered
        broker.events.on(CommitsRecorded, self.stats.commits_recorded)
        broker.events.on(TopicDeleted, self.stats.topic_deleted)
        broker.consumers.on_asked = self.stats.asked
        broker.events.on(SentBack, self.stats.sent_back)

    def _follow_settings(self, broker: Broker) -> None:
        """Settings that somebody has copied: tell them."""
        config, store, kernel, settings = broker.config, broker.store_config, broker.kernel, broker.settings
        settings.save, settings.beside = broker.upkeep.save_now, broker.bursts.reader.beside

        def transfer() -> None:
            kernel.transfer_bytes_max, kernel.transfer_count_max = store.transfer_bytes_max, store.transfer_count_max

        def permission() -> None:
            broker.topics.permission_changed()
            broker.registration.all_changed()

        def expiry() -> None:
            broker.clients.expiry_s, broker.clients.group_expiry_s = (
                config.client_expiry_ms / 1000,
                config.group_expiry_ms / 1000,
            )

        broker.upkeep.record_s = lambda: config.offsets_flush_ms / 1000
        settings.on_change = {
            "store.transfer_bytes_max": transfer,
            "store.transfer_count_max": transfer,
            "broker.permission": permission,
            "broker.auto_create_topic": broker.topics.template_changed,
            "broker.default_topic_queues": broker.topics.template_changed,
            "broker.client_expiry_ms": expiry,
            "broker.group_expiry_ms": expiry,
            "broker.nameservers": lambda: broker.registration.set_nameservers(config.nameservers),
        }
        settings.restore()
