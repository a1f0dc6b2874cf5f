"""Messages that wait carry their real address, and find it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.broker.delivery.parking import Unparking, park
from kappamq.broker.sending.appending import Draft
from kappamq.protocol import names
from kappamq.protocol.bodies.topics import TopicConfig
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Record
from tests.broker.running import run, running

T = 1_700_000_000_000


def parked(topic: str = "tea", queue_id: int = 3, *, host: bytes = bytes(4), crc: bool = True, **more: str) -> bytes:
    draft = Draft(topic, queue_id, b"x", {"KEYS": "k"} | more)
    park(draft, names.SCHEDULE_TOPIC, 2)
    assert (draft.topic, draft.queue_id) == (names.SCHEDULE_TOPIC, 2)
    return Record(
        topic=draft.topic, queue_id=2, body=b"body", properties=properties.encode(draft.properties), log_offset=77, flag=9,
        reconsume_times=2, born_ms=5, born_host=host, born_port=6, stored_ms=T, store_host=host, tail_crc=crc,
    ).encode()  # fmt: skip


@pytest.mark.parametrize("host", [bytes(4), bytes(16)])
@pytest.mark.parametrize("crc", [True, False])
def test_there_and_back(tmp_path: Path, host: bytes, crc: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            topics, unparking = broker.topics, Unparking(broker.topics)
            assert unparking.copy(parked()) is None
            assert "was deleted" in caplog.text
            topics.update(TopicConfig("tea", 4, 4, 6))
            assert unparking.copy(parked()) is None, "looked up once for each group"
            unparking.begin()
            copy = unparking.copy(parked(host=host, crc=crc))
            assert copy is not None
            topic, queue_id, flag, _sys_flag, born_ms, born, tries, source, body, text = copy
            assert (topic, queue_id, flag, born_ms, born) == ("tea", 3, 9, 5, host + b"\0\0\0\x06")
            assert (tries, source, body) == (2, 77, b"body")
            assert properties.decode(text.decode()) == {"KEYS": "k", "REAL_TOPIC": "tea", "REAL_QID": "3"}
            timed = unparking.copy(parked(crc=crc), T + 5)
            assert timed is not None
            pairs = properties.decode(timed[-1].decode())
            assert (pairs["TIMER_ENQUEUE_MS"], pairs["TIMER_DEQUEUE_MS"]) == (str(T), str(T + 5))
            marked = unparking.copy(parked(**{"__BATCH#": "0000000500"}))
            assert marked is not None
            assert b"__BATCH#" not in marked[-1], "its neighbours do not come along"
            for forged in ("__CRC32#", "x__CRC32#"):
                kept = unparking.copy(parked(crc=crc, **{forged: "0123456789"}))
                assert kept is not None
                names_kept = properties.decode(kept[-1].decode()).keys()
                assert names_kept == {"KEYS", "REAL_TOPIC", "REAL_QID"} | ({forged} - {"__CRC32#"})
            # A topic that has shrunk: the message goes where somebody reads.
            topics.update(TopicConfig("tea", 2, 2, 6))
            unparking.begin()
            shrunk = unparking.copy(parked())
            assert shrunk is not None
            assert shrunk[1] == 1

    run(scenario())


@pytest.mark.parametrize(
    ("topic", "queue"),
    [("rmq_sys_kappamq_metadata", "0"), (names.HALF_TOPIC, "0"), (names.TIMER_TOPIC, "0"), ("", "0"), ("t", "x")],
)
def test_nothing_gets_into_the_systems_own_topics(
    tmp_path: Path, topic: str, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            text = f"REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue}\x02"
            assert Unparking(broker.topics).copy(Record(topic="s", body=b"x", properties=text).encode()) is None
            assert "names no topic" in caplog.text

    run(scenario())
