"""The requests of batch transactions, as anybody may send them."""

from __future__ import annotations

from kappamq.broker.broker import Broker
from kappamq.protocol.bodies.batches import ChunkList, ScopeList
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.admin import GetBrokerRuntimeInfo
from kappamq.protocol.headers.batches import BeginBatch, OpenScope, QueryScopes, RemoveScope
from tests.broker.batches.batching import Batcher, body_of
from tests.broker.operating import make_topic, ok, on_broker, refused
from tests.broker.running import Speaker

FORBIDDEN = ResponseCode.ILLEGAL_OPERATION
ILLEGAL = ResponseCode.MESSAGE_ILLEGAL
INVALID = ResponseCode.INVALID_PARAMETER


@on_broker()
async def test_stage_decide_publish(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    it = Batcher(client)
    opened = await it.open()
    assert (opened.ext["coordinator"], opened.ext["owner"], opened.ext["last"]) == ("b", "me", "-1")
    assert opened.ext["chunkRowsMax"] == ("1000" if broker.kernel_module.NAME == "native" else "64")
    transaction = await it.begin(0)
    assert transaction is not None
    first = await it.stage(0, transaction, b"a", b"b")
    await it.stage(0, transaction, b"of an attempt that does not count")
    second = await it.stage(0, transaction, b"c", queue_id=1)
    state = await it.state()
    assert (state.staged_chunks, state.last, state.publishing) == (3, -1, 0)
    assert state.staged_bytes > 60
    assert state.open_since > 0
    assert await client.read("t") == []
    outcome = await it.decide(0, transaction, 3, first, second, checksum=99)
    assert (outcome.number, outcome.rows, outcome.checksum) == (0, 3, 99)
    assert (await it.published(0)).published
    assert [record.body for record in await client.read("t")] == [b"a", b"b"]
    (record,) = await client.read("t", 1)
    assert (record.body, record.born_ms) == (b"c", 1_700_000_000_000)
    assert record.property_map()["CLUSTER"] == "DefaultCluster"
    assert await it.begin(0) is None, "it was decided before"
    state = await it.state()
    assert (state.staged_chunks, state.last, state.publishing, state.open_since) == (0, 0, 0, 0)


@on_broker()
async def test_a_scope_is_known_and_can_be_removed(broker: Broker, client: Speaker) -> None:
    answer = await ok(client, OpenScope(scope="s", owner="me"))
    assert "owner" not in answer.ext, "asking alone records nothing"
    assert ScopeList.decode((await ok(client, QueryScopes())).body).scopes == []
    await Batcher(client).open()
    await refused(client, OpenScope(scope="s", owner="you"), FORBIDDEN, "belongs to me, not to you", "scope reset s")
    await refused(client, RemoveScope(scope="s", owner="you"), FORBIDDEN, "belongs to me")
    await ok(client, RemoveScope(scope="s", owner="me"))
    answer = await ok(client, OpenScope(scope="s", owner="you", coordinator="b"))
    assert answer.ext["owner"] == "you"


@on_broker(scopes_max=2)
async def test_scopes_are_bounded(broker: Broker, client: Speaker) -> None:
    for name in "ab":
        await Batcher(client, name).open()
    await refused(client, OpenScope(scope="c", owner="me", coordinator="b"), INVALID, "scopes_max", "scope reset")
    await Batcher(client, "a").open()


@on_broker()
async def test_what_is_staged_shows_in_the_runtime_info(broker: Broker, client: Speaker) -> None:
    async def info() -> dict[str, str]:
        return KVTable.decode((await ok(client, GetBrokerRuntimeInfo())).body).table

    await make_topic(client, "t")
    assert {(await info())[f"kappamqStaged{name}"] for name in ("Chunks", "Bytes", "Since")} == {"0"}
    it = Batcher(client)
    await it.open()
    transaction = await it.begin(0)
    assert transaction is not None
    await it.stage(0, transaction, b"a")
    found = await info()
    assert found["kappamqStagedChunks"] == "1"
    assert int(found["kappamqStagedBytes"]) == 23
    assert int(found["kappamqStagedSince"]) > 0


@on_broker()
async def test_names_that_cannot_be(broker: Broker, client: Speaker) -> None:
    await refused(client, OpenScope(scope="", owner="me", coordinator="b"), INVALID, "scope is empty")
    await refused(client, OpenScope(scope="a b", owner="me", coordinator="b"), INVALID, "scope", "not allowed")
    await refused(client, OpenScope(scope="s", owner="", coordinator="b"), INVALID, "owner")
    await refused(client, BeginBatch(scope="s", owner="me", number=0), INVALID, "open it first")
    await Batcher(client).open()
    await refused(client, BeginBatch(scope="s", owner="me", number=-1), INVALID, "from 0 on")


@on_broker()
async def test_chunks_that_lie_are_refused(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    it = Batcher(client)
    await it.open()
    transaction = await it.begin(0)
    assert transaction is not None
    body = body_of(b"a", b"b")
    good = it.chunk(0, transaction, body, 2)
    await refused(client, it.chunk(0, transaction, body, 3), ILLEGAL, "has 2 messages, its header says 3", body=body)
    await refused(client, good, ILLEGAL, "CRC", body=body + b"x")
    torn = body[:-1]
    await refused(client, it.chunk(0, transaction, torn, 2), ILLEGAL, "cannot be read", body=torn)
    await refused(client, it.chunk(0, transaction, b"", 1), ILLEGAL, body=b"")
    await refused(client, it.chunk(0, "x" * 65, body, 2), INVALID, "begin the batch first", body=body)
    await refused(client, it.chunk(0, transaction, body, 0), ILLEGAL, "1 to ", body=body)
    await refused(client, it.chunk(0, transaction, body, 2, queue_id=9), INVALID, "queueId[9]", body=body)
    await refused(
        client, it.chunk(0, transaction, body, 2, topic="SCHEDULE_TOPIC_XXXX"), ResponseCode.NO_PERMISSION, body=body
    )
    assert (await it.state()).staged_chunks == 0
    await ok(client, good, body)


@on_broker()
async def test_decisions_that_lie_are_refused(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    it, other = Batcher(client), Batcher(client, "other")
    await it.open()
    await other.open()
    transaction, foreign = await it.begin(0), await other.begin(0)
    assert transaction is not None
    assert foreign is not None
    mine, theirs = await it.stage(0, transaction, b"a", b"b"), await other.stage(0, foreign, b"x")
    failed = ResponseCode.TRANSACTION_FAILED

    def listed(*chunks: list[int]) -> bytes:
        return ChunkList({"b": list(chunks)}).encode()

    for chunks, rows in (([mine, theirs], 3), ([mine, mine], 4), ([[mine[0], 5]], 2), ([[77, 0]], 2), ([[1]], 2)):
        await refused(client, it.decision(0, transaction, rows), failed, "no chunk at place", body=listed(*chunks))
    await refused(client, it.decision(0, transaction, 7), failed, "have 2 rows, not 7", body=listed(mine))
    await refused(client, it.decision(0, "ff", 2), failed, "not open", body=listed(mine))
    unknown = ChunkList({"elsewhere": [mine]}).encode()
    await refused(client, it.decision(0, transaction, 2), ResponseCode.BROKER_NOT_EXIST, "elsewhere", body=unknown)
    assert await client.read("t") == []
    await it.decide(0, transaction, 2, mine)
    await it.published(0)
    assert [record.body for record in await client.read("t")] == [b"a", b"b"]
