"""The official C++ client: JSON headers with bare numbers in them, request code 10, heartbeats of its own dialect."""

import time
from collections.abc import Callable

import pytest

from benchmarks.wire import frames
from tests.interop.conftest import VARIANTS, Variant
from tests.interop.messages import Described, Received, bodies, described, view, wait_for_messages
from tests.interop.probe import JsonLines
from tests.interop.targets import Target
from tests.waiting import eventually

ASKED = ["number", "colour", "UNIQ_KEY"]  # the properties that the probe is to report


@pytest.fixture
def java(java_clients: Callable[[Variant], JsonLines]) -> JsonLines:
    """A second witness: the newest Java client, with binary headers."""
    return java_clients(VARIANTS[-1])


def check(received: list[Received], messages: list[Described], topic: str) -> None:
    assert sorted(bodies(received)) == sorted(each["body"] for each in messages)
    wanted = {each["body"]: each for each in messages}
    for got in received:
        want = wanted[got["body"]]
        assert (got["topic"], got["tags"], got["keys"]) == (topic, want["tags"], want["keys"])
        assert got["properties"].items() >= want["properties"].items()
        assert got["properties"]["UNIQ_KEY"] == got["msgId"]
        assert got["reconsumeTimes"] == 0
        assert abs(got["storeTimestamp"] - got["bornTimestamp"]) < 10_000


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_send_and_pull(cpp: JsonLines, java: JsonLines, topic: str, mode: str) -> None:
    messages = described(20)
    sent = cpp("send", topic=topic, mode=mode, messages=messages)
    assert [each["status"] for each in sent] == ["OK"] * 20
    received = wait_for_messages(cpp, topic, 20, properties=ASKED)
    check(received, messages, topic)
    # What the sender was told is where the message is.
    places = {each["msgId"]: each["queueOffset"] for each in received}
    assert [places[each["msgId"]] for each in sent] == [each["queueOffset"] for each in sent]
    # And the Java client sees the same.
    seen = {each["msgId"]: (each["body"], each["queueId"], each["queueOffset"]) for each in java("pull", topic=topic)}
    assert seen == {each["msgId"]: (each["body"], each["queueId"], each["queueOffset"]) for each in received}
    viewed = eventually(lambda: view(java, topic, sent[-1]["msgId"]), text="the last message in the index")
    assert viewed is not None
    assert viewed["body"] == messages[-1]["body"]


def test_its_plain_requests_never_get_to_python(cpp: JsonLines, target: Target, topic: str) -> None:
    if target.kind == "apache":
        pytest.skip("counts of our kernel")
    cpp("send", topic=topic, mode="sync", messages=described(2))  # the first one makes the topic
    fast, slow = frames(target.broker)
    cpp("send", topic=topic, mode="sync", messages=described(100))
    now_fast, now_slow = frames(target.broker)
    assert now_fast - fast >= 100
    assert now_slow - slow < 10, "heartbeats, and our own question"


def test_oneway(cpp: JsonLines, java: JsonLines, topic: str) -> None:
    messages = described(20)
    cpp("send", topic=topic, mode="oneway", messages=messages)
    wait_for_messages(java, topic, 20)
    check(cpp("pull", topic=topic, properties=ASKED), messages, topic)


def test_orderly_send_goes_to_one_queue(cpp: JsonLines, topic: str) -> None:
    messages = described(10)
    sent = cpp("send", topic=topic, mode="orderly", messages=messages)
    received = wait_for_messages(cpp, topic, 10, properties=ASKED)
    check(received, messages, topic)
    assert len({each["queueId"] for each in received}) == 1
    assert [each["msgId"] for each in received] == [each["msgId"] for each in sent]
    assert [each["queueOffset"] for each in sent] == list(range(10))


def test_batch(cpp: JsonLines, java: JsonLines, target: Target, topic: str) -> None:
    """It says "batch":"1" and sends by the plain request code 10."""
    messages = described(5)
    (sent,) = cpp("send", topic=topic, mode="batch", messages=messages)
    assert (sent["status"], sent["queueOffset"]) == ("OK", 0)
    if target.kind == "apache":
        # Apache's broker reads "1" as false and stores the five as the body of one message.
        (odd,) = wait_for_messages(java, topic, 1)
        assert all(each["body"] in odd["body"] for each in messages)
        return
    received = wait_for_messages(cpp, topic, 5, properties=ASKED)
    check(received, messages, topic)
    assert [each["body"] for each in received] == [each["body"] for each in messages]
    assert [each["queueOffset"] for each in received] == list(range(5))


def test_pull_with_tags(cpp: JsonLines, topic: str) -> None:
    messages = described(12)
    cpp("send", topic=topic, mode="sync", messages=messages)
    wait_for_messages(cpp, topic, 12)
    received = cpp("pull", topic=topic, expression="Tag0 || Tag2", properties=ASKED)
    check(received, [each for each in messages if each["tags"] != "Tag1"], topic)


