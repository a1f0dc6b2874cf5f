from __future__ import annotations

from kappamq.client.process_queue import Limits, ProcessQueue
from kappamq.client.pulling import Interest
from kappamq.client.running_info import running_info
from kappamq.config.client import ClientConfig
from kappamq.message import MessageQueue, ReceivedMessage
from kappamq.protocol.bodies_admin import ConsumerRunningInfo


def test_it_says_what_is_held_and_survives_the_wire() -> None:
    queue = MessageQueue("tea", "b", 1)
    held = ProcessQueue(queue, 10, Limits())
    message = ReceivedMessage(
        topic="tea", body=bytes(3 << 20), queue=queue, queue_offset=12, log_offset=0, message_id="", offset_id=""
    )
    held.add([message], 15)
    config = ClientConfig(nameservers=("a:1", "b:2"), consume_threads=7)
    info = ConsumerRunningInfo.decode(running_info(config, 99, [Interest("tea", "x", 5)], [held]).encode())
    told = info.queues[queue]
    assert (told.commit_offset, told.cached_min_offset, told.cached_max_offset) == (12, 12, 14)
    assert (told.cached_count, told.cached_mib, told.dropped) == (1, 3, False)
    assert info.properties["PROP_NAMESERVER_ADDR"] == "a:1;b:2"
    assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "7"
    assert info.properties["PROP_CONSUMER_START_TIMESTAMP"] == "99"
    assert [subscription.expression for subscription in info.subscriptions] == ["x"]
    assert "tea" in info.statuses
