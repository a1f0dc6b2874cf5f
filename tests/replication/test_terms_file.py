from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.raft import MemberId, Members, TermRecord, Terms
from kappamq.replication.terms_file import FILE_BYTES_MAX, _crc, decode, encode

MEMBERS = Members(frozenset({MemberId("ä", 1), MemberId("b", 2)}), frozenset({MemberId("c", 3)}))
TERMS = Terms(TermRecord(100, 2, MEMBERS), [TermRecord(100, 3, MEMBERS), TermRecord(200, 3, Members())])


def test_what_is_written_is_read() -> None:
    terms, group = decode(encode(TERMS, "group"))
    assert (terms.base, terms.records, group) == (TERMS.base, TERMS.records, "group")


def changed(change: Any) -> bytes:
    """The same file with a change, and a checksum that fits."""
    values = json.loads(encode(TERMS, "group"))
    del values["crc"]
    change(values)
    return json.dumps({**values, "crc": _crc(values)}).encode()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda values: values.update(format=2), "format 2"),
        (lambda values: values.pop("group"), "group or records are missing"),
        (lambda values: values.update(records={}), "group or records are missing"),
        (lambda values: values.pop("base"), "base is missing"),
        (lambda values: values["base"].update(start=-1), "start of base"),
        (lambda values: values["records"][0].update(term="3"), "term of record 1"),
        (lambda values: values["records"][0].update(voters=None), "voters of record 1"),
        (lambda values: values["records"][0].update(learners=[["c"]]), "learners of record 1"),
        (lambda values: values["records"][0].update(start=99), "record 1 is not behind"),
        (lambda values: values["records"][1].update(term=2), "record 2 is not behind"),
        (lambda values: values["records"][1].update(start=100), "record 2 is where the one before it is"),
    ],
)
def test_what_is_no_list_of_terms(change: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode(changed(change))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b" " * (FILE_BYTES_MAX + 1), "more than"),
    ],
)
def test_other_bytes(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode(data)


@given(st.integers(0, len(encode(TERMS, "group")) - 2), st.integers(1, 255))
def test_a_changed_byte_is_noticed(at: int, mask: int) -> None:
    data = bytearray(encode(TERMS, "group"))
    before = json.loads(data)
    data[at] ^= mask
    try:
        terms, group = decode(bytes(data))
    except ValueError:
        return
    # White space between values, or a digit written otherwise: the content is the same.
    assert json.loads(data) == before
    assert (terms.records, group) == (TERMS.records, "group")
