"""Batch transactions of a plain program."""

from __future__ import annotations

import pytest

from kappamq.client import Admin, Producer
from kappamq.message import Message
from kappamq.testing import BrokerKit


def test_all_or_nothing() -> None:
    with BrokerKit() as kit, Producer(kit.nameserver) as producer, Admin(kit.nameserver) as admin:
        with producer.batch_transaction("s", 0) as batch:
            for number in range(3):
                batch.send(Message("t", b"%d" % number), key="k")
        assert batch.outcome is not None
        assert (batch.outcome.rows, batch.outcome.published, batch.repeated, batch.number) == (3, True, False, 0)
        with pytest.raises(ZeroDivisionError), producer.batch_transaction("s", 1) as batch:
            batch.send(Message("t", b"never"))
            raise ZeroDivisionError
        with producer.batch_transaction("s", 1) as batch:
            batch.send(Message("t", b"never"))
            batch.rollback()
        assert batch.outcome is None
        with producer.batch_transaction("s", 0) as batch:
            for number in range(3):
                batch.send(Message("t", b"%d" % number), key="k")
        assert batch.repeated
        assert [message.body for message in kit.messages("t")] == [b"0", b"1", b"2"]
        (scope,) = admin.scopes()["s"].values()
        assert scope.last == 0
