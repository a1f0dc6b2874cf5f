"""The requests of batch transactions (710001 to 710011), handed to the coordinator and the participant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from kappamq.broker.batches.coordinator import Coordinator
from kappamq.broker.batches.participant import Participant, Sent
from kappamq.broker.requests.request import Handler, Request
from kappamq.broker.sending.appending import Draft
from kappamq.broker.sending.send import Sends
from kappamq.broker.sending.send import Sent as SentMessages
from kappamq.clock import Clock
from kappamq.config.broker import BrokerConfig
from kappamq.errors import BrokerNotFound, IllegalMessage, IllegalOperation, NotAvailable
from kappamq.net.requests.beside import Beside
from kappamq.protocol import names
from kappamq.protocol.bodies.batches import ChunkList, FinishedBatches, ScopeList, ScopeState
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.batches import (
    AbortBatch,
    AbortBatchResponse,
    AskDecisions,
    AwaitBatch,
    BeginBatch,
    BeginBatchResponse,
    CheckChunks,
    CheckChunksResponse,
    DecideBatch,
    OpenScope,
    OpenScopeResponse,
    QueryScopes,
    RemoveScope,
    SettleScope,
    StageChunk,
    StageChunkResponse,
)
from kappamq.protocol.headers.client import SendMessage
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Record
from kappamq.protocol.timing import number
from kappamq.state.scopes import Scope, Scopes
from kappamq.state.staged import StagedChunks
from kappamq.store.message_store import MessageStore

_WAIT_MS_MAX = 30_000
BATCH_CODES: Final = tuple(code for code in RequestCode if RequestCode.OPEN_SCOPE <= code <= RequestCode.REMOVE_SCOPE)
PROPERTIES_MAX = 32_767
_ADDED_BYTES_MAX = 600
"""Bytes that may be added when a message is stored: real topic and queue of a delayed one, tail CRC, separators."""


class BatchRequests:
    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        scopes: Scopes,
        staged: StagedChunks,
        coordinator: Coordinator,
        participant: Participant,
        sends: Sends,
        beside: Beside,
        kept: Callable[[int], Awaitable[None]],
        clock: Clock,
        due_ms: Callable[[Draft, int], int | None],
    ) -> None:
        """`kept`: waits until the log is confirmed up to an offset.

        `due_ms`: when a message is to be delivered; raises the KappaError for its sender."""
        self._config = config
        self._store = store
        self._scopes = scopes
        self._staged = staged
        self._coordinator = coordinator
        self._participant = participant
        self._sends = sends
        self._beside = beside
        self._kept = kept
        self._clock = clock
        self._due_ms = due_ms
        self._added_bytes = len(properties.encode(sends.ours()).encode()) + _ADDED_BYTES_MAX

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.OPEN_SCOPE: self.open_scope,
            RequestCode.BEGIN_BATCH: self.begin,
            RequestCode.STAGE_CHUNK: self.stage,
            RequestCode.DECIDE_BATCH: self.decide,
            RequestCode.ABORT_BATCH: self.abort,
            RequestCode.AWAIT_BATCH: self.published,
            RequestCode.CHECK_CHUNKS: self.check_chunks,
            RequestCode.SETTLE_SCOPE: self.settle,
            RequestCode.ASK_DECISIONS: self.decisions,
            RequestCode.QUERY_SCOPES: self.query,
            RequestCode.REMOVE_SCOPE: self.remove,
        }

    # -- of clients --------------------------------------------------------------------------------------------------------

    async def open_scope(self, request: Request[OpenScope]) -> Frame:
        header = request.header
        scope = await self._coordinator.open_scope(header.scope, header.owner, header.coordinator)
        rows_max = self._participant.rows_max
        if scope is None:
            return request.reply(header=OpenScopeResponse(chunk_rows_max=rows_max))
        last = scope.last if scope.coordinator == self._config.name else None
        found = OpenScopeResponse(owner=scope.owner, coordinator=scope.coordinator, last=last, chunk_rows_max=rows_max)
        return request.reply(header=found)

    async def begin(self, request: Request[BeginBatch]) -> Frame:
        header = request.header
        transaction = await self._coordinator.begin(header.scope, header.owner, header.number, header.attempt)
        return request.reply(header=BeginBatchResponse(transaction=transaction))

    async def stage(self, request: Request[StageChunk]) -> Frame:
        header = request.header
        sent = Sent(header, request.body, request.connection.born)
        self._participant.check(sent)
        target = self._sends.target(_as_send(header))
        plain = self._store.kernel_module.plain_batch(sent.body)
        if plain is not None:
            rows, longest = plain
            self._check_properties(longest)
        else:  # some are not plain: read as the slow path of sending does, beside the loop
            messages = SentMessages(_as_send(header), sent.body, sent.born, 0)
            drafts = await self._beside.run(
                request.connection, self._sends.drafts, messages, target.topic, target.queue_id, size=len(sent.body)
            )
            rows = len(drafts)
            for draft in drafts:
                self._check_times(draft)
            self._check_properties(max((len(properties.encode(one.properties).encode()) for one in drafts), default=0))
            self._participant.check(sent)  # others had a turn
            target = self._sends.target(_as_send(header))
        if rows != header.rows:
            raise IllegalMessage(f"the chunk has {rows} messages, its header says {header.rows}")
        place, placed = self._participant.stage(sent, target.queue_id)
        await self._kept(placed.end)
        return request.reply(header=StageChunkResponse(place=place))

    def _check_times(self, draft: Draft) -> None:
        """Refuse a delivery time that cannot be kept, since such a message could never be published."""
        for name in (properties.DELAY, *properties.TIMER_NAMES):
            number(draft.properties, name)
        self._due_ms(draft, self._clock.message_ms())

    def _check_properties(self, longest: int) -> None:
        """Check that a staged message can be published, including the bytes that the broker adds then."""
        limit = PROPERTIES_MAX - self._added_bytes
        if longest > limit:
            raise IllegalMessage(f"the properties of a message have {longest} bytes, the limit in a chunk is {limit}")

    def read_slowly(self, topic: TopicConfig, queue_id: int, record: Record) -> list[Draft]:
        """Return the messages of a staged chunk that are not plain: delayed ones, for example."""
        header = SendMessage(
            producer_group="", topic=topic.name, default_topic="", default_topic_queues=0, queue_id=queue_id, sys_flag=0,
            born_ms=record.born_ms, flag=0,
        )  # fmt: skip
        born = record.born_host + record.born_port.to_bytes(4, "big")
        drafts = self._sends.drafts(SentMessages(header, record.body, born, 0), topic, queue_id)
        for draft in drafts:
            draft.source = record.log_offset
        return drafts

    async def decide(self, request: Request[DecideBatch]) -> Frame:
        header, chunks = request.header, request.parse(ChunkList).chunks
        outcome = await self._coordinator.decide(
            header.scope, header.owner, header.number, header.transaction, header.rows, header.checksum, chunks
        )
        return request.reply(body=outcome.encode())

    async def abort(self, request: Request[AbortBatch]) -> Frame:
        header = request.header
        decided = await self._coordinator.abort(header.scope, header.owner, header.number, header.transaction)
        return request.reply(header=AbortBatchResponse(decided=decided))

    async def published(self, request: Request[AwaitBatch]) -> Frame:
        header = request.header
        wait_s = min(max(header.wait_ms, 0), _WAIT_MS_MAX) / 1000
        outcome = await self._coordinator.published(header.scope, header.owner, header.number, wait_s)
        return request.reply(body=outcome.encode())

    # -- of other brokers --------------------------------------------------------------------------------------------------

    async def check_chunks(self, request: Request[CheckChunks]) -> Frame:
        listed = request.parse(ChunkList).chunks.get(self._config.name) or []
        rows = await self._participant.rows_of(request.header.scope, request.header.transaction, listed)
        return request.reply(header=CheckChunksResponse(rows=rows))

    def settle(self, request: Request[SettleScope]) -> Frame:
        self._participant.settle(request.header.scope)
        return request.reply()

    async def decisions(self, request: Request[AskDecisions]) -> Frame:
        finished = request.parse(FinishedBatches).finished
        answer = await self._coordinator.decisions(request.header.scope, request.header.broker, finished)
        return request.reply(body=answer.encode())

    # -- of operators ------------------------------------------------------------------------------------------------------

    def query(self, request: Request[QueryScopes]) -> Frame:
        wanted = request.header.scope
        found = [scope for scope in self._scopes.table.values() if wanted in (None, scope.name)]
        states = []
        for scope in found:
            mine = self._staged.of_scope(scope.name)
            states.append(
                ScopeState(
                    name=scope.name,
                    owner=scope.owner,
                    coordinator=scope.coordinator,
                    last=scope.last,
                    open_since=scope.open.begun_ms if scope.open is not None else 0,
                    publishing=len(scope.publishing),
                    staged_chunks=sum(len(staged.chunks) for staged in mine),
                    staged_bytes=sum(chunk.size for staged in mine for chunk in staged.chunks.values()),
                    staged_since=min((staged.since_ms for staged in mine), default=0),
                )
            )
        return request.reply(body=ScopeList(states).encode())

    async def remove(self, request: Request[RemoveScope]) -> Frame:
        header = request.header
        scope = self._scopes.get(header.scope)
        if scope is not None and scope.coordinator != self._config.name:
            await self._check_settled(scope, force=bool(header.force))
        await self._coordinator.remove_scope(header.scope, header.owner, force=bool(header.force))
        return request.reply()

    async def _check_settled(self, scope: Scope, *, force: bool) -> None:
        """For a scope that another broker coordinates: raise IllegalOperation if undecided chunks are staged here."""
        try:
            settled = await self._participant.settled(scope.name)
        except (NotAvailable, BrokerNotFound) as error:
            if force:
                return
            raise NotAvailable(
                f"{error}. It has to say what becomes of the chunks of scope {scope.name} that are staged here; if it is gone for "
                f"good: `kappamq scope reset {scope.name} --force`"
            ) from error
        if not settled:
            raise IllegalOperation(
                f"chunks of an open transaction of scope {scope.name}, or of one that is not published yet, are staged here: remove "
                f"the scope on {scope.coordinator} first"
            )


def _as_send(header: StageChunk) -> SendMessage:
    """Apply the checks of a send to a chunk: topic, permission, queue."""
    return SendMessage(
        producer_group="",
        topic=header.topic,
        default_topic=names.AUTO_CREATE_TOPIC,
        default_topic_queues=4,
        queue_id=header.queue_id,
        sys_flag=0,
        born_ms=header.born_ms,
        flag=0,
    )
