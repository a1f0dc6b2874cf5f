"""One store, two brokers: what Apache's broker wrote opens here, and what we wrote opens there.

A store goes from hand to hand (apache -> kappamq -> apache -> kappamq, or starting with ours). Each owner in turn checks
everything that the earlier ones left, as official clients see it, then adds messages, moves consumers on, changes
settings, and stops or is killed with -9.
"""

import json
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.interop import jars
from tests.interop.messages import Received, bodies, query, view
from tests.interop.probe import JsonLines, java_probe
from tests.interop.raw import GET_GROUP, GET_ROUTE, UPDATE_GROUP, UPDATE_TOPIC, ask
from tests.interop.targets import KINDS, Target
from tests.waiting import eventually

TOPIC, SETTINGS_TOPIC = "exchanged", "exchanged_settings"
WORKERS, PULLERS, SETTINGS_GROUP = "exchanged_workers", "PULL_exchange", "exchanged_settings_group"
MESSAGES, LEFT_OVER, KEYS_ASKED = 1200, 40, 100
# Many small files: the log rolls over inside the run, and so do queues and index. Both brokers must be told the same.
SMALL_FILES: dict[str, object] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 500,
    "maxMessageSize": 1 << 18,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 3000,
}
DEFAULT_FILES: dict[str, object] = {}
# What a pull adds to a message; everything else must never change.
OF_THE_PULL = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}


def frozen(message: Received) -> Received:
    properties = {key: value for key, value in message["properties"].items() if key not in OF_THE_PULL}
    return {**message, "properties": properties, "brokerName": None}  # a query does not name the broker


@dataclass
class History:
    """What everyone so far left in the store."""

    messages: dict[str, Received] = field(default_factory=dict)  # by body, as first read
    unread: list[str] = field(default_factory=list)  # bodies that the workers have not seen yet
    committed: dict[int, int] = field(default_factory=dict)
    queues: tuple[int, int] | None = None  # read and write queues of the settings topic
    retries: int | None = None  # of the settings group


