"""What the official Java clients know of delivery: filters, failures, order, delays, transactions, replies, traces."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.interop.conftest import VARIANTS, Variant
from tests.interop.messages import Received, bodies, wait_for_messages
from tests.interop.probe import JsonLines, ProbeError
from tests.interop.targets import Target
from tests.waiting import eventually

# The old client and the new one, each with another header format: what they do here does not depend on it.
TWO = [VARIANTS[0], VARIANTS[3]]


@pytest.fixture(scope="session", params=TWO, ids=lambda variant: variant.name)
def variant(request: pytest.FixtureRequest) -> Variant:
    chosen: Variant = request.param
    return chosen


@pytest.fixture
def java(java_clients: Callable[[Variant], JsonLines], variant: Variant) -> JsonLines:
    return java_clients(variant)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def send(java: JsonLines, topic: str, *messages: dict[str, Any]) -> list[Received]:
    sent: list[Received] = java("send", topic=topic, mode="sync", messages=list(messages))
    assert [each["status"] for each in sent] == ["SEND_OK"] * len(messages)
    return sent


def heard(java: JsonLines, id: str, count: int, millis: int = 20_000) -> list[Received]:
    received: list[Received] = java("heard", id=id, count=count, millis=millis)
    assert len(received) == count, bodies(received)
    return received


# -- filters ---------------------------------------------------------------------------------------------------------------

ORDERS = [
    {
        "body": str(n),
        "properties": {"price": str(n), "country": ["PE", "DE", "FR"][n % 3]},
        "tags": "even" if n % 2 == 0 else "odd",
    }
    for n in range(20)
] + [{"body": "nothing"}]
CONDITIONS = {
    "price BETWEEN 5 AND 8": ["5", "6", "7", "8"],
    "price > 15 AND country <> 'DE' OR price = 1": ["1", "17", "18"],
    "price IS NULL": ["nothing"],
    "country IN ('FR') AND TAGS = 'odd'": ["5", "11", "17"],
    "price > 100": [],
}


def sql_pull(java: JsonLines, topic: str, sql: str) -> list[str]:
    """The client knows from a heartbeat's answer that a broker can do this, and refuses before: a moment after its start."""

    def pulled() -> tuple[list[str]] | None:
        try:
            return (bodies(java("pull", topic=topic, sql=sql)),)
        except ProbeError as error:
            if "does not upgrade" in str(error):
                return None
            raise

    found = eventually(pulled, timeout=40, text="the first heartbeat")
    assert found is not None
    return found[0]


def test_filter_by_sql(java: JsonLines, topic: str) -> None:
    send(java, topic, *ORDERS)
    wait_for_messages(java, topic, len(ORDERS))
    for sql, expected in CONDITIONS.items():
        assert sorted(sql_pull(java, topic, sql)) == sorted(expected), sql
    java("listen", id=topic, topic=topic, group=f"G_{topic}", sql="price BETWEEN 5 AND 8")
    assert sorted(bodies(heard(java, topic, 4))) == ["5", "6", "7", "8"]
    send(java, topic, {"body": "no", "properties": {"price": "9"}}, {"body": "yes", "properties": {"price": "7"}})
    assert bodies(heard(java, topic, 1)) == ["yes"]
    java("hush", id=topic)
    received = java("lite", topic=topic, group=f"L_{topic}", sql="country = 'PE' AND price < 7", count=3, millis=20_000)
    assert sorted(bodies(received)) == ["0", "3", "6"]


def test_a_bad_condition_stops_the_consumer_before_it_begins(java: JsonLines, target: Target, topic: str) -> None:
    send(java, topic, {"body": "makes the topic"})
    wait_for_messages(java, topic, 1)
    with pytest.raises(ProbeError) as caught:
        java("listen", id=topic, topic=topic, group=f"G_{topic}", sql="price > 'ten'")
    assert caught.value.code == 23
    if target.kind == "kappamq":
        assert "wrong at column 9: a text is neither larger nor smaller" in str(caught.value)
        # Apache's broker gives such a pull no messages and no reason.
        with pytest.raises(ProbeError, match=r"CODE: 23 .*column 8") as caught:
            sql_pull(java, topic, "price >")