def test_push_consumer(cpp: JsonLines, topic: str) -> None:
    messages = described(30)
    cpp("send", topic=topic, mode="sync", messages=messages)
    group = f"G_{topic}"
    cpp("push_start", topic=topic, group=group, expression="Tag0||Tag1", properties=ASKED)
    expected = [each for each in messages if each["tags"] != "Tag2"]
    check(cpp("push_got", id=group, count=len(expected), millis=30_000), expected, topic)
    later = described(6, prefix="later")
    cpp("send", topic=topic, mode="async", messages=later)
    expected = [each for each in later if each["tags"] != "Tag2"]
    check(cpp("push_got", id=group, count=len(expected), millis=10_000), expected, topic)
    cpp("push_stop", id=group)


def test_reads_what_java_wrote(cpp: JsonLines, java: JsonLines, topic: str) -> None:
    messages = described(10)
    messages.append(
        {"body": "żółć 🚀", "tags": "标签", "keys": "ключ", "properties": {"number": "ß", "colour": "blue"}}
    )
    java("send", topic=topic, mode="sync", messages=messages)
    (batch,) = java("send", topic=topic, mode="batch", messages=described(4, prefix="batch"))
    assert batch["status"] == "SEND_OK"
    received = wait_for_messages(cpp, topic, len(messages) + 4, properties=ASKED)
    assert sorted(bodies(received)) == sorted([each["body"] for each in messages] + [f"batch {n}" for n in range(4)])
    check([each for each in received if not each["body"].startswith("batch")], messages, topic)


def test_compressed_bodies_are_understood_on_both_sides(cpp: JsonLines, java: JsonLines, topic: str) -> None:
    pattern = "".join(chr(ord("a") + index % 23) for index in range(50_000))
    java("send", topic=topic, mode="sync", messages=[{"size": len(pattern)}])
    (message,) = wait_for_messages(cpp, topic, 1)
    assert message["body"] == pattern
    assert message["storeSize"] < len(pattern) / 2
    cpp("send", topic=topic, mode="sync", messages=[{"body": pattern}])
    received = wait_for_messages(java, topic, 2)
    assert [each["patternIntact"] for each in received] == [True, True]


def test_what_fails_comes_again(cpp: JsonLines, topic: str) -> None:
    messages = [
        {"body": "good", "tags": "A", "keys": "k1"},
        {"body": "bad", "tags": "B", "keys": "k2", "properties": {"number": "7"}},
    ]
    sent = cpp("send", topic=topic, mode="sync", messages=messages)
    group = f"G_{topic}"
    cpp("push_start", topic=topic, group=group, properties=ASKED, fail={"bad": 1})
    received = cpp("push_got", id=group, count=3, millis=40_000)
    cpp("push_stop", id=group)
    assert [each["reconsumeTimes"] for each in received if each["body"] == "good"] == [0]
    first, second = (each for each in received if each["body"] == "bad")
    assert (first["reconsumeTimes"], second["reconsumeTimes"]) == (0, 1)
    assert 10_000 <= second["at"] - first["at"] < 16_000, "the third level, as the broker decides"
    assert (second["tags"], second["keys"], second["properties"]["number"]) == ("B", "k2", "7")
    assert second["properties"]["UNIQ_KEY"] == sent[1]["msgId"]


def test_delay_levels(cpp: JsonLines, topic: str) -> None:
    cpp("send", topic=topic, mode="sync", messages=[{"body": "makes the topic"}])
    group = f"G_{topic}"
    cpp("push_start", topic=topic, group=group)
    cpp("push_got", id=group, count=1, millis=30_000)
    started = time.time_ns() // 1_000_000
    messages = [{"body": "in 5 s", "level": 2}, {"body": "in 1 s", "level": 1}, {"body": "now"}]
    cpp("send", topic=topic, mode="sync", messages=messages)
    told = time.time_ns() // 1_000_000
    received = cpp("push_got", id=group, count=3, millis=15_000)
    cpp("push_stop", id=group)
    assert bodies(received) == ["now", "in 1 s", "in 5 s"]
    for each, delay in zip(received[1:], (1000, 5000), strict=True):
        assert started + delay <= each["at"] <= told + delay + 2500


def test_orderly_consumer(cpp: JsonLines, topic: str) -> None:
    messages = [{"body": f"{n:02}"} for n in range(10)]
    cpp("send", topic=topic, mode="orderly", messages=messages)
    group = f"G_{topic}"
    cpp("push_start", topic=topic, group=group, orderly=True)
    received = cpp("push_got", id=group, count=10, millis=40_000)
    cpp("push_stop", id=group)
    assert bodies(received) == [each["body"] for each in messages]
