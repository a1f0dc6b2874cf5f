"""Chunks and decisions that lie, scopes of strangers, noise: refused with code and text; nothing is published, the broker goes on."""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.protocol.bodies.batches import ChunkList
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.batches import AbortBatch, AwaitBatch, BeginBatch, OpenScope, RemoveScope, SettleScope
from kappamq.protocol.records import batch
from tests.broker.batches.misuse import Batching, bodies, decide_header, encoded, nothing_staged, stage_header
from tests.broker.operating import bare, make_topic, ok, on_broker, refused
from tests.broker.running import Speaker, run, running, speaking
from tests.waiting import eventually_async

CODES = [code for code in RequestCode if 710_001 <= code <= 710_011]
BAD = ResponseCode.MESSAGE_ILLEGAL
WRONG = ResponseCode.INVALID_PARAMETER
FOREIGN = ResponseCode.ILLEGAL_OPERATION
FAILED = ResponseCode.TRANSACTION_FAILED
FLAT = encoded(b"one", b"two")


@asynccontextmanager
async def an_honest_batch(broker: Broker, client: Speaker) -> AsyncIterator[tuple[Batching, str]]:
    """Somebody writes to the scope in earnest; whatever happens meanwhile, just that is published."""
    await make_topic(client, "t", 2)
    it = Batching(client)
    await it.open()
    transaction = await it.begin()
    chunk = await it.stage(transaction, [b"good"])
    before = broker.delivery_tables.staged.bytes
    yield it, transaction
    assert broker.delivery_tables.staged.bytes == before, "nothing else was staged"
    assert await bodies(client) == []
    await it.decide(transaction, 1, {"b": [chunk]})
    assert (await it.published()).published
    assert await bodies(client) == [b"good"]
    assert await bodies(client, queue_id=1) == []
    await nothing_staged(broker)


def member(body: bytes, *, size: int | None = None, body_size: int | None = None, properties_size: int = 0) -> bytes:
    """A member of a batch that may lie about its lengths."""
    length = 22 + len(body) if size is None else size
    stated = len(body) if body_size is None else body_size
    return struct.pack(">iiiii", length, 0, 0, 0, stated) + body + struct.pack(">h", properties_size)


CHUNKS: list[tuple[str, bytes, dict[str, Any], int, str]] = [
    ("more rows than there are", FLAT, {"rows": 3}, BAD, "2 messages, its header says 3"),
    ("fewer rows than there are", FLAT, {"rows": 1}, BAD, "2 messages, its header says 1"),
    ("no rows", FLAT, {"rows": 0}, BAD, "not 0"),
    ("negative rows", FLAT, {"rows": -2}, BAD, "not -2"),
    ("too many rows", encoded(*[b"x"] * 1001), {"rows": 1001}, BAD, "not 1001"),
    ("too many bytes", encoded(*[bytes(150_000)] * 2), {}, BAD, "300044 bytes"),
    ("wrong CRC", FLAT, {"crc": 5}, BAD, "CRC"),
    ("CRC with more bits", FLAT, {"crc": zlib.crc32(FLAT) + (1 << 32)}, BAD, "CRC"),
    ("negative CRC", FLAT, {"crc": -1}, BAD, "CRC"),
    ("an empty chunk", b"", {"rows": 1}, BAD, "the batch is empty"),
    ("a message without a body", member(b""), {"rows": 1}, BAD, "body"),
    ("a member longer than the chunk", member(b"abc", size=900), {"rows": 1}, BAD, ""),
    ("a member shorter than its body", member(b"abc", size=10), {"rows": 1}, BAD, ""),
    ("a body longer than its member", member(b"abc", body_size=4000), {"rows": 1}, BAD, ""),
    ("a negative body", member(b"abc", body_size=-1), {"rows": 1}, BAD, ""),
    ("negative properties", member(b"abc", properties_size=-1), {"rows": 1}, BAD, ""),
    ("half a member", member(b"abc")[:-3], {"rows": 1}, BAD, ""),
    ("a whole one and half of one", FLAT + member(b"abc")[:-3], {"rows": 3}, BAD, ""),
    ("noise", b"\xff" * 100, {"rows": 1}, BAD, ""),
    ("half of another transaction", encoded(b"x", properties="TRAN_MSG\x01true"), {"rows": 1}, BAD, "transaction"),
    ("a delay that is none", encoded(b"x", properties="DELAY\x01three"), {"rows": 1}, BAD, "DELAY"),
    ("a queue that does not exist", FLAT, {"queue_id": 99}, WRONG, "queueId"),
    ("a system topic", FLAT, {"topic": "rmq_sys_kappamq_staged"}, ResponseCode.NO_PERMISSION, "system topic"),
    ("a topic with a bad name", FLAT, {"topic": "a/b"}, WRONG, "a/b"),
    ("an unknown scope", FLAT, {"scope": "nope"}, WRONG, "scope nope is not known"),
    ("a stranger's scope", FLAT, {"owner": "stranger"}, FOREIGN, "belongs to o, not to stranger"),
    ("a negative batch", FLAT, {"number": -1}, WRONG, "-1"),
    ("another batch of the transaction", FLAT, {"number": 8}, FOREIGN, "batch 0"),
    ("no transaction", FLAT, {"transaction": ""}, WRONG, "transaction"),
    ("a transaction that nobody began", FLAT, {"transaction": "a\x01b\x02c"}, WRONG, "transaction"),
    ("a very long transaction", FLAT, {"transaction": "a" * 30_000}, WRONG, "transaction"),
]


