from __future__ import annotations

from kappamq.client.consumer.consume_stats import STRETCH_S, ConsumeStats


def test_the_last_minute_in_milliseconds_and_per_second() -> None:
    stats = ConsumeStats()
    stats.pulled("tea", 10, 0.1, 1000.0)
    stats.pulled("tea", 30, 0.3, 1019.0)
    stats.consumed("tea", 20, 0.5, True, 1010.0)
    stats.consumed("tea", 4, 0.1, False, 1019.0)
    status = stats.status("tea", 1020.0)
    assert (status.pull_rt, status.pull_tps) == (200.0, 2.0)
    assert (status.consume_rt, status.consume_ok_tps, status.consume_failed_tps) == (300.0, 1.0, 0.2)
    assert status.consume_failed == 4


def test_what_is_older_counts_no_more_but_failures_for_an_hour() -> None:
    stats = ConsumeStats()
    stats.consumed("tea", 4, 0.1, False, 1000.0)
    status = stats.status("tea", 1000.0 + 70)
    assert (status.consume_rt, status.consume_failed_tps, status.consume_failed) == (0.0, 0.0, 4)
    stats.consumed("tea", 1, 0.1, False, 1000.0 + 3700)
    assert stats.status("tea", 1000.0 + 3700).consume_failed == 1


def test_a_topic_without_news_is_all_zeros_and_memory_is_bounded() -> None:
    stats = ConsumeStats()
    assert stats.status("cake", 5.0).pull_tps == 0.0
    for n in range(1000):
        stats.pulled("tea", 1, 0.1, n * STRETCH_S)
    assert len(stats._topics["tea"]) <= 360
