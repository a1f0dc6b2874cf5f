"""The terms file: a copy of the log's term records, so that a start need not search the log. JSON with a checksum.

A record is saved here before its bytes are in the log: if a crash came after the end mark written before it but before the record itself,
the end mark would pass for part of the previous term. So the file may be ahead of the log, and it may be wrong after a cut or if it was
lost. Whoever reads it drops the records at or behind the log's end, searches the log behind the last one, and **saves the result before
the log grows**: once other bytes lie where a dropped record was, nothing shows that they are not of its term.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Final

from kappamq.raft import Members, TermRecord, Terms
from kappamq.replication.vote_file import NUMBER_MAX, member_from

FORMAT: Final = 1
FILE_BYTES_MAX: Final = 4 << 20


def encode(terms: Terms, group_id: str) -> bytes:
    values = {
        "format": FORMAT,
        "group": group_id,
        "base": _record_values(terms.base),
        "records": [_record_values(record) for record in terms.records],
    }
    return json.dumps({**values, "crc": _crc(values)}, indent=1, ensure_ascii=False).encode() + b"\n"


def decode(data: bytes) -> tuple[Terms, str]:
    """(terms, group id). Raises ValueError with the reason; the terms are then read from the log."""
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"it has {len(data)} bytes, more than {FILE_BYTES_MAX}")
    try:
        values: Any = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    if values.get("format") != FORMAT:
        raise ValueError(f"it has format {values.get('format')!r}, this version knows {FORMAT}")
    crc = values.pop("crc", None)
    if crc != _crc(values):
        raise ValueError("checksum mismatch")
    group, records = values.get("group"), values.get("records")
    if not isinstance(group, str) or not isinstance(records, list):
        raise ValueError("group or records are missing")
    terms = Terms(_record(values.get("base"), "base"))
    for number, value in enumerate(records, 1):
        record = _record(value, f"record {number}")
        if record.start < terms.last.start or record.term < terms.last.term:
            raise ValueError(f"record {number} is not behind the one before it")
        if record.start == terms.last.start and terms.records:
            raise ValueError(f"record {number} is where the one before it is")
        terms.append(record)
    return terms, group


def _record_values(record: TermRecord) -> dict[str, object]:
    return {
        "start": record.start,
        "term": record.term,
        "voters": [list(member) for member in sorted(record.members.voters)],
        "learners": [list(member) for member in sorted(record.members.learners)],
    }


def _record(values: Any, what: str) -> TermRecord:
    if not isinstance(values, dict):
        raise ValueError(f"{what} is missing or no JSON object")
    for name in ("start", "term"):
        value = values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= NUMBER_MAX:
            raise ValueError(f"{name} of {what} is missing or not an integer")
    lists = []
    for name in ("voters", "learners"):
        if not isinstance(values.get(name), list):
            raise ValueError(f"{name} of {what} is missing or no list")
        lists.append(frozenset(member_from(value, f"{name} of {what}") for value in values[name]))
    return TermRecord(values["start"], values["term"], Members(lists[0], lists[1]))


def _crc(values: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())