@on_broker()
async def test_chunks_that_lie(broker: Broker, client: Speaker) -> None:
    async with an_honest_batch(broker, client) as (_it, transaction):
        for name, body, changes, code, text in CHUNKS:
            rows = changes.get("rows", 2)
            header = stage_header(
                body, rows, transaction, **{k: v for k, v in changes.items() if k not in ("transaction", "rows")}
            )
            if "transaction" in changes:
                header = stage_header(body, rows, changes["transaction"])
            answer = await client.ask(header, body)
            assert answer.code == code, (name, answer.code, answer.remark)
            assert answer.remark, name
            assert text in answer.remark, (name, answer.remark)


@on_broker()
async def test_a_chunk_for_the_transaction_of_another_scope(broker: Broker, client: Speaker) -> None:
    async with an_honest_batch(broker, client) as (_it, transaction):
        other = Batching(client, scope="other")
        await other.open()
        header = stage_header(FLAT, 2, transaction, scope="other")
        await refused(client, header, FOREIGN, "scope s", body=FLAT)


@on_broker()
async def test_decisions_that_lie(broker: Broker, client: Speaker) -> None:
    async with an_honest_batch(broker, client) as (_it, transaction):
        other = Batching(client, scope="other")
        await other.open()
        theirs = await other.begin()
        foreign = await other.stage(theirs, [b"foreign"])
        (place,) = broker.delivery_tables.staged.table[transaction].chunks
        good = [place, broker.delivery_tables.staged.table[transaction].chunks[place].crc]
        cases: list[tuple[str, int, dict[str, Any], dict[str, Any], int, str]] = [
            ("too few rows", 0, {"b": [good]}, {}, FAILED, "1 rows, not 0"),
            ("too many rows", 2, {"b": [good]}, {}, FAILED, "1 rows, not 2"),
            ("negative rows", -1, {"b": [good]}, {}, FAILED, "1 rows, not -1"),
            ("nothing staged, but rows", 1, {}, {}, FAILED, "0 rows, not 1"),
            ("wrong CRC", 1, {"b": [[place, good[1] ^ 1]]}, {}, FAILED, f"place {place}"),
            ("listed twice", 2, {"b": [good, good]}, {}, FAILED, "twice"),
            ("a chunk of another scope", 1, {"b": [foreign]}, {}, FAILED, f"place {foreign[0]}"),
            ("ours and one of another scope", 2, {"b": [good, foreign]}, {}, FAILED, f"place {foreign[0]}"),
            ("a place that is not there", 1, {"b": [[10**15, 0]]}, {}, FAILED, "place"),
            ("a negative place", 1, {"b": [[-1, good[1]]]}, {}, FAILED, "place -1"),
            ("no CRC", 1, {"b": [[place]]}, {}, FAILED, "place"),
            ("an empty chunk", 1, {"b": [[]]}, {}, FAILED, "place"),
            ("three numbers", 1, {"b": [[*good, 1]]}, {}, FAILED, "place"),
            ("an unknown broker", 1, {"nobody": [good]}, {}, ResponseCode.BROKER_NOT_EXIST, "nobody"),
            ("a stranger", 1, {"b": [good]}, {"owner": "stranger"}, FOREIGN, "kappamq scope reset s"),
            ("an unknown scope", 1, {"b": [good]}, {"scope": "nope"}, WRONG, "nope"),
            ("their transaction", 1, {"b": [foreign]}, {"transaction": theirs}, FAILED, "not open"),
            ("no transaction", 1, {"b": [good]}, {"transaction": ""}, FAILED, "not open"),
            ("another number", 1, {"b": [good]}, {"number": 1}, FAILED, "not open"),
            ("a negative number", 1, {"b": [good]}, {"number": -5}, WRONG, "-5"),
            ("a checksum that is none", 1, {"b": [good]}, {"checksum": -3}, WRONG, "checksum"),
            ("too many brokers", 1, {f"b{number}": [good] for number in range(257)}, {}, WRONG, "257 brokers"),
            ("a huge list", 1, {"b": [good] * 8_000}, {}, FAILED, "twice"),
            ("a very huge list", 1, {"b": [good] * 30_000}, {}, FAILED, "twice"),
            ("more than a request may list", 1, {"b": [good] * 50_000}, {}, ResponseCode.SYSTEM_ERROR, "150002 JSON values"),
        ]  # fmt: skip
        for name, rows, chunks, changes, code, text in cases:
            header = decide_header(**({"transaction": transaction, "rows": rows} | changes))
            answer = await client.ask(header, ChunkList(chunks).encode())
            assert answer.code == code, (name, answer.code, answer.remark)
            assert text in (answer.remark or ""), (name, answer.remark)
            assert len(answer.remark or "") < 1000, name
            scope = broker.delivery_tables.scopes.table["s"]
            assert scope.open is not None, name
            assert scope.last == -1, name
        await other.abort(theirs)
        broker.delivery.batches.participant.settle("other")
        await nothing_else_than(broker, transaction)


