from __future__ import annotations

import threading

from kappamq.client.consumer.consume_stats import ConsumeStats
from kappamq.client.consumer.running_info import running_info, stacks
from kappamq.client.pulling.process_queue import Limits, ProcessQueue
from kappamq.client.pulling.pulling import Interest
from kappamq.clock import VirtualClock
from kappamq.config.client import ClientConfig
from kappamq.message import MessageQueue, ReceivedMessage
from kappamq.protocol.bodies.admin import ConsumerRunningInfo


def test_it_says_what_is_held_and_survives_the_wire() -> None:
    queue = MessageQueue("tea", "b", 1)
    held = ProcessQueue(queue, 10, Limits())
    message = ReceivedMessage(
        topic="tea", body=bytes(3 << 20), queue=queue, queue_offset=12, log_offset=0, message_id="", offset_id=""
    )
    held.add([message], 15)
    config = ClientConfig(nameservers=("a:1", "b:2"), consume_threads=7)
    clock, stats = VirtualClock(), ConsumeStats()
    stats.consumed("tea", 3, 0.25, False, clock.liveness())
    held.lease_until = clock.liveness() + 20
    made = running_info(
        config, clock, 99, [Interest("tea", "x", 5)], [held], stats, ordered=True, locked=True, with_stack=True
    )
    info = ConsumerRunningInfo.decode(made.encode())
    told = info.queues[queue]
    assert (told.commit_offset, told.cached_min_offset, told.cached_max_offset) == (12, 12, 12)
    assert (told.cached_count, told.cached_mib, told.dropped) == (1, 3, False)
    assert info.properties["PROP_NAMESERVER_ADDR"] == "a:1;b:2"
    assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "7"
    assert info.properties["PROP_CONSUMER_START_TIMESTAMP"] == "99"
    assert [subscription.expression for subscription in info.subscriptions] == ["x"]
    assert (info.statuses["tea"].consume_rt, info.statuses["tea"].consume_failed) == (250.0, 3)
    assert (told.locked, told.last_lock_ms) == (True, clock.message_ms() - 10_000)
    assert info.properties["PROP_CONSUMEORDERLY"] == "true"
    assert "test_it_says_what_is_held" in (info.stack or "")


def test_stacks_name_every_thread() -> None:
    here, go = threading.Event(), threading.Event()

    def wait_at_the_counter() -> None:
        here.set()
        go.wait(10)

    waiter = threading.Thread(target=wait_at_the_counter, name="waiter")
    waiter.start()
    assert here.wait(30)
    text = stacks()
    go.set()
    waiter.join()
    assert "waiter (" in text
    assert "wait_at_the_counter" in text
