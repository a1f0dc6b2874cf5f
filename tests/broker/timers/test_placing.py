"""Who is parked until when, and who is told no."""

from __future__ import annotations

import pytest

from kappamq.broker.sending.appending import Draft
from kappamq.broker.timers.placing import TimerPlacer, recall_handle
from kappamq.config.broker import BrokerConfig
from kappamq.errors import BrokerError, IllegalMessage
from kappamq.protocol.names import TIMER_TOPIC
from kappamq.protocol.recall import RecallHandle

NOW = 1_700_000_000_500


def placed(config: BrokerConfig | None = None, **pairs: object) -> Draft:
    draft = Draft("tea", 3, b"x", {"UNIQ_KEY": "u"} | {name: str(value) for name, value in pairs.items()})
    TimerPlacer(config or BrokerConfig(name="b")).place(draft, NOW)
    return draft


def test_parked_until_its_time() -> None:
    for pairs in ({"TIMER_DELAY_SEC": 2}, {"TIMER_DELAY_MS": 2000}, {"TIMER_DELIVER_MS": NOW + 2000}):
        draft = placed(**pairs)
        assert (draft.topic, draft.queue_id) == (TIMER_TOPIC, 0)
        assert draft.properties["TIMER_OUT_MS"] == str(NOW + 1500), "as RocketMQ rounds it"
        assert draft.properties["TIMER_DELIVER_MS"] == str(NOW + 2000)
        assert (draft.properties["REAL_TOPIC"], draft.properties["REAL_QID"]) == ("tea", "3")
        handle = recall_handle(draft, "b")
        assert handle is not None
        assert RecallHandle.decode(handle) == RecallHandle("tea", "b", NOW + 2000, "u")
    assert placed(TIMER_DELIVER_MS=NOW + 500).properties["TIMER_OUT_MS"] == str(NOW - 500), (
        "a whole second, to be over then"
    )


def test_not_parked() -> None:
    for pairs in ({}, {"TIMER_DELAY_SEC": 0}, {"TIMER_DELAY_MS": -5}, {"TIMER_DELIVER_MS": NOW}):
        draft = placed(**pairs)
        assert draft.topic == "tea"
        assert recall_handle(draft, "b") is None
    both = placed(DELAY=3, TIMER_DELAY_SEC=2, TIMER_DELIVER_MS="x")
    assert (both.topic, both.properties) == ("tea", {"UNIQ_KEY": "u", "DELAY": "3"}), "a level goes before a time"


def test_a_retry_cannot_be_recalled() -> None:
    draft = Draft("%RETRY%g", 0, b"x", {"UNIQ_KEY": "u", "TIMER_DELAY_MS": "5"})
    TimerPlacer(BrokerConfig(name="b")).place(draft, NOW)
    assert recall_handle(draft, "b") is None


def test_refused() -> None:
    horizon = BrokerConfig(name="b", timer_delay_max_s=10)
    assert placed(horizon, TIMER_DELAY_MS=10_000).topic == TIMER_TOPIC
    with pytest.raises(IllegalMessage, match=r"in 10\.001 s, the limit is 10 s \(timerMaxDelaySec\)"):
        placed(horizon, TIMER_DELAY_MS=10_001)
    with pytest.raises(IllegalMessage, match="TIMER_DELAY_SEC must be an integer"):
        placed(TIMER_DELAY_SEC="soon")
    with pytest.raises(IllegalMessage, match="too late to recall"):
        placed(TIMER_DELIVER_MS=NOW, TIMER_DEL_UNIQKEY="tea+u")
    with pytest.raises(BrokerError, match="switched off"):
        placed(BrokerConfig(name="b", timers=False), TIMER_DELAY_SEC=1)
    with pytest.raises(IllegalMessage, match="too many for one that is delivered later"):
        placed(TIMER_DELAY_SEC=1, big="x" * 32_600)


def test_somebody_is_told() -> None:
    told: list[int] = []
    placer = TimerPlacer(BrokerConfig(name="b"), lambda: told.append(1))
    placer.place(Draft("tea", 0, b"x"), NOW)
    assert told == []
    placer.place(Draft("tea", 0, b"x", {"TIMER_DELAY_MS": "5"}), NOW)
    assert told == [1]


def test_who_has_waited_does_not_wait_again() -> None:
    """A dead letter, or a message that somebody passes on with all that it says."""
    draft = placed(TIMER_DELAY_SEC=3600, TIMER_OUT_MS=NOW - 1000, TIMER_DELIVER_MS=NOW - 500)
    assert draft.topic != TIMER_TOPIC
