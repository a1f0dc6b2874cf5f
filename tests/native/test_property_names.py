"""The special and private properties are declared once; C gets them from a header that is made from the table."""

from __future__ import annotations

import os
from pathlib import Path

from kappamq.native import layout, property_names
from kappamq.protocol.records import properties

HEADER = Path(property_names.__file__).with_name("property_names.h")


def test_the_header_is_current() -> None:
    if os.environ.get("KAPPAMQ_REWRITE"):
        HEADER.write_text(property_names.header())
    assert HEADER.read_text() == property_names.header()


def test_every_property_has_a_reason() -> None:
    assert all(one.name and one.why for one in property_names.SPECIAL)


def test_private_names_are_special_and_only_a_broker_may_set_them() -> None:
    assert property_names.PRIVATE_NAMES < layout.SPECIAL_PROPERTIES
    assert properties.BROKER_ONLY >= property_names.PRIVATE_NAMES == {"__CRC32#", "__BATCH#", "__HALF_MS#", "__END#"}


def test_no_other_source_of_the_kernel_spells_a_private_name() -> None:
    for path in HEADER.parent.iterdir():
        if path.suffix in (".c", ".h", ".py", ".pyx") and path.stem not in ("property_names", "_kernel"):
            text = path.read_text()
            assert not [name for name in property_names.PRIVATE_NAMES if f'"{name}' in text], path