# -- failures --------------------------------------------------------------------------------------------------------------


def test_what_fails_comes_again(java: JsonLines, topic: str) -> None:
    sent = send(
        java,
        topic,
        {"body": "good", "keys": "k1"},
        {"body": "bad", "keys": "k2", "tags": "T", "properties": {"a": "b"}},
    )
    java("listen", id=topic, topic=topic, group=f"G_{topic}", fail={"bad": 2}, level=1)
    received = heard(java, topic, 4, 30_000)
    java("hush", id=topic)
    assert [each["reconsumeTimes"] for each in received if each["body"] == "good"] == [0]
    bad = [each for each in received if each["body"] == "bad"]
    assert [each["reconsumeTimes"] for each in bad] == [0, 1, 2]
    for before, after in itertools.pairwise(bad):
        assert 1000 <= after["at"] - before["at"] < 6000, "level 1 is a second"
    for each in bad:
        assert (each["topic"], each["keys"], each["tags"], each["properties"]["a"]) == (topic, "k2", "T", "b")
        assert each["msgId"] == sent[1]["msgId"], "an application may know it by its id"
    assert bad[1]["properties"]["RETRY_TOPIC"] == topic
    assert (
        bad[1]["properties"]["ORIGIN_MESSAGE_ID"] == bad[2]["properties"]["ORIGIN_MESSAGE_ID"] == sent[1]["offsetMsgId"]
    )


def test_what_fails_too_often_is_a_dead_letter(java: JsonLines, topic: str) -> None:
    (sent,) = send(java, topic, {"body": "hopeless", "keys": "k"})
    group = f"G_{topic}"
    java("listen", id=topic, topic=topic, group=group, fail={"hopeless": -1}, level=1, maxReconsume=1)
    assert [each["reconsumeTimes"] for each in heard(java, topic, 2)] == [0, 1]
    (dead,) = wait_for_messages(java, f"%DLQ%{group}", 1)
    assert java("heard", id=topic, count=1, millis=1500) == []
    java("hush", id=topic)
    assert (dead["body"], dead["keys"], dead["msgId"]) == ("hopeless", "k", sent["msgId"])
    assert dead["properties"]["RETRY_TOPIC"] == topic


def test_in_order_a_failure_holds_up_its_queue(java: JsonLines, topic: str) -> None:
    send(java, topic, {"body": "makes the topic"})
    java("send_to", topic=topic, queueId=1, messages=[{"body": f"one-{n}"} for n in range(4)])
    java("send_to", topic=topic, queueId=2, messages=[{"body": f"two-{n}"} for n in range(4)])
    java("listen", id=topic, topic=topic, group=f"G_{topic}", orderly=True, fail={"one-1": 3})
    received = [each for each in heard(java, topic, 12, 40_000) if each["body"] != "makes the topic"]
    java("hush", id=topic)
    one = [each["body"] for each in received if each["queueId"] == 1]
    assert one == ["one-0", "one-1", "one-1", "one-1", "one-1", "one-2", "one-3"]
    assert [each["reconsumeTimes"] for each in received if each["body"] == "one-1"] == [0, 1, 2, 3]
    assert [each["body"] for each in received if each["queueId"] == 2] == [f"two-{n}" for n in range(4)]


# -- who gets what ---------------------------------------------------------------------------------------------------------


