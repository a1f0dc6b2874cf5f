"""One store, two brokers: transactions that one of them left open are asked about and ended by the other, each once."""

import threading
from collections import Counter
from pathlib import Path

import pytest

from kappamq import Admin, Decision, Message, PullConsumer, ReceivedMessage, TransactionProducer
from tests.interop.targets import FEATURES, KINDS, Target
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(400)
TOPIC, GROUP = "exchanged", "exchange-desk"


class Desk:
    """Every producer of the group, over all owners of the store: knows what is to become of each order."""

    def __init__(self) -> None:
        self.settling = False
        self.asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def check(self, message: ReceivedMessage) -> Decision:
        with self._lock:
            self.asked[message.text] += 1
        if not self.settling:
            return Decision.UNKNOWN
        return Decision.COMMIT if message.text.endswith("yes") else Decision.ROLLBACK


def delivered(server: Target) -> list[str]:
    with PullConsumer(server.nameserver, group="reader") as consumer:
        queues = consumer.queues(TOPIC)
        return sorted(m.text for queue in queues for m in consumer.read(queue, consumer.min_offset(queue)))


def settle(server: Target, desk: Desk, left: list[str], before: list[str]) -> list[str]:
    """What the last owner left open is asked about and ended; nothing else is."""
    desk.settling = True
    desk.asked.clear()
    expected = sorted([*before, *(name for name in left if name.endswith("yes"))])
    with TransactionProducer(server.nameserver, group=GROUP, check=desk.check, topics=[TOPIC]):
        eventually(lambda: set(desk.asked) == set(left), timeout=60, text=f"questions about {left}")
        eventually(lambda: delivered(server) == expected, timeout=60)
    return expected


def leave(server: Target, desk: Desk, name: str, before: list[str]) -> tuple[list[str], list[str]]:
    """Transactions in every state: (open ones, everything that was delivered)."""
    desk.settling = False
    desk.asked.clear()
    with TransactionProducer(server.nameserver, group=GROUP, check=desk.check, topics=[TOPIC]) as producer:
        for kind in ("open yes", "open no", "commit", "roll back"):
            with producer.transaction(Message(TOPIC, f"{name} {kind}".encode())) as transaction:
                if kind.startswith("open"):
                    transaction.leave_open()
                elif kind == "roll back":
                    transaction.rollback()
        left = [f"{name} open yes", f"{name} open no"]
        eventually(lambda: all(desk.asked[each] >= 2 for each in left), timeout=60)
        with producer.transaction(Message(TOPIC, f"{name} new yes".encode())) as transaction:
            transaction.leave_open()
    expected = sorted([*before, f"{name} commit"])
    assert delivered(server) == expected
    return [*left, f"{name} new yes"], expected


@pytest.mark.needs("maven")
@pytest.mark.parametrize("kinds", [("kappamq", "apache", "kappamq"), ("apache", "kappamq")], ids="-".join)
def test_open_transactions_go_from_hand_to_hand(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    store, desk = tmp_path / "store", Desk()
    left: list[str] = []
    seen: list[str] = []
    for number, kind in enumerate(kinds):
        target = KINDS[kind](tmp_path / f"{number}-{kind}", store=store, properties=FEATURES)
        try:
            target.start()
            if not number:
                with Admin(target.nameserver) as admin:
                    admin.create_topic(TOPIC, queues=2)
            seen = settle(target, desk, left, seen) if left else seen
            left, seen = leave(target, desk, f"{number}", seen)
            target.stop()
        finally:
            target.kill()
