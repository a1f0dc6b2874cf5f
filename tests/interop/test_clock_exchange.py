"""A store whose wall clock was a day ahead for a while goes to Apache's broker: what waits is delivered there, and nothing twice."""

from pathlib import Path

import pytest

from tests.broker.shifted_clock import ShiftedClock
from tests.interop import jars, targets
from tests.interop.probe import JsonLines, java_probe
from tests.interop.test_delivery_exchange import LEVELS, TOPIC, now_ms, visible
from tests.needs import needs
from tests.waiting import eventually

DAY_MS = 86_400_000
WAIT_MS = 20_000


def park(java: JsonLines, when: str) -> set[str]:
    messages = [{"body": f"{when} level", "level": 2}, {"body": f"{when} delay", "system": {"TIMER_DELAY_MS": WAIT_MS}}]
    java("send", topic=TOPIC, mode="sync", messages=messages)
    return {str(message["body"]) for message in messages}


@needs("compiler")
def test_apache_goes_on_with_a_store_whose_clock_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ShiftedClock(tmp_path / "clock")
    properties = {**targets.FEATURES, **LEVELS}
    ours = targets.KappaTarget(tmp_path / "ours", store=tmp_path / "store", properties=properties)
    with monkeypatch.context() as environment:
        for name, value in clock.environment.items():
            environment.setenv(name, value)
        ours.start()
    try:
        with java_probe(jars.CLIENT_5, ours.nameserver, tmp_path / "client-1", "first") as java:
            early = {"body": "within the jump", "system": {"TIMER_DELIVER_MS": now_ms() + 3_600_000}}
            java("send", topic=TOPIC, mode="sync", messages=[early])
            waiting = park(java, "before")
            clock.set(DAY_MS)
            eventually(
                lambda: visible(java)["within the jump"] == 1, timeout=30, pause=0.2, text="the jump is followed"
            )
            waiting |= park(java, "during")
            clock.set(0)
            java("send", topic=TOPIC, mode="sync", messages=[{"body": "soon", "system": {"TIMER_DELAY_MS": 1000}}])
            eventually(lambda: visible(java)["soon"] == 1, timeout=30, pause=0.2, text="the right clock is followed")
            waiting |= park(java, "after")
            assert not waiting & visible(java).keys()
        ours.stop()
    finally:
        ours.kill()
    apache = targets.ApacheTarget(tmp_path / "apache", store=tmp_path / "store", properties=properties)
    apache.start()
    try:
        with java_probe(jars.CLIENT_5, apache.nameserver, tmp_path / "client-2", "second") as java:
            java("send", topic=TOPIC, mode="sync", messages=[{"body": "by apache"}])
            wanted = waiting | {"within the jump", "soon", "by apache"}
            eventually(lambda: wanted <= visible(java).keys(), timeout=90, pause=0.5, text=f"{wanted} are there")
            assert set(visible(java).values()) == {1}, "nothing came twice"
    finally:
        apache.kill()
