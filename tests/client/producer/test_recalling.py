"""Messages for later, and taking them back, with the testing kit's clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from kappamq.client.blocking.clients import Producer
from kappamq.errors import IllegalMessage, IllegalOperation, NoPermission
from kappamq.message import Message
from kappamq.testing import BrokerKit


def test_later_by_any_means_or_not_at_all(kappamq_broker: BrokerKit) -> None:
    broker = kappamq_broker
    with broker.producer(group="diary") as producer:
        at = datetime.fromtimestamp(broker.clock.message_ms() / 1000, UTC) + timedelta(hours=1)
        level = producer.send(Message("later", b"level", delay_level=5))
        producer.send(Message("later", b"delay", delay=timedelta(minutes=30)))
        timed = producer.send(Message("later", b"time", deliver_at=at))
        regretted = producer.send(Message("later", b"regretted", delay=90.5))
        assert timed.recall_handle
        assert producer.recall(regretted) == regretted.message_id
        for wait, expected in [("59s", []), ("1s", [b"level"]), ("29m", [b"delay"]), ("30m", [b"time"])]:
            before = len(broker.bodies("later"))
            broker.clock.advance(wait)
            assert broker.bodies("later")[before:] == expected
        with pytest.raises(IllegalOperation, match="has come already"):
            producer.recall(timed.recall_handle)
        with pytest.raises(IllegalOperation, match="no recall handle"):
            producer.recall(level)
        with pytest.raises(IllegalOperation, match="handle is invalid"):
            producer.recall("nonsense")
        with pytest.raises(IllegalMessage, match="timerMaxDelaySec"):
            producer.send(Message("later", b"too far", delay=timedelta(days=4)))


def test_a_broker_that_does_not_allow_it() -> None:
    with BrokerKit(properties={"recallMessageEnable": "false"}) as broker, broker.producer() as producer:
        assert isinstance(producer, Producer)
        sent = producer.send(Message("later", b"x", delay=60))
        with pytest.raises(NoPermission, match="recallMessageEnable"):
            producer.recall(sent)