def test_broadcasting(java: JsonLines, topic: str) -> None:
    """Everybody gets everything, and what fails does not come again."""
    messages = [{"body": str(n)} for n in range(12)]
    send(java, topic, {"body": "makes the topic"})
    for id in ("first", "second"):
        java("listen", id=f"{id}_{topic}", topic=topic, group=f"G_{topic}", broadcast=True, fail={"3": 1})
    for id in ("first", "second"):
        assert bodies(heard(java, f"{id}_{topic}", 1)) == ["makes the topic"]
    send(java, topic, *messages)
    for id in ("first", "second"):
        assert sorted(bodies(heard(java, f"{id}_{topic}", 12)), key=int) == [each["body"] for each in messages]
        assert java("heard", id=f"{id}_{topic}", count=1, millis=500) == []
        java("hush", id=f"{id}_{topic}")


def test_lite_pull_from_an_offset(java: JsonLines, topic: str) -> None:
    send(java, topic, {"body": "makes the topic"})
    sent = java("send_to", topic=topic, queueId=3, messages=[{"body": str(n)} for n in range(10)])
    start = sent[4]["queueOffset"]
    received = java("lite_from", topic=topic, group=f"G_{topic}", queueId=3, offset=start, count=6, millis=20_000)
    assert bodies(received) == [str(n) for n in range(4, 10)]


# -- later -----------------------------------------------------------------------------------------------------------------


def test_delay_levels(java: JsonLines, topic: str) -> None:
    send(java, topic, {"body": "makes the topic"})
    java("listen", id=topic, topic=topic, group=f"G_{topic}")
    heard(java, topic, 1)
    started = now_ms()
    sent = send(
        java, topic, {"body": "in 5 s", "level": 2, "keys": "k", "tags": "T", "properties": {"a": "b"}}, {"body": "in 1 s", "level": 1},
        {"body": "now"},
    )  # fmt: skip
    told = now_ms()
    received = heard(java, topic, 3)
    java("hush", id=topic)
    assert bodies(received) == ["now", "in 1 s", "in 5 s"]
    for each, delay in zip(received[1:], (1000, 5000), strict=True):
        assert started + delay <= each["at"] <= told + delay + 2500, "never early, and hardly late"
        assert each["storeTimestamp"] >= started + delay
    late = received[2]
    assert (late["topic"], late["keys"], late["tags"], late["properties"]["a"]) == (topic, "k", "T", "b")
    assert late["msgId"] == sent[0]["msgId"]
    assert late["reconsumeTimes"] == 0
    assert late["properties"]["REAL_TOPIC"] == topic


# -- transactions ----------------------------------------------------------------------------------------------------------


def test_transactions(java: JsonLines, topic: str) -> None:
    group = f"P_{topic}"
    send(java, topic, {"body": "makes the topic"})
    java("tx_start", group=group)
    sent = java(
        "tx_send", group=group, topic=topic,
        messages=[
            {"body": "yes", "local": "COMMIT_MESSAGE", "keys": "k", "tags": "T", "properties": {"a": "b"}},
            {"body": "no", "local": "ROLLBACK_MESSAGE"},
        ],
    )  # fmt: skip
    assert [each["state"] for each in sent] == ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE"]
    assert [each["status"] for each in sent] == ["SEND_OK"] * 2
    (yes,) = [each for each in wait_for_messages(java, topic, 2) if each["body"] == "yes"]
    assert (yes["keys"], yes["tags"], yes["properties"]["a"]) == ("k", "T", "b")
    assert yes["msgId"] == sent[0]["msgId"] == sent[0]["transactionId"]
    assert yes["properties"]["TRAN_MSG"] == "true"
    assert yes["sysFlag"] & 0xC == 0x8, "committed"
    # Neither is checked: both are decided.
    assert java("tx_checked", group=group, count=1, millis=4500) == []
    java("tx_stop", group=group)
    assert sorted(bodies(wait_for_messages(java, topic, 2))) == ["makes the topic", "yes"]