async def nothing_else_than(broker: Broker, transaction: str) -> None:
    await eventually_async(
        lambda: list(broker.delivery_tables.staged.table) == [transaction], text="the others are dropped"
    )


@on_broker()
async def test_bodies_of_wrong_types(broker: Broker, client: Speaker) -> None:
    async with an_honest_batch(broker, client) as (_it, transaction):
        ext = {name: str(value) for name, value in decide_header(transaction, 1).encode().items()}
        for body in (
            b"x", b"[]", b"7", b"null", b'"text"', b'{"chunks":[]}', b'{"chunks":7}', b'{"chunks":{"b":7}}', b'{"chunks":{"b":[7]}}',
            b'{"chunks":{"b":[["x",1]]}}', b'{"chunks":{"b":[[[],1]]}}', b'{"chunks":{"b":[[null,null]]}}', b'{"chunks":{"b":[{"a":1}]}}',
            b'{"chunks":{"b":[[1.5,1]]}}', b'{"chunks":{"b":[[1e400,1]]}}', b'{"chunks":{"b":null}}', b"{" * 2000, b"\xff\xfe",
        ):  # fmt: skip
            answer = await bare(client, RequestCode.DECIDE_BATCH, body, **ext)
            assert answer.code not in (0, ResponseCode.SYSTEM_BUSY), body
            assert answer.remark, body
            assert "Traceback" not in answer.remark
            assert "Error" not in answer.remark, (body, answer.remark)
        for code in (RequestCode.CHECK_CHUNKS, RequestCode.ASK_DECISIONS):
            for body in (b"x", b"[]", b'{"chunks":7,"finished":7}', b'{"chunks":{"b":7},"finished":{"x":7}}'):
                answer = await bare(client, code, body, scope="s", transaction=transaction, broker="b")
                assert answer.code != 0, (code, body)
                assert "Error" not in (answer.remark or ""), (body, answer.remark)


