"""Messages at any time: timer properties from the official Java clients, and a recall by the one that can."""

import time
from collections.abc import Callable

import pytest

from tests.interop.conftest import Variant
from tests.interop.messages import bodies
from tests.interop.probe import JsonLines, ProbeError
from tests.interop.targets import Target
from tests.interop.test_java_delivery import TWO, heard, now_ms, send


@pytest.fixture(scope="session", params=TWO, ids=lambda variant: variant.name)
def variant(request: pytest.FixtureRequest) -> Variant:
    chosen: Variant = request.param
    return chosen


@pytest.fixture
def java(java_clients: Callable[[Variant], JsonLines], variant: Variant) -> JsonLines:
    return java_clients(variant)


def test_timers(java: JsonLines, target: Target, variant: Variant, topic: str) -> None:
    send(java, topic, {"body": "makes the topic"})
    java("listen", id=topic, topic=topic, group=f"G_{topic}")
    heard(java, topic, 1)
    started = now_ms()
    try:
        send(java, topic, {"body": "past", "system": {"TIMER_DELIVER_MS": started - 5000}})
    except ProbeError as error:
        if error.code == 3:
            pytest.xfail("timers are not built yet")
        raise
    sent = send(
        java, topic,
        {"body": "at", "system": {"TIMER_DELIVER_MS": started + 5200}, "keys": "k"},
        {"body": "seconds", "system": {"TIMER_DELAY_SEC": 4}},
        {"body": "milliseconds", "system": {"TIMER_DELAY_MS": 2500}},
        {"body": "recalled", "system": {"TIMER_DELAY_SEC": 4}},
    )  # fmt: skip
    told = now_ms()
    expected = ["past", "milliseconds", "seconds", "at"]
    if variant.bundle.version == "5.3.3":
        assert java("recall", topic=topic, handle=sent[3]["recallHandle"]) == sent[3]["msgId"]
    else:
        expected.insert(3, "recalled")
    received = heard(java, topic, len(expected))
    time.sleep(1)  # the recalled one does not come after all
    assert java("heard", id=topic, count=1, millis=100) == []
    java("hush", id=topic)
    assert sorted(bodies(received)) == sorted(expected)
    delays = {"past": 0, "milliseconds": 2500, "seconds": 4000, "recalled": 4000, "at": 5200}
    # Apache's wheel has slots of a second and rounds down, so it may be early by up to one; ours never is.
    early = 1000 if target.kind == "apache" else 0
    for each in received:
        delay = delays[each["body"]]
        assert each["topic"] == topic
        assert started + delay - (early if delay else 0) <= each["at"] <= told + delay + 2500, each["body"]
    assert next(each for each in received if each["body"] == "at")["keys"] == "k"
