"""What was made of texts is kept within a number of characters."""

from __future__ import annotations

from kappamq.broker.pulling.text_cache import TextCache


def test_the_longest_unused_go_first() -> None:
    cache: TextCache[int] = TextCache(10)
    cache.put("aaaa", 1)
    cache.put("bbbb", 2)
    assert cache.get("aaaa") == 1
    cache.put("cccc", 3)
    assert "bbbb" not in cache
    assert cache.get("aaaa") == 1
    assert cache.get("cccc") == 3
    assert cache.get("dddd") is None


def test_what_is_too_long_is_not_kept_and_puts_nobody_out() -> None:
    cache: TextCache[int] = TextCache(10)
    cache.put("a", 1)
    cache.put("b" * 11, 2)
    assert "b" * 11 not in cache
    assert cache.get("a") == 1
    cache.put("a", 9)
    assert cache.get("a") == 1, "the same text gives the same result"
