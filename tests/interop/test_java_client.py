"""The official Java clients, 4.9.8 and 5.3.3, each with JSON and with binary headers."""

import threading
import time
from typing import Any

import pytest

from benchmarks.wire import Wire
from tests.interop.apache import mqadmin
from tests.interop.conftest import Variant
from tests.interop.messages import (
    bodies,
    by_queue,
    check_received,
    described,
    offset_id,
    query,
    view,
    wait_for_messages,
)
from tests.interop.probe import JsonLines
from tests.interop.targets import BROKER, CLUSTER, Target
from tests.waiting import eventually

QUEUES = 4  # a client's default for a topic that is made by its first send


def test_the_client_is_the_one_we_mean(java: JsonLines, variant: Variant) -> None:
    hello = java("hello")
    assert hello["version"] == variant.protocol_version
    assert hello["serialize"] == ("ROCKETMQ" if variant.binary else "JSON")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_send_and_pull(java: JsonLines, target: Target, topic: str, mode: str) -> None:
    messages = described(20)
    sent = java("send", topic=topic, mode=mode, messages=messages)
    assert [each["status"] for each in sent] == ["SEND_OK"] * 20
    assert {each["brokerName"] for each in sent} == {BROKER}
    assert {each["regionId"] for each in sent} == {"DefaultRegion"}
    assert {each["traceOn"] for each in sent} == {True}
    for queue_id, offsets in by_queue(sent).items():
        assert 0 <= queue_id < QUEUES
        assert sorted(offsets) == list(range(len(offsets)))
    received = wait_for_messages(java, topic, 20)
    check_received(received, messages, sent, topic, target)


def test_oneway(java: JsonLines, target: Target, topic: str) -> None:
    messages = described(20)
    assert java("send", topic=topic, mode="oneway", messages=messages) == []
    check_received(wait_for_messages(java, topic, 20), messages, [], topic, target)


def test_batch(java: JsonLines, variant: Variant, target: Target, topic: str) -> None:
    java("send", topic=topic, mode="sync", messages=[{"body": "first"}])
    messages = described(7)
    (sent,) = java("send", topic=topic, mode="batch", messages=messages)
    assert sent["status"] == "SEND_OK"
    unique_ids, offset_ids = sent["msgId"].split(","), sent["offsetMsgId"].split(",")
    assert len(set(unique_ids)) == len(set(offset_ids)) == 7
    received = [each for each in wait_for_messages(java, topic, 8) if each["body"] != "first"]
    assert [each["body"] for each in received] == [each["body"] for each in messages]  # one queue, in order
    assert {each["queueId"] for each in received} == {sent["queueId"]}
    assert [each["queueOffset"] for each in received] == [sent["queueOffset"] + index for index in range(7)]
    if target.kind == "apache" and variant.bundle.version == "5.3.3":
        # Apache's broker gives all members the id of the batch, so the sender cannot find them by theirs.
        assert len({each["msgId"] for each in received}) == 1
    else:
        assert [each["msgId"] for each in received] == unique_ids
        viewed = eventually(lambda: view(java, topic, unique_ids[-1]), text="the last member in the index")
        assert viewed is not None
        assert viewed["body"] == messages[-1]["body"]
    assert [offset_id(target.broker, each["commitLogOffset"]) for each in received] == offset_ids
    check_received(received, messages, [], topic, target)


def test_texts_of_all_kinds_survive(java: JsonLines, target: Target, topic: str) -> None:
    messages: list[dict[str, Any]] = [
        {"body": "żółć 消息 🚀", "tags": "标签", "keys": "ключ κλειδί", "properties": {"größe": "a\"b\\c/d'e 🚀"}},
        {"body": "no tags, no keys", "flag": 7},
        {"body": '{"json": [1, 2]}\n\t\r', "keys": "k", "properties": {"x": "line\nbreak\ttab"}},
    ]
    sent = java("send", topic=topic, mode="sync", messages=messages)
    check_received(wait_for_messages(java, topic, len(messages)), messages, sent, topic, target)


def test_large_bodies_are_compressed_by_the_client_and_arrive_whole(java: JsonLines, topic: str) -> None:
    sizes = [4_095, 4_096, 100_000, 1_000_000, 4 * 1024 * 1024]
    for size in sizes:
        java("send", topic=topic, mode="sync", messages=[{"size": size}])
    received = wait_for_messages(java, topic, len(sizes))
    assert sorted(each["size"] for each in received) == sizes
    assert all(each["patternIntact"] for each in received)
    # The client compresses from 4 KiB on: the stored record is far smaller than its body.
    assert all(each["storeSize"] < each["size"] / 2 for each in received if each["size"] >= 100_000)


