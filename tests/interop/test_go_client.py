"""The official Go client (rocketmq-client-go v2, the remoting protocol)."""

from typing import Any

import pytest

from tests.interop.messages import Described, Received, bodies, described
from tests.interop.probe import JsonLines
from tests.waiting import eventually


def wait_for(golang: JsonLines, group: str, count: int, timeout: float = 60) -> list[Received]:
    """What the consumer of the group has got once that is so much."""

    def arrived() -> list[Received] | None:
        heard: list[Received] = golang("received", group=group)
        return heard if len(heard) >= count else None

    found = eventually(arrived, timeout=timeout, pause=0.1, text=f"{count} messages for {group}")
    assert found is not None
    return found


def check(received: list[Received], messages: list[Described], topic: str) -> None:
    assert sorted(bodies(received)) == sorted(each["body"] for each in messages)
    wanted = {each["body"]: each for each in messages}
    for got in received:
        want = wanted[got["body"]]
        assert (got["topic"], got["tags"], got["keys"].strip()) == (topic, want["tags"], want["keys"])
        assert got["properties"].items() >= want["properties"].items()


@pytest.mark.parametrize("mode", ["sync", "async", "oneway"])
def test_send_and_consume(golang: JsonLines, topic: str, mode: str) -> None:
    messages = described(20)
    sent = golang("send", topic=topic, mode="sync", messages=messages[:1])  # makes the topic; this client wants one
    sent += golang("send", topic=topic, mode=mode, messages=messages[1:])
    golang("subscribe", topic=topic, group=f"G_{topic}", expression="*")
    received = wait_for(golang, f"G_{topic}", 20)
    check(received, messages, topic)
    if mode != "oneway":
        told = {(each["queueId"], each["queueOffset"]) for each in sent}
        assert told == {(each["queueId"], each["queueOffset"]) for each in received}
        assert {each["msgId"] for each in sent} == {each["msgId"] for each in received}
    golang("unsubscribe", group=f"G_{topic}")


def test_batch(golang: JsonLines, topic: str) -> None:
    messages = described(10)
    golang("send", topic=topic, mode="batch", messages=messages)
    golang("subscribe", topic=topic, group=f"G_{topic}", expression="*")
    check(wait_for(golang, f"G_{topic}", 10), messages, topic)
    golang("unsubscribe", group=f"G_{topic}")


@pytest.mark.parametrize(
    ("selector", "kept"),
    [
        ({"expression": "Tag1 || Tag2"}, lambda each: each["tags"] in ("Tag1", "Tag2")),
        ({"expression": "colour = 'red' AND number > 5", "sql": True}, lambda each: red_beyond_five(each)),
    ],
    ids=["tags", "sql"],
)
def test_filters(golang: JsonLines, topic: str, selector: dict[str, Any], kept: Any) -> None:
    messages = described(12)
    golang("send", topic=topic, mode="sync", messages=messages)
    golang("subscribe", topic=topic, group=f"G_{topic}", **selector)
    wanted = [each for each in messages if kept(each)]
    check(wait_for(golang, f"G_{topic}", len(wanted)), wanted, topic)
    golang("unsubscribe", group=f"G_{topic}")


def red_beyond_five(each: Described) -> bool:
    return each["properties"]["colour"] == "red" and int(each["properties"]["number"]) > 5


def test_order_holds_for_each_key(golang: JsonLines, topic: str) -> None:
    messages = [{**each, "queue": f"key-{number % 3}"} for number, each in enumerate(described(30))]
    golang("send", topic=topic, mode="sync", messages=messages)
    golang("subscribe", topic=topic, group=f"G_{topic}", expression="*", ordered=True)
    received = wait_for(golang, f"G_{topic}", 30)
    for key in range(3):
        wanted = [each["body"] for each in messages[key::3]]
        assert [body for body in bodies(received) if body in wanted] == wanted
    golang("unsubscribe", group=f"G_{topic}")


def test_a_failed_message_comes_again(golang: JsonLines, topic: str) -> None:
    messages = described(1)
    golang("send", topic=topic, mode="sync", messages=messages)
    golang("subscribe", topic=topic, group=f"G_{topic}", expression="*", fail=1)
    received = wait_for(golang, f"G_{topic}", 2)  # after ten seconds, the first retry's delay
    assert [each["reconsumeTimes"] for each in received] == [0, 1]
    assert received[0]["body"] == received[1]["body"] == messages[0]["body"]
    golang("unsubscribe", group=f"G_{topic}")


def test_delay_levels(golang: JsonLines, topic: str) -> None:
    messages = [{**each, "delay": 1} for each in described(3)]
    golang("send", topic=topic, mode="sync", messages=messages)
    golang("subscribe", topic=topic, group=f"G_{topic}", expression="*")
    check(wait_for(golang, f"G_{topic}", 3), messages, topic)
    golang("unsubscribe", group=f"G_{topic}")


def test_transactions(golang: JsonLines, topic: str) -> None:
    """Committed at once, rolled back, and committed when the broker asks."""
    decisions = {"now": ["commit"], "never": ["rollback"], "later": ["unknown", "commit"]}
    for name, decide in decisions.items():
        golang("transaction", topic=topic, group=f"P_{name}_{topic}", decide=decide, messages=described(1, name))
    golang("subscribe", topic=topic, group=f"G_{topic}", expression="*")
    received = wait_for(golang, f"G_{topic}", 2)
    assert sorted(bodies(received)) == ["later 0", "now 0"]
    golang("unsubscribe", group=f"G_{topic}")
