"""Builds the parts of a broker for batch transactions; no other logic."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from kappamq.broker.batches.batch_requests import BatchRequests
from kappamq.broker.batches.coordinator import Coordinator
from kappamq.broker.batches.participant import Participant
from kappamq.broker.batches.peers import Peers
from kappamq.broker.batches.publishing import Publishing
from kappamq.broker.batches.renewing import Renewing
from kappamq.broker.delivery.agenda import Agenda
from kappamq.broker.sending.appending import Appender, Draft
from kappamq.broker.sending.send import Sends
from kappamq.broker.upkeep.slices import Worker
from kappamq.clock import Clock
from kappamq.config.broker import BrokerConfig
from kappamq.net.requests.beside import Beside
from kappamq.protocol.bodies.batches import Decisions
from kappamq.state.metadata import Commit
from kappamq.state.scopes import Scopes
from kappamq.state.staged import StagedChunks
from kappamq.state.topics import Topics
from kappamq.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class Around:
    """The parts of the broker that batch transactions use."""

    config: BrokerConfig
    store: MessageStore
    topics: Topics
    commit: Commit
    appender: Appender
    agenda: Agenda
    clock: Clock
    sends: Sends
    beside: Beside
    worker: Worker
    run: Callable[[Coroutine[Any, Any, None]], None]
    tls: ssl.SSLContext | None
    due_ms: Callable[[Draft, int], int | None]  # when a message is to be delivered


class BatchTransactions:
    def __init__(self, around: Around, scopes: Scopes, staged: StagedChunks) -> None:
        config, store, appender = around.config, around.store, around.appender
        self.peers = Peers(config.name, lambda: config.nameservers, lambda: self, around.tls)
        self.coordinator = Coordinator(
            config,
            scopes,
            around.commit,
            appender,
            self.peers,
            lambda: store.append_offset,
            around.run,
            around.agenda.wake,
        )
        self.participant = Participant(
            config,
            store,
            scopes,
            staged,
            around.commit,
            appender,
            self.peers,
            around.clock.liveness,
            around.run,
            around.agenda.wake,
        )
        self.requests = BatchRequests(
            config,
            store,
            scopes,
            staged,
            self.coordinator,
            self.participant,
            around.sends,
            around.beside,
            appender.kept,
            around.clock,
            around.due_ms,
        )
        self.renewing = Renewing(config, store, staged, appender, around.worker, around.clock.message_ms)
        self.publishing = Publishing(
            store,
            around.topics,
            appender,
            around.agenda,
            staged,
            around.worker,
            self.requests.read_slowly,
            self.participant.settle,
        )

    # -- calls of this broker to itself ------------------------------------------------------------------------------------

    async def decisions(self, scope: str, broker: str, finished: dict[str, dict[str, int]]) -> Decisions:
        return await self.coordinator.decisions(scope, broker, finished)

    async def rows_of(self, scope: str, transaction: str, chunks: list[list[int]]) -> int:
        return await self.participant.rows_of(scope, transaction, chunks)

    def settle(self, scope: str) -> None:
        self.participant.settle(scope)

    def stop(self) -> None:
        self.peers.stop()
