"""Topics by broker, and brokers by topic."""

from __future__ import annotations

from kappamq.nameserver.topic_queues import TopicQueues
from kappamq.protocol.bodies.all import QueueData


def test_put_and_drop_keep_both_directions() -> None:
    table = TopicQueues()
    for topic, broker in (("T", "a"), ("T", "b"), ("U", "a")):
        table.put(topic, QueueData(broker, 1, 1, 6))
    assert table.names() == ["T", "U"]
    assert table.of_brokers(["a", "none"]) == {"T", "U"}
    table.drop("T", "a")
    assert set(table.of_topic("T")) == {"b"}
    assert table.of_brokers(["a"]) == {"U"}
    table.drop("U", "a")
    table.drop("U", "a")
    assert "U" not in table
    assert len(table) == 1
    assert table.of_brokers(["a"]) == set()
    assert not table.of_topic("U")


def test_permissions_of_one_broker() -> None:
    table = TopicQueues()
    before = QueueData("a", 1, 1, 6)
    table.put("T", before)
    table.put("T", QueueData("b", 1, 1, 6))
    assert table.change_permissions("a", lambda permission: permission & 4) == 1
    assert {name: queues.permission for name, queues in table.of_topic("T").items()} == {"a": 4, "b": 6}
    assert before.permission == 6, "what was handed out before must not change"
    assert table.change_permissions("nobody", lambda _: 0) == 0


def test_flags() -> None:
    table = TopicQueues()
    for topic, flag in (("plain", 0), ("unit", 1), ("sub", 2), ("both", 3)):
        table.put(topic, QueueData("a", 1, 1, 6, flag))
    assert table.with_flags(1) == ["both", "unit"]
    assert table.with_flags(2) == ["both", "sub"]
    assert table.with_flags(2, absent=1) == ["sub"]


def test_mappings_go_with_the_topic() -> None:
    table = TopicQueues()
    table.put("T", QueueData("a"))
    table.put_mapping("T", "a", {"epoch": 1})
    table.put_mapping("U", "a", {"epoch": 1})
    assert table.mappings("T") == {"a": {"epoch": 1}}
    assert table.mappings("U") is None
    table.drop("T", "a")
    assert table.mappings("T") is None
