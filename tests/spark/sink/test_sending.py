"""Rows become parcels, and parcels go to an outlet; test_sink.py shows what arrives at a broker."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kappamq.errors import ConfigError, NotConnected
from kappamq.protocol.records import batch
from kappamq.spark.sink.options import WriteOptions
from kappamq.spark.sink.outbox import Parcel, Single
from kappamq.spark.sink.sending import RowSender, send_all
from kappamq.testing import BrokerKit


class Shelf:
    """An outlet that keeps what it is given."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.parcels: list[Parcel | Single] = []
        self.closed = self.settled = 0
        self._failure = failure

    def send(self, parcel: Parcel | Single) -> None:
        if self._failure is not None:
            raise self._failure
        self.parcels.append(parcel)

    def close(self) -> None:
        self.closed += 1

    def settle(self) -> None:
        self.settled += 1


def sent(broker: BrokerKit, shelf: Shelf, rows: pa.RecordBatch, members_max: int = 1000) -> int:
    options = WriteOptions(nameservers=broker.nameserver, topic="tea")
    with broker.admin() as admin:
        admin.create_topic("tea", queues=2)
    with broker.producer() as producer:
        return send_all(RowSender(options, producer, shelf, shelf, members_max), iter([rows, rows]))


def test_parcels_say_how_many_rows_they_have(kappamq_broker: BrokerKit) -> None:
    shelf = Shelf()
    assert sent(kappamq_broker, shelf, pa.record_batch({"body": [b"%d" % n for n in range(150)]}), 64) == 300
    assert [parcel.rows for parcel in shelf.parcels if isinstance(parcel, Parcel)] == [64, 64, 22] * 2
    bodies = [one.body for parcel in shelf.parcels if isinstance(parcel, Parcel) for one in batch.split(parcel.body)]
    assert bodies == [b"%d" % n for n in range(150)] * 2
    assert (shelf.closed, shelf.settled) == (1, 0), "an outlet for both is closed once"


def test_a_task_that_fails_settles_its_outlet(kappamq_broker: BrokerKit) -> None:
    shelf = Shelf(NotConnected("away"))
    with pytest.raises(NotConnected, match="away"):
        sent(kappamq_broker, shelf, pa.record_batch({"body": [b"x"]}))
    assert (shelf.closed, shelf.settled) == (0, 1)
    with pytest.raises(
        ConfigError, match=r"row 0 of this task cannot be a message: its body is null. The row: \{'body': None\}"
    ):
        sent(kappamq_broker, Shelf(), pa.record_batch({"body": pa.array([None], pa.binary())}))