def test_what_a_pull_answers(java: JsonLines, topic: str) -> None:
    java("send", topic=topic, mode="sync", messages=[{"body": "makes the topic"}])
    sent = java("send_to", topic=topic, queueId=0, messages=[{"body": str(n), "tags": "AB"[n % 2]} for n in range(10)])
    first, end = sent[0]["queueOffset"], sent[-1]["queueOffset"] + 1
    wait_for_messages(java, topic, 11)

    def pull(**arguments: Any) -> tuple[str, int, int, int, list[str]]:
        answer = java("pull", topic=topic, queueId=0, **arguments)
        return answer["status"], answer["next"], answer["min"], answer["max"], bodies(answer["messages"])

    assert pull(offset=first, count=3) == ("FOUND", first + 3, 0, end, ["0", "1", "2"])
    assert pull(offset=first, expression="B")[4] == ["1", "3", "5", "7", "9"]
    assert pull(offset=first, expression="A || nobody")[4] == ["0", "2", "4", "6", "8"]
    assert pull(offset=first, expression="A||B")[4] == [str(n) for n in range(10)]
    assert pull(offset=first, expression="C") == ("NO_MATCHED_MSG", end, 0, end, [])
    assert pull(offset=end) == ("NO_NEW_MSG", end, 0, end, [])
    assert pull(offset=end + 100) == ("OFFSET_ILLEGAL", end, 0, end, [])
    assert pull(offset=end - 1, count=32) == ("FOUND", end, 0, end, ["9"])


def test_long_polling(java: JsonLines, other_java: JsonLines, topic: str) -> None:
    java("send", topic=topic, mode="sync", messages=[{"body": "makes the topic"}])
    wait_for_messages(java, topic, 1)
    end = java("offsets", topic=topic)["2"]["max"]
    answers: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: answers.append(java("pull_blocking", topic=topic, queueId=2, offset=end)))
    waiting.start()
    waiting.join(1.0)
    assert waiting.is_alive(), f"there is nothing to read, so the pull should wait, but: {answers}"
    started = time.monotonic()
    other_java("send_to", topic=topic, queueId=2, messages=[{"body": "now"}])
    waiting.join(15)
    assert [bodies(each["messages"]) for each in answers] == [["now"]]
    assert time.monotonic() - started < 10, "it would wait for 20 s if nobody woke it"


def test_offsets_and_search_by_time(java: JsonLines, topic: str) -> None:
    java("send", topic=topic, mode="sync", messages=[{"body": "makes the topic"}])
    wait_for_messages(java, topic, 1)
    before = java("offsets", topic=topic)
    assert set(before) == {str(queue) for queue in range(QUEUES)}
    for index in range(5):
        java("send_to", topic=topic, queueId=1, messages=[{"body": str(index)}])
        time.sleep(0.01)  # distinct store times are what is searched for here
    wait_for_messages(java, topic, 6)
    after = java("offsets", topic=topic)
    assert after["1"]["max"] == before["1"]["max"] + 5
    assert {queue: after[queue] for queue in "023"} == {queue: before[queue] for queue in "023"}
    stored = java("pull", topic=topic, queueId=1, offset=0)["messages"]
    times = [each["storeTimestamp"] for each in stored]
    assert after["1"]["earliest"] == times[0]
    assert times == sorted(times)
    assert len(set(times[-5:])) == 5

    def search(when: int) -> int:
        found: int = java("search", topic=topic, queueId=1, time=when)
        return found

    for message in stored[-5:]:
        assert search(message["storeTimestamp"]) == message["queueOffset"]
        assert search(message["storeTimestamp"] + 1) == message["queueOffset"] + 1
    assert search(times[0] - 10_000) == 0
    assert search(times[-1] + 10_000) == after["1"]["max"]


def test_query_and_view(java: JsonLines, target: Target, topic: str) -> None:
    messages = [{"body": f"body {n}", "keys": f"order-{n} customer-{n % 3}", "tags": "A"} for n in range(30)]
    sent = java("send", topic=topic, mode="sync", messages=messages)
    wait_for_messages(java, topic, 30)

    def found(**arguments: Any) -> list[str]:
        return sorted(bodies(query(java, topic, **arguments)))

    # The index is built behind the queue, so the last message may take a moment.
    eventually(lambda: found(key="order-29"), text="message 29 in the index")
    assert [found(key=f"order-{n}") for n in range(30)] == [[f"body {n}"] for n in range(30)]
    assert found(key="customer-1") == sorted(f"body {n}" for n in range(1, 30, 3))
    assert len(found(key="customer-1", count=4)) == 4
    assert found(key="nobody") == []
    # A time range without the message
    stored = java("query", topic=topic, key="order-5")[0]["storeTimestamp"]
    assert found(key="order-5", begin=stored - 10_000, end=stored + 10_000) == ["body 5"]
    assert found(key="order-5", begin=stored + 10_000, end=stored + 20_000) == []
    for n in (0, 17):
        by_unique_id = java("view", topic=topic, id=sent[n]["msgId"])
        by_offset_id = java("view", topic=topic, id=sent[n]["offsetMsgId"])
        assert by_unique_id == by_offset_id
        check_received([by_unique_id], [messages[n]], [sent[n]], topic, target)
    assert view(java, topic, sent[0]["msgId"][:-4] + "FFFF") is None
    assert view(java, topic, offset_id(target.broker, (1 << 40) + 7)) is None


