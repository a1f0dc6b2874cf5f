"""What is counted on the driver; what Spark counts is tested with whole audits."""

from __future__ import annotations

import pytest

from kappamq.spark.jobs.audit_tables import BUCKETS, bucket_ms, groups, topics


@pytest.mark.parametrize(
    ("span_ms", "width_ms"), [(0, 1000), (120_000, 1000), (121_000, 2000), (3_600_000, 30_000), (86_400_000, 900_000)]
)
def test_points_of_a_plot(span_ms: int, width_ms: int) -> None:
    assert bucket_ms(1_700_000_000_000, 1_700_000_000_000 + span_ms) == width_ms


@pytest.mark.parametrize("span_ms", [0, 1, 10**6, 10**12, 10**16])
def test_there_are_never_too_many(span_ms: int) -> None:
    assert span_ms / bucket_ms(0, span_ms) <= BUCKETS


def test_topics_are_the_sums_of_their_queues() -> None:
    def queue(topic: str, number: int, size: int, first: int, last: int) -> dict[str, object]:
        return {
            "topic": topic,
            "kind": "user",
            "queue": number,
            "messages": 1,
            "bytes": size,
            "first_ms": first,
            "last_ms": last,
        }

    heavy, light = topics([queue("tea", 0, 5, 7, 9), queue("coffee", 0, 8, 1, 2), queue("tea", 1, 6, 3, 8)])
    assert heavy == {
        "topic": "tea",
        "kind": "user",
        "messages": 2,
        "bytes": 11,
        "queues": 2,
        "first_ms": 3,
        "last_ms": 9,
    }
    assert light["topic"] == "coffee"


def test_groups_by_lag() -> None:
    offsets = {("a", "tea", 0): 5, ("a", "tea", 1): 5, ("b", "tea", 0): 1, ("CID_RMQ_SYS_TRANS", "x", 0): 1}
    seen = [{"topic": "%DLQ%a", "messages": 3}, {"topic": "%RETRY%b", "messages": 2}]
    first, second = groups(offsets, {("b", "tea"): (10, 1000, 5000)}, seen, 9000)
    assert first == {
        "group": "b", "topic": "tea", "lag": 10, "lag_bytes": 1000, "lag_ms": 4000, "retries": 2, "dead_letters": 0,
    }  # fmt: skip
    assert (second["group"], second["lag"], second["lag_ms"], second["dead_letters"]) == ("a", 0, 0, 3)