@on_broker()
async def test_scopes_and_numbers_that_are_none(broker: Broker, client: Speaker) -> None:
    async with an_honest_batch(broker, client) as (_it, transaction):
        await refused(client, OpenScope(scope="", owner="o", coordinator="b"), WRONG, "scope")
        await refused(client, OpenScope(scope="a/b c", owner="o", coordinator="b"), WRONG, "scope")
        await refused(client, OpenScope(scope="x" * 1000, owner="o", coordinator="b"), WRONG, "scope")
        await refused(client, OpenScope(scope="new", owner="", coordinator="b"), WRONG, "owner")
        await refused(client, OpenScope(scope="new", owner="x" * 201, coordinator="b"), WRONG, "owner")
        await refused(client, OpenScope(scope="new", owner="a\nb", coordinator="b"), WRONG, "owner")
        await refused(client, OpenScope(scope="new", owner="o", coordinator="c" * 5000), WRONG, "is not allowed")
        await refused(
            client, OpenScope(scope="s", owner="stranger"), FOREIGN, "belongs to o, not to stranger", "reset s"
        )
        await refused(client, BeginBatch(scope="s", owner="stranger", number=0), FOREIGN, "belongs to o")
        await refused(client, BeginBatch(scope="s", owner="o", number=-1), WRONG, "-1")
        await refused(client, BeginBatch(scope="nope", owner="o", number=0), WRONG, "nope")
        stranger = AbortBatch(scope="s", owner="stranger", number=0, transaction=transaction)
        await refused(client, stranger, FOREIGN, "belongs to o")
        await refused(client, AwaitBatch(scope="s", owner="o", number=0, wait_ms=0), WRONG, "not decided")
        await refused(client, AwaitBatch(scope="s", owner="o", number=-7, wait_ms=-1), WRONG, "not decided")
        await refused(client, RemoveScope(scope="s", owner="stranger"), FOREIGN, "belongs to o")
        assert not await Batching(client).abort("another transaction"), "which is not open: nothing happens"
        assert "new" not in broker.delivery_tables.scopes.table


@on_broker(staged_bytes_max=1 << 20)
async def test_more_than_may_be_staged(broker: Broker, client: Speaker) -> None:
    async with an_honest_batch(broker, client) as (_it, transaction):
        other = Batching(client, scope="other")
        await other.open()
        theirs = await other.begin()
        body = encoded(bytes(200_000))
        for _ in range(5):
            await other.stage(theirs, [bytes(200_000)])
        header = stage_header(body, 1, theirs, scope="other")
        await refused(client, header, ResponseCode.SYSTEM_BUSY, "staged_bytes_max", body=body)
        await other.abort(theirs)
        broker.delivery.batches.participant.settle("other")
        await nothing_else_than(broker, transaction)


@on_broker()
async def test_what_could_not_be_published_is_not_staged(broker: Broker, client: Speaker) -> None:
    """With what the broker adds, the properties would be too long: nobody must find that out after the decision."""
    async with an_honest_batch(broker, client) as (_it, transaction):
        for length in (32_767 - 4, 32_767 - 40):
            body = batch.encode([batch.Member(b"x", "a\x01" + "y" * length)])
            await refused(client, stage_header(body, 1, transaction), BAD, "propert", body=body)