def test_push_consumer_gets_everything_once(java: JsonLines, target: Target, topic: str) -> None:
    messages = described(50)
    sent = java("send", topic=topic, mode="sync", messages=messages)
    java("push_start", topic=topic, group=f"G_{topic}")
    received = java("push_got", id=f"G_{topic}", count=50, millis=20_000)
    check_received(received, messages, sent, topic, target)
    later = described(10, prefix="later")
    java("send", topic=topic, mode="async", messages=later)
    received = java("push_got", id=f"G_{topic}", count=10, millis=5_000)
    assert sorted(bodies(received)) == sorted(each["body"] for each in later)
    # It stops, so its offsets are stored; the next one of its group goes on where it was.
    java("push_stop", id=f"G_{topic}")
    java("send", topic=topic, mode="sync", messages=[{"body": "while nobody was there"}])
    java("push_start", topic=topic, group=f"G_{topic}")
    received = java("push_got", id=f"G_{topic}", count=2, millis=4_000)
    assert bodies(received) == ["while nobody was there"]
    java("push_stop", id=f"G_{topic}")


@pytest.mark.parametrize("start", ["last", "first"])
def test_a_topic_made_again_is_consumed_from_its_beginning(
    java: JsonLines, target: Target, topic: str, start: str
) -> None:
    """All messages sent since, at once: as with Apache's broker, where a topic made again begins at 0."""
    java("send", topic=topic, mode="sync", messages=described(20, prefix="former"))
    mqadmin(target.nameserver, "deleteTopic", "-c", CLUSTER, "-t", topic)
    mqadmin(target.nameserver, "updateTopic", "-c", CLUSTER, "-t", topic, "-r", str(QUEUES), "-w", str(QUEUES))
    messages = described(12, prefix="present")
    java("send", topic=topic, mode="sync", messages=messages)
    group = f"G_{topic}"
    java("push_start", topic=topic, group=group, **{"from": start})
    # Less than the 20 seconds that a consumer waits which was sent elsewhere (code 21).
    received = java("push_got", id=group, count=12, millis=12_000)
    assert sorted(bodies(received)) == sorted(each["body"] for each in messages)
    java("push_stop", id=group)


def test_an_operator_moves_one_queue_of_a_running_consumer(java: JsonLines, target: Target, topic: str) -> None:
    """`resetOffsetByQueueId` of Java's admin client, which never asks for force: backwards, and forwards past what is committed."""
    java("send", topic=topic, mode="sync", messages=[{"body": "makes the topic"}])
    for number in range(8):
        java("send_to", topic=topic, queueId=1, messages=[{"body": str(number)}])
    group = f"G_{topic}"
    java("push_start", topic=topic, group=group)
    received = java("push_got", id=group, count=9, millis=20_000)
    offsets = {each["body"]: each["queueOffset"] for each in received if each["queueId"] == 1}

    def all_committed() -> bool:
        with Wire(target.broker) as wire:
            return wire.committed(group, topic, 1) == offsets["7"] + 1

    eventually(all_committed, timeout=20, text="everything committed")

    def move(offset: int) -> None:
        where = ("-b", target.broker, "-q", "1", "-o", str(offset))
        mqadmin(target.nameserver, "resetOffsetByTime", "-g", group, "-t", topic, "-s", "now", *where)

    move(offsets["5"])
    again = java("push_got", id=group, count=3, millis=40_000)
    assert sorted(bodies(again)) == ["5", "6", "7"]
    eventually(all_committed, timeout=20, text="everything committed again")
    java("push_stop", id=group)
    move(offsets["2"])
    move(offsets["6"])
    java("push_start", topic=topic, group=group)
    assert sorted(bodies(java("push_got", id=group, count=2, millis=20_000))) == ["6", "7"]
    java("push_stop", id=group)


def test_push_consumer_with_tags(java: JsonLines, topic: str) -> None:
    java("send", topic=topic, mode="sync", messages=[{"body": str(n), "tags": "ABC"[n % 3]} for n in range(30)])
    java("push_start", topic=topic, group=f"G_{topic}", expression="A || C")
    expected = sorted(str(n) for n in range(30) if n % 3 != 1)
    received = java("push_got", id=f"G_{topic}", count=len(expected), millis=20_000)
    assert sorted(bodies(received)) == expected
    java(
        "send",
        topic=topic,
        mode="sync",
        messages=[{"body": "not for it", "tags": "B"}, {"body": "for it", "tags": "A"}],
    )
    assert bodies(java("push_got", id=f"G_{topic}", count=1, millis=5_000)) == ["for it"]
    java("push_stop", id=f"G_{topic}")


