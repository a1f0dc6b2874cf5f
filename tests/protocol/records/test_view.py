"""Views show what was stored, with the compiled pass and with its twin, and refuse what contradicts itself."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kappamq import native
from kappamq.errors import ProtocolError
from kappamq.protocol.records import record as records_module
from kappamq.protocol.records import view as view_module
from kappamq.protocol.records.record import Fault, Record, RecordError
from kappamq.protocol.records.view import (
    FRONT_BYTES,
    Front,
    RecordView,
    fronts_in,
    iter_views,
    size_at,
    view_at,
    walk,
)
from tests.protocol.records.test_record import GOLDEN, SAMPLE, records
from tests.store.stores import kernels

LONG_NAME = replace(SAMPLE, topic="%RETRY%" + "g" * 200, tail_crc=True)
IPV6 = replace(SAMPLE, born_host=bytes(range(16)), store_host=bytes(16), sys_flag=0x30, tail_crc=True)
EACH = [SAMPLE, replace(SAMPLE, tail_crc=True), LONG_NAME, IPV6, replace(IPV6, store_host=bytes(4), sys_flag=0x10)]


@pytest.fixture(params=kernels(), autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(view_module, "_locate", native.load(request.param).locate)
    return str(request.param)


each_input = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def shown(view: RecordView) -> Record:
    """The record, each field asked for by its own name."""
    names = {field.name for field in fields(Record)} - {"born_port", "store_port"}
    return Record(
        **{name: getattr(view, name) for name in names},
        born_port=int.from_bytes(view.born[-4:], "big", signed=True),
        store_port=int.from_bytes(view.store[-4:], "big", signed=True),
    )


@each_input
@given(records())
@example(LONG_NAME)
@example(IPV6)
def test_every_field_is_shown(one: Record) -> None:
    data = one.encode()
    view = view_at(data)
    assert shown(view) == one == Record.of(view)
    assert (view.data, view.size, view.position, view.end) == (data, len(data), 0, len(data))
    assert (view.body_crc, view.property_map()) == (one.body_crc, one.property_map())
    assert view.topic_bytes == one.topic.encode()
    assert view.property_bytes.decode() == one.properties


@pytest.mark.parametrize("one", EACH)
def test_a_view_and_a_record_give_the_same_message(one: Record) -> None:
    assert view_at(one.encode()).to_message("b") == one.to_message("b")
    assert repr(SAMPLE.topic) in repr(view_at(GOLDEN))


def test_views_of_records_that_lie_back_to_back() -> None:
    stored = [one.encode() for one in EACH * 200]
    data = b"".join(stored)
    views = list(iter_views(memoryview(data)))
    assert [view.data for view in views] == stored
    assert [Record.of(view) for view in views] == EACH * 200
    assert list(iter_views(b"")) == []


def test_what_lies_before_and_behind_is_ignored() -> None:
    assert Record.of(view_at(b"123" + GOLDEN + b"45", 3)) == SAMPLE


@each_input
@given(st.lists(records(), max_size=4), st.data())
def test_damaged_bytes_are_seen_alike_by_both_passes(many: list[Record], data: st.DataObject) -> None:
    encoded = bytearray(b"".join(one.encode() for one in many))
    for _ in range(data.draw(st.integers(0, 3)) if encoded else 0):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    check = data.draw(st.booleans())
    seen = []
    for name in kernels():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(view_module, "_locate", native.load(name).locate)
            found = list(walk(bytes(encoded), check))
        seen.append([str(one) if isinstance(one, RecordError) else shown(one) for one in found])
        ends = [one.size for one in found if isinstance(one, RecordView)]
        assert sum(ends) == len(encoded) or isinstance(found[-1], RecordError)
    assert all(one == seen[0] for one in seen)


@each_input
@given(st.binary(max_size=300), st.sampled_from([records_module.MAGIC_V1, records_module.MAGIC_V2]))
def test_a_view_of_any_bytes_stays_within_them(data: bytes, magic: int) -> None:
    candidate = records_module.PREFIX.pack(len(data) + 8, magic) + data
    try:
        view = view_at(candidate, check_crc=False)
    except RecordError:
        return
    inside = len(view.body) + len(view.topic_bytes) + len(view.born) + len(view.store)
    assert inside < view.size == len(candidate)
    try:
        view.to_message(bytes_max=1000)
    except ProtocolError:
        pass


def test_a_view_of_what_no_broker_stores() -> None:
    odd = replace(SAMPLE, queue_id=-1, queue_offset=-5, properties="a\x01b\0")
    assert Record.of(view_at(odd.encode())) == odd
    assert [Record.of(view) for view in iter_views(odd.encode() + GOLDEN + odd.encode())] == [odd, SAMPLE, odd]


def test_a_long_topic_needs_version_2() -> None:
    data = bytearray(LONG_NAME.encode())
    at = data.index(LONG_NAME.topic.encode()) - 2
    del data[at]  # its length in one byte, as in version 1
    data[0:8] = records_module.PREFIX.pack(len(data), records_module.MAGIC_V1)
    with pytest.raises(RecordError) as caught:
        view_at(data, check_crc=False)
    assert caught.value.fault is Fault.FIELDS


def test_errors_name_the_place_in_the_whole_buffer() -> None:
    found = list(walk(GOLDEN * 300 + b"\0" * 100))
    assert len(found) == 301
    assert isinstance(found[-1], RecordError)
    assert (found[-1].fault, found[-1].position) == (Fault.MAGIC, 300 * len(GOLDEN))
    damaged = GOLDEN * 2 + GOLDEN.replace(b"hello", b"hallo") + GOLDEN
    last = list(walk(damaged))[-1]
    assert isinstance(last, RecordError)
    assert (last.fault, last.position) == (Fault.BODY_CRC, 2 * len(GOLDEN))
    with pytest.raises(RecordError) as caught:
        view_at(b"123" + GOLDEN[:-1], 3)
    assert (caught.value.fault, caught.value.position) == (Fault.SHORT, 3)
    assert size_at(b"123" + GOLDEN, 3) == len(GOLDEN)


@pytest.mark.parametrize("one", EACH)
def test_the_front_of_a_record(one: Record) -> None:
    data = one.encode()
    front = Front(b"12" + data, 2)
    assert front.is_record
    assert not front.is_end_mark
    assert (front.size, front.queue_offset) == (len(data), one.queue_offset)
    assert (front.log_offset, front.stored_ms) == (one.log_offset, one.stored_ms)
    assert Front(data[:FRONT_BYTES]).stored_ms == one.stored_ms


def test_a_front_that_is_not_there() -> None:
    for size in range(FRONT_BYTES):
        front = Front(GOLDEN[:size])
        assert front.size == (len(GOLDEN) if size >= 8 else 0)
        assert front.log_offset == (SAMPLE.log_offset if size >= 36 else -1)
        assert front.queue_offset == (SAMPLE.queue_offset if size >= 28 else -1)
        assert front.stored_ms == -1
        assert front.is_record == (size >= 8)
    mark = Front(records_module.blank(500))
    assert mark.is_end_mark
    assert not mark.is_record
    assert mark.size == 500
    assert not Front(bytes(80)).is_record
    assert not Front(bytes(80)).is_end_mark
    assert Front(records_module.PREFIX.pack(-5, records_module.MAGIC_V1)).size == 0
    assert not Front(records_module.PREFIX.pack(90, records_module.MAGIC_V1)).is_record


def test_fronts_are_found_where_they_name_their_own_place() -> None:
    stored, at = [], 1000
    for one in (SAMPLE, LONG_NAME, SAMPLE, IPV6):
        stored.append(replace(one, log_offset=at + 7).encode())
        at += len(stored[-1])
    data = b"1234567" + b"".join(stored)
    starts = [7 + sum(map(len, stored[:number])) for number in range(4)]
    assert list(fronts_in(data, 1000)) == starts
    assert list(fronts_in(data, 1001)) == []
    assert list(fronts_in(data[4:], 1004)) == [start - 4 for start in starts]
    assert list(fronts_in(stored[0][4:], 1011)) == []
    assert list(fronts_in(b"", 0)) == []
