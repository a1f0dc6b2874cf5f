"""What the planner asks: topics by name or pattern, bounds, marks, and the progress of a group."""

from __future__ import annotations

import logging

import pytest

from kappamq import Message
from kappamq.errors import ConfigError, NoSuchTopic
from kappamq.message import MessageQueue
from kappamq.spark.topic.options import ReadOptions
from kappamq.spark.topic.planning import Bounds
from kappamq.spark.topic.reported import Reported
from kappamq.spark.topic.topics import Topics, check_exists
from kappamq.testing import BrokerKit


@pytest.fixture
def shop(kappamq_broker: BrokerKit) -> BrokerKit:
    with kappamq_broker.admin() as admin:
        for name in ("orders-eu", "orders-us", "bills"):
            admin.create_topic(name, queues=1)
    with kappamq_broker.producer() as producer:
        producer.send_batch([Message("bills", b"%d" % number) for number in range(5)])
    return kappamq_broker


def topics(broker: BrokerKit, **options: str) -> Topics:
    return Topics(ReadOptions.parse({"nameservers": broker.nameserver, **options}))


def test_names_and_bounds(shop: BrokerKit) -> None:
    assert topics(shop, topicPattern="orders-.*").names() == ("orders-eu", "orders-us")
    assert topics(shop, topicPattern="order").names() == ()
    assert list(topics(shop, topic="bills").bounds().values()) == [Bounds(0, 5)]
    with pytest.raises(ConfigError, match=r"topic 'bill' does not exist \(did you mean bills\?\)"):
        topics(shop, topic="bill").bounds()


def test_marks_tell_messages_apart(shop: BrokerKit) -> None:
    asked = topics(shop, topic="bills")
    (queue,) = asked.bounds()
    marks = [asked.marks({queue: end})[queue] for end in (1, 2, 5)]
    assert len(set(marks)) == 3
    assert asked.marks({queue: 6}) == {}
    assert asked.marks({queue: 1})[queue] == marks[0]


def test_a_group_that_cannot_be_told_is_a_line_in_the_log(shop: BrokerKit, caplog: pytest.LogCaptureFixture) -> None:
    nowhere = MessageQueue("bills", "no-such-broker", 0)
    with caplog.at_level(logging.WARNING):
        topics(shop, topic="bills").report("etl", {nowhere: 3})
    assert "could not commit the offsets of group etl" in caplog.text
    topics(shop, topic="bills").report(None, {nowhere: 3})


def test_one_queue_that_cannot_be_told_does_not_keep_the_others(
    shop: BrokerKit, caplog: pytest.LogCaptureFixture
) -> None:
    asked = topics(shop, topic="bills")
    (queue,) = asked.bounds()
    reported = Reported()
    away = [MessageQueue("bills", "away", number) for number in range(3)]
    with caplog.at_level(logging.WARNING):
        for offset in (3, 4):
            asked.report("etl", {**dict.fromkeys(away, offset), queue: offset}, reported)
    assert caplog.text.count("the offsets of group etl for 3 of 4 queues, such as bills@away/0") == 1, "once"
    with shop.admin() as admin:
        assert admin.consumer_progress("etl")[queue].consumer_offset == 4


def test_a_topic_must_exist_whenever_it_is_asked_for(shop: BrokerKit) -> None:
    check_exists(shop.nameserver, "bills")
    with pytest.raises(NoSuchTopic, match=r"topic 'bill' does not exist \(did you mean bills\?\): create it with"):
        check_exists(shop.nameserver, "bill")
    with shop.admin() as admin:
        admin.delete_topic("bills")
    with pytest.raises(NoSuchTopic, match="topic 'bills' does not exist"):
        check_exists(shop.nameserver, "bills")
