"""Bytes with which our log cannot go on, and partings below what is confirmed, end a connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.copies.members.checking import checked
from kappamq.raft import Append, Ballot, Log, MemberId, Members, Message, Node, TermRecord, Terms
from kappamq.raft.messages import Diverged
from kappamq.replication.frames import BadStream
from tests.broker.copies.copying import log_bytes
from tests.broker.running import run, running, speaking

A, B = MemberId("a", 1), MemberId("b", 1)
EVERYBODY = Members(frozenset({A, B}))


def node(end: int = 30, confirmed: int = 20) -> Node:
    terms = Terms(TermRecord(0, 0, EVERYBODY), [TermRecord(0, 3, EVERYBODY)])
    return Node(A, Ballot(3, None), Log(terms, end, confirmed), now=0, dice=lambda: 0.5)


def said_to(broker: Broker, message: Message, data: bytes) -> memoryview:
    return checked(broker.store, node(), message, memoryview(data))


def append(start: int, size: int) -> Append:
    return Append(B, A, 3, 1, start, start + size, 3, (), 0)


def test_bytes_that_end_within_a_record_are_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "from") as source, speaking(source) as speaker:
            assert (await speaker.send("tea", b"x" * 100)).code == 0
            source.writer.end_turn()
            good = log_bytes(source, 0, source.store.log.end)
        async with running(tmp_path / "to") as broker:
            end = broker.store.log.end
            assert end == 0, "nothing is stored yet, so these bytes may come next"
            assert bytes(said_to(broker, append(end, len(good)), good)) == good
            with pytest.raises(BadStream, match="sends what no leader has"):
                said_to(broker, append(end, len(good) - 1), good[:-1])
            with pytest.raises(BadStream, match="sends what no leader has"):
                said_to(broker, append(end, len(good)), bytes(len(good)))
            # What does not come next is the node's business: it is too early, or was here before.
            assert bytes(said_to(broker, append(end + 8, 8), b"whatever")) == b"whatever"

    run(test())


def test_a_parting_below_what_is_confirmed_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            fair = Diverged(B, A, 4, 3, 30, 3, 20)
            assert bytes(said_to(broker, fair, b"")) == b""
            with pytest.raises(BadStream, match="what no leader would: our logs part at 19"):
                said_to(broker, fair._replace(point_end=19), b"")

    run(test())
