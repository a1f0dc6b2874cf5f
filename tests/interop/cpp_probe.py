"""An application of the official C++ client, driven through its standard input as java/Probe.java is.

Runs in a virtual environment of its own that holds nothing but `rocketmq==0.4.4`, a thin wrapper around the library
inside it, so this file imports nothing of ours. The arguments are the name server's address and a name.
"""

import functools
import json
import os
import sys
import threading
import time
from typing import Any

# The library prints on the descriptor itself; the answers get a copy of it and the library prints to our stderr.
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, RecvMessage, SendStatus  # type: ignore[import-not-found]  # noqa: E402
from rocketmq.ffi import dll  # type: ignore[import-not-found]  # noqa: E402

ASYNC_SECONDS_MAX = 20
NONE: list[str] = []


def to_message(topic: str, described: dict[str, Any]) -> Any:
    message = Message(topic)
    message.set_body(described["body"])
    if "tags" in described:
        message.set_tags(described["tags"])
    if "keys" in described:
        message.set_keys(described["keys"])
    if "level" in described:
        message.set_delay_time_level(described["level"])
    for key, value in described.get("properties", {}).items():
        message.set_property(key, value)
    return message


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def described(message: Any, properties: list[str]) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "body": text(message.body),
        "tags": text(message.tags),
        "keys": text(message.keys),
        "msgId": message.id,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "storeSize": message.store_size,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "reconsumeTimes": message.reconsume_times,
        "properties": {name: text(message.get_property(name)) for name in properties},
    }


def result(sent: Any) -> dict[str, Any]:
    return {"status": SendStatus(sent.status).name, "msgId": sent.msg_id, "queueOffset": sent.offset}


class Pushed:
    def __init__(self, consumer: Any) -> None:
        self.consumer, self.changed = consumer, threading.Condition()
        self.messages: list[dict[str, Any]] = []

    def add(self, message: dict[str, Any]) -> None:
        with self.changed:
            self.messages.append(message)
            self.changed.notify_all()

    def take(self, count: int, seconds: float) -> list[dict[str, Any]]:
        with self.changed:
            self.changed.wait_for(lambda: len(self.messages) >= count, seconds)
            taken, self.messages = self.messages, []
            return taken


class Probe:
    def __init__(self, nameserver: str, name: str) -> None:
        self.nameserver, self.name = nameserver, name
        self.pushed: dict[str, Pushed] = {}
        self.producer = Producer("P_" + name)
        self.producer.set_namesrv_addr(nameserver)
        self.producer.start()

    def hello(self) -> dict[str, str]:
        return {"library": dll._name}

    def send(self, topic: str, mode: str, messages: list[dict[str, Any]]) -> Any:
        return getattr(self, "send_" + mode)([to_message(topic, each) for each in messages])

    def send_sync(self, messages: list[Any]) -> list[Any]:
        return [result(self.producer.send_sync(each)) for each in messages]

    def send_oneway(self, messages: list[Any]) -> list[Any]:
        for each in messages:
            self.producer.send_oneway(each)
        return []

    def send_batch(self, messages: list[Any]) -> list[Any]:
        return [result(self.producer.send_batch(messages))]

    def send_async(self, messages: list[Any]) -> list[Any]:
        done = threading.Semaphore(0)
        results: list[dict[str, Any] | None] = [None] * len(messages)
        errors: list[str] = []

        def success(slot: int, sent: Any) -> None:
            results[slot] = result(sent)
            done.release()

        def failure(error: Exception) -> None:
            errors.append(repr(error))
            done.release()

        for slot, each in enumerate(messages):
            self.producer.send_async(each, functools.partial(success, slot), failure)
        deadline = time.monotonic() + ASYNC_SECONDS_MAX
        for _ in messages:
            if not done.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"asynchronous sends without an answer: {results.count(None)}")
        if errors:
            raise RuntimeError(errors[0])
        return results

    def send_orderly(self, messages: list[Any]) -> list[Any]:
        return [result(self.producer.send_orderly(each, 1)) for each in messages]

    def pull(self, topic: str, expression: str = "*", properties: list[str] = NONE) -> list[dict[str, Any]]:
        consumer = PullConsumer("PULL_" + self.name)
        consumer.offset_table = {}  # the wrapper keeps one for the whole process; we want to read from the start
        consumer.set_namesrv_addr(self.nameserver)
        consumer.start()
        return [described(each, properties) for each in consumer.pull(topic, expression)]

    def push_start(
        self, group: str, topic: str, expression: str = "*", properties: list[str] = NONE, orderly: bool = False,
        fail: dict[str, int] | None = None,
    ) -> None:  # fmt: skip
        """`fail`: for how often a body is to be failed."""
        failures = dict(fail or {})

        def listen(_consumer: Any, handle: Any) -> int:
            seen = described(RecvMessage(handle), properties)
            seen["at"] = time.time_ns() // 1_000_000
            left = failures.get(seen["body"], 0)
            failures[seen["body"]] = left - 1
            started.add(seen)
            return 1 if left > 0 else 0  # once more, or done

        consumer = PushConsumer(group, orderly=orderly)
        consumer.set_namesrv_addr(self.nameserver)
        consumer.set_instance_name(self.name + "-" + group)
        consumer.set_thread_count(2)
        started = self.pushed[group] = Pushed(consumer)
        # Not by the wrapper's own `subscribe`: there a callback that fails is taken for one that succeeded.
        if dll.Subscribe(consumer._handle, topic.encode(), expression.encode()) != 0:
            raise RuntimeError(f"cannot subscribe to {topic}")
        consumer._register_callback(listen)
        consumer.start()

    def push_got(self, id: str, count: int, millis: int) -> list[dict[str, Any]]:
        return self.pushed[id].take(count, millis / 1000)

    def push_stop(self, id: str) -> None:
        self.pushed.pop(id).consumer.shutdown()


def main() -> None:
    probe = Probe(*sys.argv[1:])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": getattr(probe, request.pop("do"))(**request)}
        except Exception as error:
            answer = {"error": repr(error), "code": getattr(error, "code", -1)}
        ANSWERS.write(json.dumps(answer) + "\n")
    os._exit(0)  # the destructors of the library wait for threads


if __name__ == "__main__":
    main()