class Owner:
    """A broker of one kind on the store, for as long as it holds it."""

    def __init__(self, number: int, kind: str, home: Path, store: Path, properties: dict[str, object]) -> None:
        self.number, self.home, self.store = number, home / f"{number}-{kind}", store
        self.target: Target = KINDS[kind](self.home, store=store, properties=properties)
        self.label = f"{number}-{kind}"

    def __enter__(self) -> "Owner":
        self.target.start()
        self.java: JsonLines = java_probe(jars.CLIENT_5, self.target.nameserver, self.home / "client", "exchange")
        return self

    def __exit__(self, *_: object) -> None:
        self.java.close()
        self.target.kill()

    # ------------------------------------------------------------ what the others left

    def check(self, history: History) -> None:
        self.check_messages(history)
        self.check_keys(history)
        self.check_workers(history)
        assert self.settings() == (history.queues, history.retries)
        for queue_id, offset in history.committed.items():
            assert self.java("committed", topic=TOPIC, queueId=queue_id) == offset

    def check_messages(self, history: History) -> None:
        """Every message, once, unchanged to the last field."""
        received = self.java("pull", topic=TOPIC)
        counts = dict.fromkeys(history.messages, 0)
        for message in received:
            counts[message["body"]] += 1
        assert set(counts.values()) <= {1}, [(body[:20], n) for body, n in counts.items() if n != 1][:20]
        for message in received:
            assert frozen(message) == history.messages[message["body"]]
        for queue_id, ends in self.java("offsets", topic=TOPIC).items():
            mine = [each["queueOffset"] for each in received if each["queueId"] == int(queue_id)]
            assert mine == list(range(ends["min"], ends["max"]))
            assert ends["min"] == 0

    def check_keys(self, history: History) -> None:
        messages = list(history.messages.values())
        step = max(1, len(messages) // KEYS_ASKED)
        asked = messages[::step][:KEYS_ASKED]
        assert len(asked) == KEYS_ASKED
        # Our index may still be catching up after a crash; then the last key comes last.
        eventually(lambda: query(self.java, TOPIC, key=asked[-1]["keys"]), timeout=20, text="the last key in the index")
        for message in asked:
            found = query(self.java, TOPIC, key=message["keys"])
            assert [frozen(each) for each in found] == [message], message["keys"]
        viewed = view(self.java, TOPIC, asked[0]["msgId"])
        assert viewed is not None
        assert viewed["body"] == asked[0]["body"]

    def check_workers(self, history: History) -> None:
        """The group goes on where it was; a new group gets everything. Nothing lost, nothing twice."""
        self.consume(WORKERS, history.unread)
        history.unread = []
        self.consume(f"fresh_{self.number}", list(history.messages))

    def consume(self, group: str, expected: list[str]) -> None:
        """A consumer of the group gets these bodies, each once, and nothing else."""
        self.java("push_start", topic=TOPIC, group=group)
        got = Counter(bodies(self.java("push_got", id=group, count=len(expected), millis=30_000)))
        got.update(bodies(self.java("push_got", id=group, count=1, millis=1_000)))  # not one more
        self.java("push_stop", id=group)
        wanted = Counter(expected)
        missing, extra = sorted((wanted - got).elements()), sorted((got - wanted).elements())
        assert not missing, f"{group}: {len(missing)} of {len(expected)} missing: {[each[:16] for each in missing[:5]]}"
        assert not extra, f"{group}: {len(extra)} too many, first {[each[:16] for each in extra[:5]]}"

    def settings(self) -> tuple[tuple[int, int] | None, int | None]:
        code, body = ask(self.target.nameserver, GET_ROUTE, topic=SETTINGS_TOPIC)
        assert code == 0
        (queues,) = json.loads(body)["queueDatas"]
        code, body = ask(self.target.broker, GET_GROUP, group=SETTINGS_GROUP)
        assert code == 0
        return (queues["readQueueNums"], queues["writeQueueNums"]), json.loads(body)["retryMaxTimes"]

    # ------------------------------------------------------------ what this one leaves

    def add(self, history: History) -> None:
        known = set(history.messages)
        self.send(range(MESSAGES))
        fresh = [body for body in self.read(history) if body not in known]
        assert len(fresh) == MESSAGES
        history.unread += fresh
        self.consume(WORKERS, history.unread)
        self.send(range(MESSAGES, MESSAGES + LEFT_OVER))
        history.unread = [body for body in self.read(history) if body not in known and body not in fresh]
        assert len(history.unread) == LEFT_OVER
        self.change_settings(history)
        for queue_id in range(4):
            history.committed[queue_id] = 10 * self.number + queue_id
            self.java("commit", topic=TOPIC, queueId=queue_id, offset=history.committed[queue_id])
        for queue_id, offset in history.committed.items():
            eventually(lambda: self.java("committed", topic=TOPIC, queueId=queue_id) == offset, text="a commit")  # noqa: B023

    def send(self, numbers: range) -> None:
        messages = [
            {
                "body": f"{self.label} {n} {'x' * (n * 7 % 900)}",
                "tags": f"Tag{n % 3}",
                "keys": f"key-{self.number}-{n}",
                "properties": {"owner": self.label},
            }
            for n in numbers
        ]
        half = len(messages) // 2
        self.java("send", topic=TOPIC, mode="sync", messages=messages[:half])
        for first in range(half, len(messages), 50):
            self.java("send", topic=TOPIC, mode="batch", messages=messages[first : first + 50])

    def read(self, history: History) -> list[str]:
        received = self.java("pull", topic=TOPIC)
        for message in received:
            history.messages.setdefault(message["body"], frozen(message))
        assert len(received) == len(history.messages)
        return bodies(received)

    def change_settings(self, history: History) -> None:
        history.queues, history.retries = (self.number + 3, self.number + 2), self.number + 5
        topic = {"topic": SETTINGS_TOPIC, "defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG"}
        read, write = map(str, history.queues)
        code, body = ask(
            self.target.broker,
            UPDATE_TOPIC,
            b"",
            **topic,
            readQueueNums=read,
            writeQueueNums=write,
            topicSysFlag="0",
            order="false",
        )
        assert code == 0, body
        group = {"groupName": SETTINGS_GROUP, "retryMaxTimes": history.retries, "consumeEnable": True}
        code, body = ask(self.target.broker, UPDATE_GROUP, json.dumps(group).encode())
        assert code == 0, body
        eventually(lambda: self.settings() == (history.queues, history.retries), text="the changed settings")

    def leave(self, how: str, history: History) -> None:
        if how == "stopped":
            self.java.close()
            self.target.stop()
            return
        # A broker writes offsets down every few seconds; what it had not yet written it may lose when it is killed.
        consumed = len(history.messages) - len(history.unread)
        eventually(
            lambda: self.offsets_on_disk(PULLERS) == history.committed, timeout=90, pause=0.2, text="pullers' offsets"
        )
        eventually(
            lambda: sum(self.offsets_on_disk(WORKERS).values()) == consumed,
            timeout=90,
            pause=0.2,
            text="workers' offsets",
        )
        self.target.kill()
        self.java.close()

    def offsets_on_disk(self, group: str) -> dict[int, int]:
        """From consumerOffset.json, which is not quite JSON when Apache's broker writes it."""
        text = ""
        for name in ("consumerOffset.json", "consumerOffset.json.bak"):  # it is renamed before a new one is written
            path = self.store / "config" / name
            text = text or (path.read_text() if path.exists() else "")
        entry = re.search(rf'"{TOPIC}@{group}"\s*:\s*{{([^}}]*)}}', text)
        return {
            int(queue): int(offset) for queue, offset in re.findall(r'"?(\d+)"?\s*:\s*(\d+)', entry[1] if entry else "")
        }


CHAINS = {
    "apache-first": ("apache", "kappamq", "apache", "kappamq"),
    "kappamq-first": ("kappamq", "apache", "kappamq"),
}
EXTRA = "INTEROP_OWNERS"  # e.g. apache,apache: shows that the test itself asks for nothing that Apache does not keep


@pytest.mark.parametrize(
    ("chain", "how", "properties"),
    [
        pytest.param("apache-first", "stopped", SMALL_FILES, id="apache-first-stopped-small_files"),
        pytest.param("apache-first", "killed", DEFAULT_FILES, id="apache-first-killed-default_files"),
        pytest.param("kappamq-first", "stopped", DEFAULT_FILES, id="kappamq-first-stopped-default_files"),
        pytest.param("kappamq-first", "killed", SMALL_FILES, id="kappamq-first-killed-small_files"),
    ],
)
def test_store_goes_from_hand_to_hand(tmp_path: Path, chain: str, how: str, properties: dict[str, Any]) -> None:
    history = History()
    store = tmp_path / "store"
    for number, kind in enumerate(owners(chain)):
        with Owner(number, kind, tmp_path, store, properties) as owner:
            if number > 0:
                owner.check(history)
            owner.add(history)
            owner.leave(how, history)


def owners(chain: str) -> tuple[str, ...]:
    return tuple(os.environ[EXTRA].split(",")) if EXTRA in os.environ else CHAINS[chain]
