"""The blocking faces, against the fake cluster on a loop of its own thread."""

from __future__ import annotations

import threading

import pytest

from kappamq.client.blocking.clients import Admin, Producer
from kappamq.errors import ClientClosed, IllegalMessage
from kappamq.message import Message
from tests.client.fake import FakeCluster
from tests.client.fake_thread import cluster
from tests.waiting import eventually

__all__ = ["cluster"]


def test_sends_of_every_kind(cluster: FakeCluster) -> None:
    with Producer(**cluster.options(), group="shop") as producer:
        assert producer.send(Message("tea", b"sync")).ok
        future = producer.send_async(Message("tea", b"async"))
        assert future.result(30).ok
        producer.send_oneway(Message("tea", b"oneway"))
        assert [result.queue_offset for result in producer.send_batch([Message("tea", b"b1"), Message("tea", b"b2")])]
        eventually(lambda: sorted(cluster.broker.stored("tea")) == [b"async", b"b1", b"b2", b"oneway", b"sync"])
        assert len(producer.queues("tea")) == 4
        assert list(producer.in_batches([Message("tea", b"x")])) == [[Message("tea", b"x")]]
    with pytest.raises(ClientClosed):
        producer.send(Message("tea", b"late"))


def test_one_producer_serves_many_threads(cluster: FakeCluster) -> None:
    with Producer(**cluster.options()) as producer:

        def work(name: int) -> None:
            for n in range(25):
                producer.send(Message("tea", b"%d-%d" % (name, n)))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    stored = cluster.broker.stored("tea")
    assert len(stored) == len(set(stored)) == 200


def test_async_sends_report_their_errors_in_the_future(cluster: FakeCluster) -> None:
    with Producer(**cluster.options()) as producer:
        with pytest.raises(IllegalMessage):
            producer.send_async(Message("tea", b"")).result(30)
        futures = [producer.send_async(Message("tea", b"%d" % n)) for n in range(200)]
        assert all(future.result(10).ok for future in futures)


def test_async_sends_wait_when_enough_is_on_its_way(cluster: FakeCluster) -> None:
    with Producer(**cluster.options(inflight_max=2)) as producer:
        futures = [producer.send_async(Message("tea", b"%d" % n)) for n in range(50)]
        assert sum(not future.done() for future in futures) <= 3
        assert all(future.result(10).ok for future in futures)


def test_an_admin_asks(cluster: FakeCluster) -> None:
    with Admin(**cluster.options()) as admin:
        assert admin.topics() == ["tea"]
        assert admin.masters() == {"broker-0": cluster.broker.address}


def test_a_client_closed_before_its_first_use_stays_closed(cluster: FakeCluster) -> None:
    producer = Producer(**cluster.options(), group="shop")
    producer.close()
    with pytest.raises(ClientClosed, match="this Producer is closed: create a new one"):
        producer.send(Message("tea", b"late"))
    with pytest.raises(ClientClosed, match="this Producer is closed"):
        producer.send_async(Message("tea", b"late"))
    producer.close()
    assert cluster.broker.stored("tea") == []
