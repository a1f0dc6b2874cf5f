"""Builds the operator's side of a broker; no other logic."""

from __future__ import annotations

from typing import Any

from kappamq.broker.admin.client_calls import ClientCalls
from kappamq.broker.admin.clients import AdminClients
from kappamq.broker.admin.groups import AdminGroups
from kappamq.broker.admin.maintenance import Maintenance
from kappamq.broker.admin.offset_resets import OffsetResets
from kappamq.broker.admin.progress import Progress
from kappamq.broker.admin.queries import Queries
from kappamq.broker.admin.queues import QueueViews
from kappamq.broker.admin.runtime_info import Others, Runtime
from kappamq.broker.admin.settings_requests import SettingsRequests
from kappamq.broker.admin.topics import AdminTopics
from kappamq.broker.foundation import Foundation
from kappamq.broker.pulling.pulling import Pulling
from kappamq.broker.requests.answers import answer_when_stored
from kappamq.broker.requests.request import Handler, Request, merged
from kappamq.broker.requests.unsupported import EmptyTables
from kappamq.broker.sending.appending import Appender
from kappamq.broker.telemetry.stats import Stats
from kappamq.broker.upkeep.topic_files import TopicFiles
from kappamq.broker.upkeep.upkeep import Upkeep
from kappamq.protocol.frame import Frame


class Administration:
    """The requests of operators to a broker."""

    def __init__(
        self,
        base: Foundation,
        pulling: Pulling,
        appender: Appender,
        upkeep: Upkeep,
        topic_files: TopicFiles,
        stats: Stats,
        others: Others,
    ) -> None:
        config, store, clock, clients, tables = base.config, base.store, base.clock, base.clients, base.tables
        topics, groups, offsets, resets = tables.topics, tables.groups, tables.offsets, tables.pending_resets
        worker, pulls = base.workers.read, pulling.pulls
        reader, turns, beside = base.reader, base.reader.turns, base.reader.beside
        announced, filters = base.registration.announced, base.delivery_tables.filters
        self._writer, self._store = base.writer, store
        self.topics = AdminTopics(config, topics, beside, self.when_safe, announced, turns)
        self.groups = AdminGroups(config, groups, offsets, beside, self.when_safe, turns, resets)
        self.clients = AdminClients(clients, offsets, clock, beside)
        self.queues = QueueViews(
            config.name, store, topics, clients, worker, filters.get, pulling.filtering.tag_codes, stats.put_tps
        )
        self.progress = Progress(
            config.name,
            lambda: base.address,
            store,
            clock,
            topics,
            groups,
            clients,
            offsets,
            worker,
            beside,
            self.when_safe,
            stats.get_tps,
            pulls.handed_out_to,
        )
        self.offset_resets = OffsetResets(
            config,
            store,
            clock,
            topics,
            groups,
            clients,
            offsets,
            resets,
            appender,
            worker,
            self.when_safe,
            pulls.reset,
        )
        self.client_calls = ClientCalls(config.name, store, topics, groups, clients, worker, beside)
        self.runtime = Runtime(
            store,
            base.kernel,
            clock,
            stats,
            base.writer.latency,
            base.gate,
            store.kernel_module.NAME,
            worker,
            reader.watch,
            others,
        )
        self.maintenance = Maintenance(store, topics, upkeep, base.workers.write, topic_files.forget)
        self.settings = SettingsRequests(tables.settings, upkeep.save_now, beside)
        self.queries = Queries(store, worker, upkeep.write_derived)
        self._parts = (
            self.topics,
            self.groups,
            self.clients,
            self.queues,
            self.progress,
            self.offset_resets,
            self.client_calls,
            self.runtime,
            stats,
            self.maintenance,
            self.settings,
            self.queries,
            EmptyTables(),
        )

    def when_safe(self, request: Request[Any], response: Frame) -> None:
        # Wait for everything recorded so far: a later answer must not overtake those that wait already.
        answer_when_stored(self._writer, request, response, self._store.append_offset)

    def handlers(self) -> dict[int, Handler]:
        return merged(part.handlers() for part in self._parts)
