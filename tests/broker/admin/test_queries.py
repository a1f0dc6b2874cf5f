"""Finding single messages by key, by unique id, by offset id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.admin import queries as query
from kappamq.broker.broker import Broker
from kappamq.clock import VirtualClock
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import QueryMessage, ViewMessage
from kappamq.protocol.records.entries import key_hash
from kappamq.protocol.records.record import Record, iter_records
from tests.broker.operating import on_broker, refused
from tests.broker.running import Speaker, run, running, speaking
from tests.store.stores import kernels

LONG_AGO, FAR_AHEAD = 0, 1 << 60


async def ask(client: Speaker, key: str, count: int = 32, topic: str = "t", **times: int) -> Frame:
    values: dict[str, Any] = {"begin_ms": LONG_AGO, "end_ms": FAR_AHEAD} | times
    return await client.ask(QueryMessage(topic=topic, key=key, count_max=count, **values))


async def found(client: Speaker, key: str, count: int = 32, topic: str = "t", **times: int) -> list[Record]:
    answer = await ask(client, key, count, topic, **times)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    assert answer.code == 0, answer.remark
    return list(iter_records(answer.body))


def bodies(records: list[Record]) -> list[bytes]:
    return [record.body for record in records]


async def send(client: Speaker, body: bytes, unique: str, keys: str = "", topic: str = "t", queue_id: int = 0) -> Frame:
    text = f"UNIQ_KEY\x01{unique}" + (f"\x02KEYS\x01{keys}" if keys else "")
    answer = await client.send(topic, body, queue_id, text)
    assert answer.code == 0, answer.remark
    return answer


@on_broker()
async def test_a_key_is_found_as_soon_as_its_message_is_answered(broker: Broker, client: Speaker) -> None:
    for number in range(20):
        await send(client, b"%d" % number, f"U{number}", f"k{number} even odd" if number % 2 else "even")
        assert bodies(await found(client, f"U{number}")) == [b"%d" % number]
    assert bodies(await found(client, "k7")) == [b"7"]
    assert bodies(await found(client, "odd")) == [b"%d" % n for n in range(1, 20, 2)], "oldest first"
    assert bodies(await found(client, "even odd")) == [], "a key has no blank"
    assert await found(client, "k6") == []
    assert await found(client, "even", topic="other") == []


@on_broker()
async def test_the_newest_come_when_there_are_more_than_wanted(broker: Broker, client: Speaker) -> None:
    for number in range(100):
        await send(client, b"%d" % number, f"U{number}", "many", queue_id=number % 4)
    assert bodies(await found(client, "many", 10)) == [b"%d" % n for n in range(90, 100)]
    assert bodies(await found(client, "many", 1000)) == [b"%d" % n for n in range(36, 100)], "64 are the limit"
    assert bodies(await found(client, "many", 0)) == [b"99"]
    answer = await ask(client, "many", 1)
    (newest,) = iter_records(answer.body)
    assert int(answer.ext["indexLastUpdatePhyoffset"]) > newest.log_offset
    assert int(answer.ext["indexLastUpdateTimestamp"]) == newest.stored_ms


@on_broker()
async def test_one_message_with_the_same_key_thrice_comes_once(broker: Broker, client: Speaker) -> None:
    await send(client, b"x", "same", "same same same same other")
    assert bodies(await found(client, "same")) == [b"x"]
    assert bodies(await found(client, "same", 1)) == [b"x"]


@on_broker()
async def test_keys_with_the_same_hash_are_kept_apart(broker: Broker, client: Speaker) -> None:
    assert key_hash("t", "Aa") == key_hash("t", "BB")
    await send(client, b"old", "U", "Aa")
    for number in range(50):
        await send(client, b"%d" % number, f"U{number}", "BB")
    assert bodies(await found(client, "Aa")) == [b"old"]
    assert bodies(await found(client, "Aa", 1)) == [b"old"], "fifty others are in the way"
    assert bodies(await found(client, "BB", 2)) == [b"48", b"49"]


def test_a_hash_that_everybody_has_is_not_followed_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "_CANDIDATES_MAX", 32)

    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            await send(client, b"old", "U", "Aa")
            for number in range(40):
                await send(client, b"x", f"U{number}", "BB")
            assert await found(client, "Aa", 1) == []
            assert bodies(await found(client, "Aa", 32)) == [b"old"], "who wants more looks further"

    run(test())


def test_times_are_exact(tmp_path: Path) -> None:
    async def test() -> None:
        clock = VirtualClock()
        async with running(tmp_path, clock=clock) as broker, speaking(broker) as client:
            start = clock.message_ms()
            for number in range(10):
                await send(client, b"%d" % number, f"U{number}", "k")
                clock.advance(ms=300)
            for first, last in ((0, 9), (2, 4), (3, 3), (7, 9)):
                records = await found(client, "k", begin_ms=start + 300 * first, end_ms=start + 300 * last)
                assert bodies(records) == [b"%d" % n for n in range(first, last + 1)]
            assert await found(client, "k", begin_ms=start + 301, end_ms=start + 599) == []
            assert await found(client, "k", begin_ms=start + 9000) == []
            assert await found(client, "k", begin_ms=start + 900, end_ms=start) == []

    run(test())


@pytest.mark.parametrize("kernel", kernels())
def test_keys_are_found_after_a_restart_and_over_many_files(tmp_path: Path, kernel: str) -> None:
    async def test() -> None:
        small = {"index_entries": 64, "index_slots": 16}
        async with running(tmp_path, kernel, store=small) as broker, speaking(broker) as client:
            for number in range(150):
                await send(client, b"%d" % number, f"U{number}", f"k{number % 10}")
        async with running(tmp_path, kernel, store=small) as broker, speaking(broker) as client:
            assert broker.recovered.clean
            assert len(broker.store.index.infos()) > 3
            assert bodies(await found(client, "U0")) == [b"0"]
            assert bodies(await found(client, "k3")) == [b"%d" % n for n in range(3, 150, 10)]
            await send(client, b"new", "U", "k3")
            assert bodies(await found(client, "k3", 2)) == [b"143", b"new"]

    run(test())


def test_a_store_without_an_index_finds_nothing_by_key(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, store={"index_enabled": False}) as broker, speaking(broker) as client:
            sent = await send(client, b"x", "U", "k")
            assert await found(client, "k") == []
            record = await view(client, sent.ext["msgId"])
            assert record.body == b"x", "the offset id needs none"

    run(test())


def test_an_answer_is_bounded_but_never_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "_ANSWER_BYTES_MAX", 10_000)

    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            for number in range(6):
                await send(client, bytes([number]) * 4000, f"U{number}", "k")
            assert [record.body[0] for record in await found(client, "k")] == [4, 5]
            await send(client, bytes(50_000), "large", "k")
            assert [len(record.body) for record in await found(client, "k")] == [50_000]

    run(test())


async def view(client: Speaker, offset_id: str) -> Record:
    answer = await client.ask(ViewMessage(log_offset=int(offset_id[-16:], 16)))
    assert answer.code == 0, answer.remark
    (record,) = iter_records(answer.body)
    return record


@on_broker()
async def test_by_offset_id(broker: Broker, client: Speaker) -> None:
    ids = [(await send(client, b"%d" % n, f"U{n}", queue_id=n % 3)).ext["msgId"] for n in range(10)]
    for number, offset_id in enumerate(ids):
        record = await view(client, offset_id)
        assert (record.body, record.offset_id) == (b"%d" % number, offset_id)


@on_broker()
async def test_offsets_where_no_message_begins(broker: Broker, client: Speaker) -> None:
    sent = await send(client, bytes(1000), "U")
    at = int(sent.ext["msgId"][-16:], 16)
    for offset in (at + 1, at + 100, -1, broker.store.log.end, 1 << 62, -(1 << 63)):
        await refused(client, ViewMessage(log_offset=offset), ResponseCode.SYSTEM_ERROR, f"offset {offset}")
