"""kill -9 while timers and delay levels are being entered and delivered: each acknowledged message comes once, and none early."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.process import CORES
from benchmarks.servers import Broker, nameserver
from benchmarks.wire import Wire
from kappamq.protocol.records.record import Record
from tests.waiting import eventually

TOPIC, ROUNDS, SENDERS = "later", 3, 3
LIFE = (30, 400)  # acknowledged messages
PROPERTIES = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 500,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 5000,
    "maxMessageSize": 64 << 10,
    "mappedFileSizeTimerLog": 64 << 10,
    "messageDelayLevel": "1s 2s",
}


class Sender(threading.Thread):
    """Sends until the broker is gone; what was answered is in `acked`, what may have got there in `unknown`."""

    def __init__(self, address: str, name: str, dice: random.Random) -> None:
        super().__init__(daemon=True)
        self._address, self._name, self._dice = address, name, dice
        self.acked: list[str] = []
        self.unknown: list[str] = []
        self.start()

    def run(self) -> None:
        number = 0
        try:
            with Wire(self._address) as wire:
                while True:
                    key = f"{self._name}-{number}"
                    number += 1
                    later = {"TIMER_DELAY_MS": str(self._dice.randrange(1, 1500))} if number % 4 else {"DELAY": "1"}
                    self.unknown.append(key)
                    answer = wire.send(TOPIC, 0, key.encode(), {"UNIQ_KEY": key, **later})
                    assert answer.code == 0, answer.remark
                    self.acked.append(self.unknown.pop())
        except OSError:
            pass


def stored(address: str) -> list[Record]:
    found: list[Record] = []
    with Wire(address) as wire:
        at, end = 0, wire.max_offset(TOPIC, 0)
        while at < end:
            pulled = wire.pull(TOPIC, 0, at, 64)
            found += pulled.records
            at = pulled.next_offset
    return found


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_once_and_never_early(tmp_path: Path, flush: str) -> None:
    dice = random.Random(4711)
    acked: list[str] = []
    with nameserver(tmp_path / "names") as names:
        properties = {**PROPERTIES, "flushDiskType": flush}
        server = Broker(tmp_path / "broker", names, properties=properties, cores=set(CORES))
        unknown: set[str] = set()
        for number in range(ROUNDS):
            server.start()
            senders = [Sender(server.address, f"r{number}s{n}", random.Random(number * 9 + n)) for n in range(SENDERS)]
            enough = dice.randrange(*LIFE)
            eventually(lambda: sum(len(sender.acked) for sender in senders) >= enough, timeout=60)  # noqa: B023
            server.kill()
            for sender in senders:
                sender.join(10)
                acked += sender.acked
                unknown.update(sender.unknown)
        server.start()
        try:
            # Due behind all others: when it is there, they are, and would one come twice, it would have.
            with Wire(server.address) as wire:
                for later in ({"TIMER_DELAY_MS": "2500"}, {"DELAY": "2"}):
                    assert wire.send(TOPIC, 0, b"last", {"UNIQ_KEY": "last", **later}).code == 0
            eventually(
                lambda: sum(record.body == b"last" for record in stored(server.address)) == 2, timeout=60, pause=0.2
            )
            records = [record for record in stored(server.address) if record.body != b"last"]
        finally:
            server.kill()
    expected = set(acked)
    counts = Counter(record.body.decode() for record in records)
    assert expected <= counts.keys(), "every acknowledged message has come"
    assert [key for key, count in counts.items() if count > 1] == []
    assert counts.keys() - expected <= unknown, "nothing is invented"
    for record in records:
        pairs = record.property_map()
        if "TIMER_DELIVER_MS" in pairs:
            assert record.stored_ms >= int(pairs["TIMER_DELIVER_MS"])