def test_two_consumers_share_a_group(java: JsonLines, other_java: JsonLines, topic: str) -> None:
    group = f"G_{topic}"
    java("send", topic=topic, mode="sync", messages=[{"body": "makes the topic"}])
    java("push_start", topic=topic, group=group)
    assert bodies(java("push_got", id=group, count=1, millis=20_000)) == ["makes the topic"]
    other_java("push_start", topic=topic, group=group)
    rounds, got = 0, list[str]()

    def both_get_some() -> bool:
        nonlocal rounds
        rounds += 1
        for queue_id in range(QUEUES):
            java("send_to", topic=topic, queueId=queue_id, messages=[{"body": f"{rounds}-{queue_id}"}])
        first = java("push_got", id=group, count=2, millis=1_000)
        second = other_java("push_got", id=group, count=2, millis=1_000)
        got.extend(bodies(first) + bodies(second))
        return len({each["queueId"] for each in first}) == len({each["queueId"] for each in second}) == 2

    def all_got(wanted: set[str]) -> bool:
        for client in consumers:
            got.extend(bodies(client("push_got", id=group, count=1, millis=200)))
        return wanted <= set(got)

    consumers = [java, other_java]
    eventually(both_get_some, timeout=45, text="two queues for each of the two consumers")
    expected = {f"{n}-{queue_id}" for n in range(1, rounds + 1) for queue_id in range(QUEUES)}
    eventually(lambda: all_got(expected), timeout=30, text="every message at one of the two")
    # The second one leaves; its queues come back to the first.
    other_java("push_stop", id=group)
    consumers.remove(other_java)
    for queue_id in range(QUEUES):
        java("send_to", topic=topic, queueId=queue_id, messages=[{"body": f"last-{queue_id}"}])
    expected = {f"last-{queue_id}" for queue_id in range(QUEUES)}
    eventually(lambda: all_got(expected), timeout=45, text="every message at the one that is left")
    java("push_stop", id=group)


def test_orderly_consumer_sees_each_queue_in_order(java: JsonLines, topic: str) -> None:
    java("send", topic=topic, mode="sync", messages=[{"body": "makes the topic"}])
    for queue_id in range(QUEUES):
        java("send_to", topic=topic, queueId=queue_id, messages=[{"body": f"{queue_id}-{n:02}"} for n in range(10)])
    java("push_start", topic=topic, group=f"G_{topic}", orderly=True)
    received = java("push_got", id=f"G_{topic}", count=41, millis=30_000)
    java("push_stop", id=f"G_{topic}")
    assert len(received) == 41
    for queue_id in range(QUEUES):
        mine = [each["body"] for each in received if each["queueId"] == queue_id and each["body"] != "makes the topic"]
        assert mine == [f"{queue_id}-{n:02}" for n in range(10)]


def test_lite_pull_consumer(java: JsonLines, target: Target, topic: str) -> None:
    messages = described(25)
    sent = java("send", topic=topic, mode="sync", messages=messages)
    received = java("lite", topic=topic, group=f"G_{topic}", count=25, millis=20_000)
    check_received(received, messages, sent, topic, target)


def test_offsets_of_a_group_are_kept(java: JsonLines, other_java: JsonLines, topic: str) -> None:
    java("send", topic=topic, mode="sync", messages=described(20))
    for queue_id, offset in ((0, 3), (1, 4), (0, 5)):
        java("commit", topic=topic, queueId=queue_id, offset=offset)
    eventually(lambda: java("committed", topic=topic, queueId=0) == 5, text="the one-way commit")
    assert java("committed", topic=topic, queueId=1) == 4
    assert java("committed", topic=topic, queueId=3) in (-1, 0)  # nothing was ever stored for it
    assert other_java("committed", topic=topic, queueId=0) in (-1, 0)  # another group


def test_every_client_reads_what_every_client_wrote(
    java: JsonLines, other_java: JsonLines, target: Target, topic: str
) -> None:
    mine, theirs = described(8, prefix="mine"), described(8, prefix="theirs")
    sent = java("send", topic=topic, mode="sync", messages=mine)
    sent += other_java("send", topic=topic, mode="sync", messages=theirs)
    received = wait_for_messages(java, topic, 16)
    assert sorted(other_java("pull", topic=topic), key=_position) == sorted(received, key=_position)
    check_received(received, mine + theirs, sent, topic, target)


def _position(message: dict[str, Any]) -> int:
    position: int = message["commitLogOffset"]
    return position
