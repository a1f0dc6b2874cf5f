"""Scopes and stagers of a plain program: what several processes do, in one."""

from __future__ import annotations

import zlib

import pytest

from kappamq.client import Producer
from kappamq.client.batches.scope import Part
from kappamq.errors import IllegalMessage
from kappamq.message import Message, MessageQueue
from kappamq.protocol.records import batch
from kappamq.testing import BrokerKit


def test_parts_of_several_writers() -> None:
    with BrokerKit() as kit, Producer(kit.nameserver) as producer:
        producer.check_masters("s")
        scope = producer.open_scope("s", "me")
        assert (scope.last, scope.coordinator) == (-1, next(iter(producer.queues("t"))).broker)
        parts = []
        for partition in range(2):
            ticket = scope.begin(0, attempt="one")
            stager = producer.stager(ticket, partition=partition)
            stager.add(Message("t", b"single"), queue=MessageQueue("t", scope.coordinator, partition))
            body = batch.encode([batch.Member(b"first"), batch.Member(b"second")])
            stager.add_encoded("t", body, 2, zlib.crc32(b"first") + zlib.crc32(b"second"))
            parts.append(stager.finish())
        outcome = scope.decide(ticket, parts, wait_s=20)
        assert (outcome.rows, outcome.published, outcome.repeated) == (6, True, False)
        assert sorted(kit.bodies("t")) == sorted([b"single", b"first", b"second"] * 2)
        again = scope.begin(0)
        assert again.transaction is None
        assert scope.decide(again, [Part(rows=part.rows, checksum=part.checksum) for part in parts], wait_s=0).repeated
        assert scope.published(0, wait_s=20).rows == 6
        assert not scope.abort(ticket), "it was decided"


def test_a_stager_that_is_cancelled_says_what_failed_before() -> None:
    with BrokerKit() as kit, Producer(kit.nameserver) as producer:
        stager = producer.stager(producer.open_scope("s", "me").begin(0))
        with pytest.raises(IllegalMessage, match="empty"):
            stager.add(Message("t", b""))
        stager.cancel()
        assert kit.bodies("t") == []
