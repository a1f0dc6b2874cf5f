"""What is still to be delivered when a store changes hands: delayed messages, timers and open transactions, Apache to ours and back."""

import os
import time
from collections import Counter
from pathlib import Path

from tests.interop import jars, targets
from tests.interop.messages import bodies
from tests.interop.probe import JsonLines, ProbeError, java_probe
from tests.waiting import eventually

TOPIC, GROUP = "handed_over", "P_handed_over"
DELAY_MS = 30_000
LEVELS = {"messageDelayLevel": "1s 30s 1m"}
CHAIN = "apache,kappamq,apache"
PENDING = 5


class Story:
    """What everybody so far has left behind."""

    def __init__(self) -> None:
        self.there: Counter[str] = Counter()  # bodies that consumers can see
        self.pending: dict[str, int] = {}  # body -> when it is due
        self.open: dict[str, str] = {}  # body -> how its transaction is to end


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def visible(java: JsonLines) -> Counter[str]:
    try:
        return Counter(bodies(java("pull", topic=TOPIC)))
    except ProbeError:  # the topic is not there yet
        return Counter()


def wait_for(java: JsonLines, wanted: Counter[str], text: str, timeout: float = 60) -> None:
    eventually(lambda: not wanted - visible(java), timeout=timeout, pause=0.3, text=text)
    assert visible(java) == wanted


def finish(java: JsonLines, story: Story, label: str) -> None:
    """Everything that is pending comes when it is due, once; everything that is open is asked about and decided."""
    java("tx_start", group=GROUP, verdicts={body: [verdict] for body, verdict in story.open.items()})
    # A producer that has not sent anything knows no broker, and no broker knows it.
    java("tx_send", group=GROUP, topic=TOPIC, messages=[{"body": f"{label} hello", "local": "COMMIT_MESSAGE"}])
    story.there[f"{label} hello"] += 1
    committed = Counter(body for body, verdict in story.open.items() if verdict == "COMMIT_MESSAGE")
    asked: set[str] = set()

    def all_asked() -> bool:
        asked.update(bodies(java("tx_checked", group=GROUP, count=1, millis=500)))
        return asked >= set(story.open)

    eventually(all_asked, timeout=40, text=f"questions about {sorted(story.open)}")
    story.there += committed + Counter(story.pending.keys())
    wait_for(java, story.there, "what was pending and what was committed", DELAY_MS / 1000 + 30)
    for message in java("pull", topic=TOPIC):
        due = story.pending.get(message["body"])
        early = 1000 if "timer" in message["body"] and "apache" in label else 0  # its wheel rounds to seconds
        assert due is None or message["storeTimestamp"] >= due - early, f"{message['body']} is early"
    java("tx_stop", group=GROUP)
    story.pending, story.open = {}, {}


def leave_behind(java: JsonLines, story: Story, label: str) -> None:
    """Some messages that are done with, and some that are not."""
    java("tx_start", group=GROUP)
    soon = [
        {"body": f"{label} soon", "level": 1}, {"body": f"{label} soon timer", "system": {"TIMER_DELAY_MS": 1500}}
    ]  # fmt: skip
    java("send", topic=TOPIC, mode="sync", messages=soon)
    ended = [{"body": f"{label} yes", "local": "COMMIT_MESSAGE"}, {"body": f"{label} no", "local": "ROLLBACK_MESSAGE"}]
    java("tx_send", group=GROUP, topic=TOPIC, messages=ended)
    story.there += Counter([f"{label} soon", f"{label} soon timer", f"{label} yes"])
    wait_for(java, story.there, "what is done with")
    opened = {f"{label} later yes": "COMMIT_MESSAGE", f"{label} later no": "ROLLBACK_MESSAGE"}
    java("tx_send", group=GROUP, topic=TOPIC, messages=[{"body": body, "local": "UNKNOW"} for body in opened])
    due = now_ms() + DELAY_MS
    late: list[dict[str, object]] = [{"body": f"{label} late {n}", "level": 2} for n in range(PENDING)]
    late += [{"body": f"{label} timer {n}", "system": {"TIMER_DELIVER_MS": due + n * 700}} for n in range(PENDING)]
    java("send", topic=TOPIC, mode="sync", messages=late)
    story.open = opened
    story.pending = dict.fromkeys((str(each["body"]) for each in late), due)
    java("tx_stop", group=GROUP)


def test_what_is_pending_changes_hands(tmp_path: Path) -> None:
    story = Story()
    # INTEROP_OWNERS=apache,apache shows that the test itself asks for nothing that Apache does not keep.
    chain = os.environ.get("INTEROP_OWNERS", CHAIN).split(",")
    for number, kind in enumerate(chain):
        home = tmp_path / f"{number}-{kind}"
        target = targets.KINDS[kind](home, store=tmp_path / "store", properties={**targets.FEATURES, **LEVELS})
        target.start()
        try:
            with java_probe(jars.CLIENT_5, target.nameserver, home / "client", f"owner{number}") as java:
                if number:
                    finish(java, story, f"{number}-{kind}")
                if number < len(chain) - 1:
                    leave_behind(java, story, f"{number}-{kind}")
            if number < len(chain) - 1:
                target.stop()
        finally:
            target.kill()