def test_open_transactions_are_asked_about(java: JsonLines, topic: str) -> None:
    group = f"P_{topic}"
    send(java, topic, {"body": "makes the topic"})
    java(
        "tx_start", group=group, verdicts={"later yes": ["UNKNOW", "COMMIT_MESSAGE"], "later no": ["ROLLBACK_MESSAGE"]}
    )
    sent = java(
        "tx_send", group=group, topic=topic,
        messages=[{"body": body, "local": "UNKNOW", "keys": "k"} for body in ("later yes", "later no")],
    )  # fmt: skip
    assert [each["state"] for each in sent] == ["UNKNOW"] * 2
    assert bodies(java("pull", topic=topic)) == ["makes the topic"], "nobody sees it before it is decided"
    checked: list[Received] = []

    def asked() -> bool:
        checked.extend(java("tx_checked", group=group, count=1, millis=500))
        return sorted(bodies(checked)) == ["later no", "later yes", "later yes"]

    eventually(asked, timeout=30, text="three questions")
    for each in checked:
        assert each["topic"] == topic, "asked about the message as it was sent"
        assert each["keys"] == "k"
        assert each["transactionId"] == {"later yes": sent[0], "later no": sent[1]}[each["body"]]["transactionId"]
    received = eventually(
        lambda: java("pull", topic=topic) if len(java("pull", topic=topic)) == 2 else None, text="the commit"
    )
    assert received is not None
    assert sorted(bodies(received)) == ["later yes", "makes the topic"]
    assert java("tx_checked", group=group, count=1, millis=4500) == [], "decided: asked no more"
    java("tx_stop", group=group)


# -- request and reply -----------------------------------------------------------------------------------------------------


def test_request_and_reply(java: JsonLines, target: Target, topic: str) -> None:
    send(java, topic, {"body": "makes the topic"})
    java("listen", id=topic, topic=topic, group=f"G_{topic}")
    heard(java, topic, 1)
    java("hush", id=topic)
    with pytest.raises(ProbeError, match="TimeoutException"):
        java("request", topic=topic, message={"body": "is anybody there?"}, timeout=1500)
    java("listen", id=topic, topic=topic, group=f"G_{topic}", reply=True)
    for text in ("how are you?", "two", "three"):
        answer = java("request", topic=topic, message={"body": text, "keys": "k"}, timeout=15_000)
        assert answer["body"] == text.upper()
        assert answer["properties"]["CORRELATION_ID"]
        assert answer["properties"]["MSG_TYPE"] == "reply"
    java("hush", id=topic)


# -- traces ----------------------------------------------------------------------------------------------------------------


def traces(java: JsonLines) -> list[list[str]]:
    """Every line of the trace topic, in fields."""
    found: list[list[str]] = []
    for message in java("pull", topic="RMQ_SYS_TRACE_TOPIC"):
        found += [line.split("\x01") for line in message["body"].split("\x02") if line]
    return found


def test_traces(java: JsonLines, target: Target, topic: str) -> None:
    group = f"P_{topic}"
    (sent,) = java(
        "traced_send", group=group, topic=topic, messages=[{"body": "followed", "keys": "k1 k2", "tags": "T"}]
    )
    java("listen", id=topic, topic=topic, group=f"G_{topic}", trace=True)
    heard(java, topic, 1)
    java("hush", id=topic)  # what it has traced is sent by then

    def told() -> list[list[str]]:
        mine = [line for line in traces(java) if sent["msgId"] in line]
        return mine if len(mine) == 3 else []

    lines = {line[0]: line for line in eventually(told, text="three lines about the message")}
    assert set(lines) == {"Pub", "SubBefore", "SubAfter"}
    published = lines["Pub"]
    assert published[3:9] == [group, topic, sent["msgId"], "T", "k1 k2", target.broker]
    assert (published[9], published[11]) == (str(len("followed")), "0")
    assert published[13] == "true"
    assert sent["offsetMsgId"] == published[12]
    assert lines["SubBefore"][3] == f"G_{topic}"
    assert lines["SubBefore"][4] == lines["SubAfter"][1], "one request id"
    assert lines["SubAfter"][4] == "true"
