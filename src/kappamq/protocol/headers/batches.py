"""Headers of batch transactions: between clients and brokers, and between the brokers of one transaction. Only KappaMQ has them."""

from __future__ import annotations

from kappamq.protocol.codes import RequestCode
from kappamq.protocol.headers.header import Header, Int32, TopicHeader


class OpenScope(Header, code=RequestCode.OPEN_SCOPE):
    """Record a scope; without a coordinator: ask what is known of it."""

    scope: str
    owner: str
    coordinator: str | None = None


class OpenScopeResponse(Header):
    owner: str | None = None  # None: the scope is not known
    coordinator: str | None = None
    last: int | None = None  # number of the last decided batch, if the broker coordinates the scope
    chunk_rows_max: Int32 | None = None


class BeginBatch(Header, code=RequestCode.BEGIN_BATCH):
    """Those who name the same attempt get the same transaction: the writers of a batch need not know of each other."""

    scope: str
    owner: str
    number: int
    attempt: str | None = None  # None: a new one


class BeginBatchResponse(Header):
    transaction: str | None = None  # None: the batch was decided before


class StageChunk(TopicHeader, code=RequestCode.STAGE_CHUNK):
    """The body is the messages of the chunk, encoded as in a batch send."""

    topic: str
    queue_id: Int32
    scope: str
    owner: str
    number: int
    transaction: str
    partition: Int32
    attempt: Int32
    sequence: Int32
    rows: Int32
    crc: int
    born_ms: int


class StageChunkResponse(Header):
    place: int


class DecideBatch(Header, code=RequestCode.DECIDE_BATCH):
    """The body is a `ChunkList`."""

    scope: str
    owner: str
    number: int
    transaction: str
    rows: int
    checksum: int


class AbortBatch(Header, code=RequestCode.ABORT_BATCH):
    scope: str
    owner: str
    number: int
    transaction: str


class AbortBatchResponse(Header):
    decided: bool  # it was decided before, and stays so


class AwaitBatch(Header, code=RequestCode.AWAIT_BATCH):
    """Wait until the messages of a decided batch are published, for at most `wait_ms`."""

    scope: str
    owner: str
    number: int
    wait_ms: int


class CheckChunks(Header, code=RequestCode.CHECK_CHUNKS):
    """From the coordinator: are these chunks staged? The body is a `ChunkList`."""

    scope: str
    transaction: str


class CheckChunksResponse(Header):
    rows: int


class SettleScope(Header, code=RequestCode.SETTLE_SCOPE):
    """From the coordinator: something was decided; ask."""

    scope: str


class AskDecisions(Header, code=RequestCode.ASK_DECISIONS):
    """From a broker that has staged chunks of the scope to its coordinator. The body is a `FinishedBatches`."""

    scope: str
    broker: str


class QueryScopes(Header, code=RequestCode.QUERY_SCOPES):
    """Ask for all scopes that a broker knows, or for one."""

    scope: str | None = None


class RemoveScope(Header, code=RequestCode.REMOVE_SCOPE):
    """Forget a scope and what is staged for it; another owner may use the name then.

    With `force` although its coordinator cannot be asked, or waits for a broker that has not published all: what was decided and is
    not published may be lost."""

    scope: str
    owner: str
    force: bool | None = None
