from __future__ import annotations

import asyncio
import struct

import pytest

from kappamq.broker.copies.incoming import Incoming, NotKnown, connected
from kappamq.errors import ProtocolError
from kappamq.replication.frames import BadStream
from tests.interop.process import free_port


def test_bytes_wait_until_they_are_stored() -> None:
    incoming = Incoming(100)
    incoming.add(100, memoryview(b"abc"))
    incoming.add(103, memoryview(b"def"))
    incoming.stored(104)
    assert (incoming.start, bytes(incoming.data)) == (104, b"ef")


def test_what_lies_behind_an_end_mark_is_passed_over() -> None:
    incoming = Incoming(100)
    incoming.add(100, memoryview(b"mark"))
    incoming.stored(110)  # the next file begins there
    incoming.add(104, memoryview(b"......new"))
    assert (incoming.start, bytes(incoming.data)) == (110, b"new")


def test_a_gap_is_refused() -> None:
    incoming = Incoming(100)
    with pytest.raises(BadStream, match="sends from 101"):
        incoming.add(101, memoryview(b"x"))


def test_a_master_that_is_not_there_is_named() -> None:
    place = f"127.0.0.1:{free_port()}"
    with pytest.raises(NotKnown, match=place):
        asyncio.run(connected(place))


def test_a_master_whose_host_no_resolver_takes_is_one_of_our_errors() -> None:
    with pytest.raises(ProtocolError, match="is not an address"):
        asyncio.run(connected("a" * 64 + ".x:1"))


def test_a_record_is_looked_at_again_when_it_is_whole() -> None:
    incoming = Incoming(0)
    incoming.add(0, memoryview(struct.pack(">II", 1000, 0xDAA320A7)))
    assert len(incoming.data) == 8
    for at in range(8, 999):
        incoming.add(at, memoryview(b"x"))
        assert not len(incoming.data)
    incoming.add(999, memoryview(b"xyz"))
    assert len(incoming.data) == 1002
    incoming.stored(1000)
    assert bytes(incoming.data) == b"yz"
