from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.protocol import trace
from kappamq.protocol.trace import (
    ConsumeBegun,
    ConsumeEnded,
    Entry,
    MessageKind,
    Outcome,
    Published,
    Recalled,
    TransactionEnded,
)

ID = "7F0000010A0018B4AAC23B8A9D5C0000"
OFFSET_ID = "C0A8010200002A9F0000011F71FB04CB"
PUBLISHED = Published(
    time_ms=1_700_000_000_000, region="DefaultRegion", group="shop", topic="orders", message_id=ID, tags="TagA",
    keys="k1 k2", store_host="192.168.1.2:10911", body_bytes=5, cost_ms=3, kind=MessageKind.DELAY, offset_id=OFFSET_ID, success=True,
)  # fmt: skip
BEGUN = ConsumeBegun(
    time_ms=1_700_000_000_100, region="DefaultRegion", group="billing", request_id="R1", message_id=ID, retry_times=2, keys="k1 k2"
)  # fmt: skip
ENDED = ConsumeEnded(
    request_id="R1", message_id=ID, cost_ms=7, success=False, keys="k1 k2", outcome=Outcome.EXCEPTION, time_ms=1_700_000_000_107,
    group="billing",
)  # fmt: skip
TRANSACTION = TransactionEnded(
    time_ms=5, region="r", group="shop", topic="orders", message_id=ID, tags="TagA", keys="k1 k2", store_host="10.0.0.1:10911",
    transaction_id=ID, state=trace.COMMITTED, from_check=True,
)  # fmt: skip
RECALLED = Recalled(time_ms=5, region="r", group="shop", topic="orders", message_id=ID, success=True)
ALL: list[Entry] = [PUBLISHED, BEGUN, ENDED, TRANSACTION, RECALLED]

# As Java's encoder writes them, worked out from the layout.
GOLDEN = [
    f"Pub|1700000000000|DefaultRegion|shop|orders|{ID}|TagA|k1 k2|192.168.1.2:10911|5|3|3|{OFFSET_ID}|true;",
    f"SubBefore|1700000000100|DefaultRegion|billing|R1|{ID}|2|k1 k2;",
    f"SubAfter|R1|{ID}|7|false|k1 k2|2|1700000000107|billing;",
    f"EndTransaction|5|r|shop|orders|{ID}|TagA|k1 k2|10.0.0.1:10911|2|{ID}|COMMIT_MESSAGE|true;",
    f"Recall|5|r|shop|orders|{ID}|true;",
]


def wire(text: str) -> str:
    return text.replace("|", "\x01").replace(";", "\x02")


@pytest.mark.parametrize(("entry", "text"), list(zip(ALL, GOLDEN, strict=True)), ids=[entry.name for entry in ALL])
def test_golden_vectors(entry: Entry, text: str) -> None:
    assert trace.encode(entry) == wire(text)
    assert trace.decode(wire(text).encode()) == [entry]


def test_several_entries_in_one_message() -> None:
    assert trace.decode("".join(map(trace.encode, ALL)).encode()) == ALL
    assert trace.decode(b"") == []


def test_what_java_leaves_out_is_null_and_read_as_nothing() -> None:
    bare = replace(BEGUN, keys="")
    assert trace.encode(bare).endswith("\x012\x01null\x02")  # Java's reader drops empty fields at the end, and fails
    assert trace.decode(trace.encode(bare).encode()) == [bare]
    bare_sent = replace(PUBLISHED, tags="", keys="", offset_id="", store_host="")
    assert trace.decode(trace.encode(bare_sent).encode()) == [bare_sent]


def test_older_and_newer_forms_are_read() -> None:
    old = wire(f"Pub|1|r|g|t|{ID}|null|null|h:1|5|3|0|true;")
    (published,) = trace.decode(old.encode())
    assert isinstance(published, Published)
    assert (published.offset_id, published.success, published.kind) == ("", True, 0)
    longer = wire(f"Pub|1|r|g|t|{ID}|a|b|h:1|5|3|99|{OFFSET_ID}|false|10.0.0.9;")
    (published,) = trace.decode(longer.encode())
    assert isinstance(published, Published)
    assert (published.offset_id, published.success, published.kind) == (OFFSET_ID, False, 99)
    for text, time_ms, group in [("", 0, ""), ("|4", 0, ""), ("|4|55", 55, ""), ("|4|55|g", 55, "g")]:
        (ended,) = trace.decode(wire(f"SubAfter|R|{ID}|7|true|null{text};").encode())
        assert isinstance(ended, ConsumeEnded)
        assert (ended.time_ms, ended.group, ended.cost_ms) == (time_ms, group, 7)


@pytest.mark.parametrize(
    "text",
    [
        "Pub",
        "Pub|x|r|g|t|i|a|b|h|5|3|0|o|true",
        "Subscribed|1|2",
        "SubBefore|1|r|g|R",
        f"Recall|{'9' * 5000}|r|g|t|i|true",
    ],
)
def test_what_cannot_be_read_is_left_out_and_the_rest_is_not(text: str) -> None:
    assert trace.decode(wire(f"{text};").encode() + trace.encode(BEGUN).encode()) == [BEGUN]


def test_separators_in_a_text_do_no_harm() -> None:
    entry = replace(PUBLISHED, tags="a\x01b\x02c")
    assert trace.decode(trace.encode(entry).encode()) == [replace(entry, tags="a b c")]


def test_a_trace_is_found_by_ids_and_keys() -> None:
    other = replace(PUBLISHED, message_id="other", keys="k2 k3")
    assert trace.index_keys([*ALL, other]) == [ID, "other", "k1", "k2", "k3"]
    assert trace.index_keys([RECALLED]) == [ID]


@given(st.binary(max_size=300))
def test_any_bytes_are_read(body: bytes) -> None:
    trace.decode(body)


@given(st.lists(st.sampled_from(ALL), min_size=1, max_size=4), st.data())
def test_a_damaged_entry_is_an_entry_or_none(entries: list[Entry], data: st.DataObject) -> None:
    body = bytearray("".join(map(trace.encode, entries)).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from(b"\x01\x02x9-"))
    assert len(trace.decode(bytes(body))) <= len(entries) + 4


texts = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=("Cs",)), max_size=10).filter(
    lambda text: text != trace.NOTHING
)
by_type: dict[str, st.SearchStrategy[Any]] = {
    "str": texts, "int": st.integers(-(1 << 62), 1 << 62), "bool": st.booleans()
}  # fmt: skip
entries = st.sampled_from([type(entry) for entry in ALL]).flatmap(
    lambda kind: st.builds(kind, **{item.name: by_type[str(item.type)] for item in fields(kind)})
)


@given(st.lists(entries, max_size=5))
def test_whatever_is_written_is_read_back(written: list[Entry]) -> None:
    assert trace.decode("".join(map(trace.encode, written)).encode()) == written
