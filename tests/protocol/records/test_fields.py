"""The drawing of a record and the numbers that both kernels use are the same."""

from __future__ import annotations

from kappamq.native import layout
from kappamq.protocol.records import fields
from kappamq.protocol.records.fields import Fault, RecordError


def test_the_kernels_know_the_same_positions() -> None:
    assert layout.HEAD[8, 8].size == fields.BODY_AT + 4
    assert layout.HEAD[20, 20].size == fields.BODY_AT + 4 + 2 * fields.IPV6_EXTRA_BYTES
    assert (layout.SYS_BORN_V6, layout.SYS_STORE_V6) == (fields.SYS_BORN_IPV6, fields.SYS_STORE_IPV6)
    assert (layout.SYS_TRANSACTION, layout.SYS_COMPRESSED) == (fields.SYS_TRANSACTION, fields.SYS_COMPRESSED)
    magics = fields.MAGIC_V1, fields.MAGIC_V2, fields.MAGIC_BLANK
    assert magics == (layout.MAGIC_V1, layout.MAGIC_V2, layout.MAGIC_BLANK)
    assert fields.PREFIX.size == layout.BLANK_BYTES


def test_an_error_names_fault_place_and_detail() -> None:
    error = RecordError(Fault.SHORT, 17, "5 bytes are left")
    assert str(error) == "record at 17: the bytes end within the record: 5 bytes are left"
    assert (error.fault, error.position, error.detail) == (Fault.SHORT, 17, "5 bytes are left")
    assert str(RecordError(Fault.TAIL_CRC, 3)) == "record at 3: the record is not what was written"
