"""Programs and event loops that end with sends under way: how many is told, and forks wait for nobody."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
from concurrent.futures import TimeoutError as FutureTimeout

import pytest

from kappamq.client.blocking.clients import Producer
from kappamq.client.blocking.handover import MANY
from kappamq.client.bursts import leftovers
from kappamq.client.producer.producer import AsyncProducer
from kappamq.errors import ClientClosed
from kappamq.message import Message
from kappamq.protocol.codes import RequestCode
from tests.client.fake import FakeCluster, fake_cluster, never
from tests.client.fake_thread import cluster
from tests.waiting import eventually, eventually_async

__all__ = ["cluster"]

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE

PROGRAM = """
import sys, time
from kappamq import Message, Producer
producer = Producer(sys.argv[1], group="g", send_timeout_ms=60_000)
producer.send(Message("tea", b"warm"), queue=producer.queues("tea")[0])
queue = producer.queues("tea")[0]
futures = [producer.send_async(Message("tea", b"first"), queue=queue)]
while not producer.inner.sinks or not next(iter(producer.inner._sends._open)).sent:
    time.sleep(0.001)
futures += [producer.send_async(Message("tea", b"%d" % n), queue=queue) for n in range(4)]
"""


def program(cluster: FakeCluster, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text, cluster.options()["nameserver"]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_program_that_ends_is_told_how_many_it_left(cluster: FakeCluster) -> None:
    cluster.broker.script(SEND, cluster.broker.handle, never)
    done = program(cluster, PROGRAM)
    assert done.returncode == 0
    assert "the program ended with 5 messages under way: 4 were not sent, 1 may have been stored" in done.stderr


def test_a_program_that_closes_its_producer_hears_nothing(cluster: FakeCluster) -> None:
    start, _, _ = PROGRAM.partition("while")
    done = program(cluster, start + "producer.close()")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(cluster.broker.stored("tea")) == 2


HANDED_OVER = """
import sys, threading, time
from kappamq import Message, Producer
from kappamq.client.blocking import handover
from tests.waiting import eventually
handover.PAUSE_S = 60.0  # so long the loop takes nothing, unless it is called
producer = Producer(sys.argv[1], group="g")
producer.send_async(Message("tea", b"warm")).result(30)
go_on = threading.Event()
producer._home.loop.call_soon_threadsafe(go_on.wait)
def put(count):
    for number in range(count):
        producer.send_callback(Message("tea", b"%d" % number), print)
put(handover.MANY)
"""


def test_what_the_loop_has_not_taken_at_the_end_of_the_program_is_sent(cluster: FakeCluster) -> None:
    late = "go_on.set(); eventually(lambda: not len(producer._handover)); put(5)"
    done = program(cluster, HANDED_OVER + late)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(cluster.broker.stored("tea")) == 1 + MANY + 5


def test_what_a_stopped_loop_never_took_is_told(cluster: FakeCluster) -> None:
    done = program(cluster, HANDED_OVER)
    assert done.returncode == 0
    assert f"the program ended with {MANY} messages under way: {MANY} were not sent, 0 may" in done.stderr


def test_a_loop_that_ends_leaves_no_silence(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with fake_cluster(tea=1) as cluster:
            cluster.broker.script(SEND, cluster.broker.handle, never)
            producer = AsyncProducer(**cluster.options())
            await producer.send(Message("tea", b"warm"))
            producer.send_nowait(Message("tea", b"first"))
            await eventually_async(lambda: len(cluster.broker.seen(SEND)) == 2)
            producer.send_nowait(Message("tea", b"second"))
            producer.send_nowait(Message("tea", b"third"))

    caplog.set_level(logging.WARNING)
    for _ in range(2):  # loops come and go, and each is told of its own
        caplog.clear()
        asyncio.run(run())
        gc.collect()  # the producer and its loop know each other
        leftovers.tell_all()  # as at the program's end: Python 3.13 keeps tasks that were cancelled with their loop until then
        assert caplog.text.count("with 3 messages under way") == 1


def test_a_closed_producer_is_forgotten_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with fake_cluster(tea=1) as cluster, AsyncProducer(**cluster.options()) as producer:
            await producer.send(Message("tea", b"x"))

    caplog.set_level(logging.WARNING)
    asyncio.run(run())
    gc.collect()
    assert "under way" not in caplog.text


def test_a_fork_in_the_middle_leaves_the_messages_to_the_parent(cluster: FakeCluster) -> None:
    with Producer(**cluster.options()) as producer:
        producer.send(Message("tea", b"warm"))
        cluster.broker.script(SEND, never)
        stuck = producer.send_async(Message("tea", b"stuck"), timeout=0.5)
        with pytest.raises(FutureTimeout):
            stuck.result(0.01)  # a lock of its own, which the child must not wait for
        eventually(lambda: producer.under_way == 1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    stuck.result(5)
                except ClientClosed:
                    code = 2
                try:
                    producer.send_async(Message("tea", b"child"))
                except ClientClosed:
                    code = 0 if code == 2 else 3
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with pytest.raises(Exception, match="may have been stored"):
            stuck.result(10)
        assert producer.send_async(Message("tea", b"parent")).result(10).ok
    assert sorted(cluster.broker.stored("tea")) == [b"parent", b"warm"]
