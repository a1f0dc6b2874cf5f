"""Messages that wait carry their real address, and find it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.broker.appending import Draft
from kappamq.broker.parking import delivered, number, park
from kappamq.errors import IllegalMessage
from kappamq.protocol import names, properties
from kappamq.protocol.bodies_topics import TopicConfig
from kappamq.protocol.record import Record
from tests.broker.running import run, running


def parked(topic: str = "tea", queue_id: int = 3, **more: str) -> Record:
    draft = Draft(topic, queue_id, b"x", {"KEYS": "k"} | more)
    park(draft, names.SCHEDULE_TOPIC, 2)
    assert (draft.topic, draft.queue_id) == (names.SCHEDULE_TOPIC, 2)
    text = properties.encode(draft.properties)
    return Record(topic=draft.topic, queue_id=2, body=b"x", properties=text, log_offset=77, reconsume_times=2)


def test_there_and_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            topics = broker.topics
            assert delivered(parked(), topics) is None
            assert "was deleted" in caplog.text
            topics.update(TopicConfig("tea", 4, 4, 6))
            copy = delivered(parked(), topics)
            assert copy is not None
            assert (copy.topic, copy.queue_id, copy.source, copy.waited, copy.reconsume_times) == (
                "tea",
                3,
                77,
                True,
                2,
            )
            assert copy.properties == {"KEYS": "k", "REAL_TOPIC": "tea", "REAL_QID": "3"}
            # A topic that has shrunk: the message goes where somebody reads.
            topics.update(TopicConfig("tea", 2, 2, 6))
            shrunk = delivered(parked(), topics)
            assert shrunk is not None
            assert shrunk.queue_id == 1

    run(scenario())


@pytest.mark.parametrize("topic", ["rmq_sys_kappamq_metadata", names.HALF_TOPIC, ""])
def test_nothing_gets_into_the_systems_own_topics(tmp_path: Path, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            record = Record(topic="s", body=b"x", properties=f"REAL_TOPIC\x01{topic}\x02REAL_QID\x010\x02")
            assert delivered(record, broker.topics) is None
            assert "names no topic" in caplog.text

    run(scenario())


def test_numbers() -> None:
    assert number(Draft("t", 0, b""), "DELAY") is None
    for text, value in [("3", 3), ("-1", -1), ("+2", 2), ("0", 0), ("9" * 18, 10**18 - 1)]:
        assert number(Draft("t", 0, b"", {"DELAY": text}), "DELAY") == value
    for text in ("x", "1.5", "", "-", "9" * 19, "\u0663", "1 "):
        with pytest.raises(IllegalMessage, match="DELAY must be a whole number"):
            number(Draft("t", 0, b"", {"DELAY": text}), "DELAY")
