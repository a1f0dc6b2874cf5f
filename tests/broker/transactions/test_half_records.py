"""What lies in the log of a transaction, as a RocketMQ broker writes and reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kappamq.broker.sending.appending import Draft
from kappamq.broker.transactions.half_records import (
    committed,
    copied,
    given_up,
    is_nameless_copy,
    op_record,
    opened,
    prepare,
    read_half,
    read_op,
)
from kappamq.broker.transactions.open_transactions import Half, Op, Outcome
from kappamq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC, TRANSACTION_GIVEN_UP_TOPIC
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Record

BORN = bytes([127, 0, 0, 1, 0, 0, 1, 0])


def stored(draft: Draft, log_offset: int = 5000, queue_offset: int = 3, ms: int = 1000) -> Record:
    return Record(
        topic=draft.topic, body=draft.body, properties=properties.encode(draft.properties), queue_id=draft.queue_id,
        log_offset=log_offset, queue_offset=queue_offset, stored_ms=ms, sys_flag=draft.sys_flag, flag=draft.flag,
        born_ms=draft.born_ms, born_host=BORN[:4], born_port=256, prepared_offset=draft.source,
    )  # fmt: skip


def half(**more: str) -> Draft:
    draft = Draft("t", 2, b"x", {"UNIQ_KEY": "U", "TRAN_MSG": "true", "PGROUP": "pg", **more}, 7, 0x5, 99, BORN)
    prepare(draft, "of the request")
    return draft


def read(record: Record, size: int) -> Half | None:
    return read_half(record, record.property_map(), size)


def test_a_half_waits_in_a_topic_of_its_own() -> None:
    draft = half(TRANSACTION_CHECK_TIMES="7", TRAN_PREPARED_QUEUE_OFFSET="1")
    assert (draft.topic, draft.queue_id, draft.sys_flag, draft.flag) == (HALF_TOPIC, 0, 0x1, 7)
    assert draft.properties == {
        "UNIQ_KEY": "U", "TRAN_MSG": "true", "PGROUP": "pg", "REAL_TOPIC": "t", "REAL_QID": "2", "__transactionId__": "U",
    }  # fmt: skip
    nameless = Draft("t", 0, b"x", {"TRAN_MSG": "true"})
    prepare(nameless, "pg")
    assert nameless.properties["PGROUP"] == "pg"


@pytest.mark.parametrize(
    ("text", "ms"),
    [(None, None), ("60", 60_000), ("0", 0), ("-1", None), ("-7", None), ("x", None), ("9" * 30, 10**12)],
)
def test_what_is_found_is_what_was_opened(text: str | None, ms: int | None) -> None:
    draft = half(**({} if text is None else {"CHECK_IMMUNITY_TIME_IN_SECONDS": text}))
    one = opened(draft, 5000, 3, 200, 1000)
    assert (one.root, one.log_offset, one.queue_offset, one.size, one.group, one.topic) == (
        5000, 5000, 3, 200, "pg", "t",
    )  # fmt: skip
    assert (one.since_ms, one.immune_ms, one.checks) == (1000, ms, 0)
    found = read(stored(draft), 200)
    assert found is not None
    assert all(getattr(found, name) == getattr(one, name) for name in one.__slots__)


def test_copies_name_the_root_and_know_their_age() -> None:
    one = opened(half(), 5000, 3, 200, 1000)
    first = copied(one, stored(half()), 1)
    assert (first.topic, first.source, first.properties["TRANSACTION_CHECK_TIMES"]) == (HALF_TOPIC, 5000, "1")
    found = read(stored(first, 9000, 8, ms=7000), 220)
    assert found is not None
    assert (found.root, found.log_offset, found.queue_offset, found.checks, found.since_ms) == (5000, 9000, 8, 1, 1000)
    second = copied(found, stored(first, 9000, 8, ms=7000), 2)
    assert (second.source, second.properties["TRANSACTION_CHECK_TIMES"]) == (5000, "2")
    anew = copied(found, stored(first, 9000, 8, ms=7000), 0)
    assert "TRANSACTION_CHECK_TIMES" not in anew.properties
    javas = half()
    javas.properties |= {"TRAN_PREPARED_QUEUE_OFFSET": "0"}
    # Together with the op record of the old place a Java broker would take it for ended.
    assert "TRAN_PREPARED_QUEUE_OFFSET" not in copied(one, stored(javas), 0).properties


def test_what_is_no_half() -> None:
    for name in ("PGROUP", "REAL_TOPIC", "REAL_QID"):
        draft = half()
        del draft.properties[name]
        assert read(stored(draft), 1) is None


@pytest.mark.parametrize(
    ("more", "source", "nameless"),
    [
        ({}, 0, False),
        ({"TRANSACTION_CHECK_TIMES": "1"}, 0, True),
        ({"TRAN_PREPARED_QUEUE_OFFSET": "0"}, 0, True),
        ({"TRANSACTION_CHECK_TIMES": "1"}, 77, False),
    ],
)
def test_copies_of_a_java_broker(more: dict[str, str], source: int, nameless: bool) -> None:
    draft = half()
    draft.properties |= more
    draft.source = source
    record = stored(draft)
    assert is_nameless_copy(record, record.property_map()) is nameless


def test_what_becomes_of_it() -> None:
    one = opened(half(), 5000, 3, 200, 1000)
    record = stored(copied(one, stored(half()), 1), 9000, 8)
    final = committed(one, record)
    assert (final.topic, final.queue_id, final.sys_flag, final.source, final.born_ms) == ("t", 2, 0x9, 5000, 99)
    assert (final.properties["TRAN_MSG"], final.properties["REAL_TOPIC"]) == ("true", "t")
    assert "__HALF_MS#" not in final.properties
    odd = replace(record, properties=record.properties.replace("REAL_QID\x012", "REAL_QID\x01x"))
    assert committed(one, odd).queue_id == 0
    lost = given_up(one, record)
    assert (lost.topic, lost.queue_id, lost.source, lost.properties["REAL_TOPIC"]) == (
        TRANSACTION_GIVEN_UP_TOPIC, 0, 5000, "t",
    )  # fmt: skip


@pytest.mark.parametrize("outcome", list(Outcome))
def test_op_records(outcome: Outcome) -> None:
    one = opened(half(), 5000, 3, 200, 1000)
    draft = op_record(one, outcome, 1234, BORN)
    assert (draft.topic, draft.queue_id, draft.body, draft.properties["TAGS"]) == (HALF_OP_TOPIC, 0, b"3,", "d")
    assert read_op(stored(draft, 7000, 4), 100) == Op(4, (3,), 5000, outcome, 7100)


@pytest.mark.parametrize(
    ("changes", "settled"),
    [
        ({"body": b"3,4,17,"}, (3, 4, 17)),  # as RocketMQ 5 writes it, several in one
        ({"body": b"3"}, (3,)),  # as RocketMQ 4 does
        ({"body": b""}, ()),
        ({"body": b"3,x,"}, None),
        ({"properties": "TAGS\x01other\x02"}, None),
        ({"properties": ""}, None),
    ],
)
def test_op_records_of_others(changes: dict[str, Any], settled: tuple[int, ...] | None) -> None:
    record = Record(topic=HALF_OP_TOPIC, body=b"3,", properties="TAGS\x01d\x02", queue_offset=9)
    found = read_op(replace(record, **changes), 50)
    assert found == (None if settled is None else Op(9, settled, 0, None, 50))