@on_broker()
async def test_the_largest_chunk_can_be_published(broker: Broker, client: Speaker) -> None:
    """Many small messages for a topic with a long name take much more room as records than as a chunk."""
    topic = "t" * 127
    await make_topic(client, topic, 1)
    it = Batching(client)
    await it.open()
    transaction = await it.begin()
    rows = broker.delivery.batches.participant.rows_max
    wanted = [b"%06d" % number + b"x" * ((256 << 10) // rows - 22 - 6 - 40) for number in range(rows)]
    chunk = await it.stage(transaction, wanted, topic=topic, properties="UNIQ_KEY\x01" + "u" * 28)
    await it.decide(transaction, rows, {"b": [chunk]})
    assert (await it.published()).published
    assert await bodies(client, topic) == wanted
    await nothing_staged(broker)


def noise(dice: random.Random) -> Any:
    return dice.choice(
        [
            "", "s", "o", "b", "t", "0", "-1", "7", "99999999999999999999", str(1 << 63), str(-(1 << 63)), "1.5", "null", "true",
            "\x00", "\x01\x02", "ü" * 20, "x" * 3000, "{}", "[]", str(dice.randrange(-5, 5)),
        ]
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_random_requests(tmp_path: Path, seed: int) -> None:
    async def test() -> None:
        dice = random.Random(seed)
        names = ["scope", "owner", "coordinator", "number", "transaction", "topic", "queueId", "partition", "attempt"]
        names += ["sequence", "rows", "crc", "bornMs", "checksum", "waitMs", "broker"]
        refusals = 0
        async with running(tmp_path) as broker, speaking(broker) as client, speaking(broker) as noisy:  # noqa: SIM117
            async with an_honest_batch(broker, client) as (_it, transaction):
                for _ in range(400):
                    ext = {name: noise(dice) for name in names if dice.random() < 0.9}
                    if dice.random() < 0.6:
                        # Mostly right: what is behind the first checks is reached as well. The owner is a stranger, though.
                        ext |= {
                            "scope": "s",
                            "owner": "stranger",
                            "number": "0",
                            "transaction": transaction,
                            "waitMs": "0",
                        }
                        ext |= {"topic": "t", "queueId": "0", "rows": "1", "checksum": "0", "broker": "c"}
                        ext[dice.choice(names)] = noise(dice)
                    if ext.get("owner") == "o":
                        ext["owner"] = "p"
                    if ext.get("scope") != "s":
                        ext["coordinator"] = "elsewhere"
                    body = dice.choice(
                        [
                            b"", dice.randbytes(dice.randrange(300)), FLAT, FLAT[: dice.randrange(len(FLAT))], b"{}",
                            json.dumps({"chunks": {noise(dice): [[dice.randrange(9), 1]]}, "finished": {noise(dice): {}}}).encode(),
                        ]
                    )  # fmt: skip
                    code = dice.choice(CODES)
                    if code == RequestCode.AWAIT_BATCH and ext.get("waitMs", "").isdigit():
                        ext["waitMs"] = "1"
                    answer = await noisy.channel.request(Frame(code=int(code), ext=ext, body=body))
                    assert answer.code == 0 or answer.remark, (code, ext, body)
                    assert "Traceback" not in (answer.remark or "")
                    assert "Error" not in (answer.remark or ""), (code, ext, body, answer.remark)
                    refusals += answer.code != 0
        assert refusals > 200

    run(test())


@on_broker()
async def test_names_that_nobody_knows_are_not_kept(broker: Broker, client: Speaker) -> None:
    """Of scopes and of brokers: whoever connects can say as many as it likes."""
    await make_topic(client, "t")
    it = Batching(client)
    await it.open()
    transaction = await it.begin()
    batches = broker.delivery.batches
    for number in range(20):
        await ok(client, SettleScope(scope=f"unknown-{number}"))
        answer = await it.try_decide(transaction, 1, {f"unknown-{number}": [[0, 1]]})
        assert answer.code == ResponseCode.BROKER_NOT_EXIST, (answer.code, answer.remark)
    await eventually_async(lambda: not batches.participant._settling, text="nobody is asked any more")
    assert not batches.participant._asking
    assert not batches.participant._ask_at
    assert not batches.peers._connecting
