"""Messages to send, and what has to be true of them when they come back."""

import contextlib
import zlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tests.interop.probe import JsonLines, ProbeError
from tests.interop.targets import CLUSTER, Target
from tests.waiting import eventually

NO_MESSAGE = 208  # the client's own word for "nothing found"
REGION = "DefaultRegion"

Described = dict[str, Any]
Received = dict[str, Any]


def described(count: int, prefix: str = "message") -> list[Described]:
    """Messages that differ in everything that an application can set."""
    return [
        {
            "body": f"{prefix} {n}",
            "tags": f"Tag{n % 3}",
            "keys": f"{prefix}-key-{n} group-{n % 5}",
            "properties": {"number": str(n), "colour": ["red", "green"][n % 2]},
        }
        for n in range(count)
    ]


def bodies(received: Sequence[Received]) -> list[str]:
    return [each["body"] for each in received]


def by_queue(sent: Sequence[Received]) -> dict[int, list[int]]:
    """queue id -> the queue offsets in it."""
    queues: defaultdict[int, list[int]] = defaultdict(list)
    for each in sent:
        queues[each["queueId"]].append(each["queueOffset"])
    return dict(queues)


def offset_id(address: str, log_offset: int) -> str:
    """The id that names a place: IPv4 address, port and log offset in hexadecimal."""
    host, _, port = address.rpartition(":")
    return f"{bytes(int(part) for part in host.split('.')).hex()}{int(port):08x}{log_offset:016x}".upper()


def query(java: JsonLines, topic: str, **arguments: Any) -> list[Received]:
    """The messages with a key; none where the client raises its "nothing found"."""
    try:
        found: list[Received] = java("query", topic=topic, **arguments)
    except ProbeError as error:
        if error.code != NO_MESSAGE:
            raise
        return []
    return found


def view(java: JsonLines, topic: str, id: str) -> Received | None:
    """The message with this unique id or offset id, if there is one."""
    try:
        found: Received = java("view", topic=topic, id=id)
    except ProbeError as error:
        if error.code != NO_MESSAGE:
            raise
        return None
    return found


def wait_for_messages(client: JsonLines, topic: str, count: int, **how: Any) -> list[Received]:
    """All messages of a topic once there are so many.

    Sends without an answer take their time; and Apache's broker answers before consumers can see the message."""
    received: list[Received] = []

    def arrived() -> bool:
        with contextlib.suppress(ProbeError):  # the topic is made by the first message, so it may not be there yet
            received[:] = client("pull", topic=topic, **how)
        return len(received) >= count

    eventually(arrived, timeout=10, pause=0.1, text=f"{count} messages in {topic}")
    assert len(received) == count
    return received


def check_received(
    received: Sequence[Received],
    messages: Sequence[Described],
    sent: Sequence[Received],
    topic: str,
    target: Target,
) -> None:
    """Each message came exactly once, with all that its sender set and all that the broker has to add.

    `sent` holds the answers to the sends in the order of `messages`; empty when there were none (one-way, batch)."""
    assert sorted(bodies(received)) == sorted(each["body"] for each in messages)
    answers = {each["body"]: answer for each, answer in zip(messages, sent, strict=True)} if sent else {}
    wanted = {each["body"]: each for each in messages}
    for got in received:
        want = wanted[got["body"]]
        assert got["topic"] == topic
        assert got.get("tags") == want.get("tags")
        assert got.get("keys") == want.get("keys")
        assert got["flag"] == want.get("flag", 0)
        assert got["reconsumeTimes"] == 0
        assert got["bodyCrc"] == zlib.crc32(want["body"].encode()) & 0x7FFFFFFF
        assert got["properties"].items() >= want.get("properties", {}).items()
        assert got["properties"]["UNIQ_KEY"] == got["msgId"]
        assert got["properties"].get("CLUSTER") == CLUSTER
        assert got["properties"].get("MSG_REGION") == REGION
        assert got["properties"].get("TRACE_ON") == "true"
        assert got["storeHost"] == target.broker
        assert got["bornHost"] == "127.0.0.1"
        assert abs(got["storeTimestamp"] - got["bornTimestamp"]) < 10_000
        if answers:
            answer = answers[got["body"]]
            assert got["msgId"] == answer["msgId"]
            assert (got["queueId"], got["queueOffset"]) == (answer["queueId"], answer["queueOffset"])
            assert offset_id(target.broker, got["commitLogOffset"]) == answer["offsetMsgId"]
