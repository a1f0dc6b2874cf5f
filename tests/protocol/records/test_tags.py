"""Java's hash, and tag subscriptions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.protocol.records.tags import EVERYTHING, Subscription, java_hash, keys_of, tag_code


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("TagA", 2598919), ("中文", 646394), ("😀", 1772899), ("polygenelubricants", -(1 << 31))],
)
def test_golden_hashes(text: str, value: int) -> None:
    assert java_hash(text) == value


@given(st.text())
def test_hash_is_32_bits_and_follows_its_rule(text: str) -> None:
    value = java_hash(text)
    assert -(1 << 31) <= value < 1 << 31
    assert (java_hash(text + "a") - (31 * value + 97)) % (1 << 32) == 0


def test_tag_code() -> None:
    assert (tag_code(None), tag_code(""), tag_code("TagA")) == (0, 0, 2598919)
    assert tag_code("x" * 1000) == java_hash("x" * 1000)


def test_keys() -> None:
    assert keys_of("a  b c ") == ["a", "b", "c"]
    assert keys_of(None) == keys_of("") == keys_of(" ") == []


@pytest.mark.parametrize("expression", [None, "", "*", " * ", "||", " || "])
def test_everything(expression: str | None) -> None:
    subscription = Subscription.parse(expression)
    assert subscription is EVERYTHING
    assert subscription.everything
    assert subscription.matches(None)
    assert subscription.may_match(0)


def test_some_tags() -> None:
    subscription = Subscription.parse("Aa || c||")
    assert subscription.tags == {"Aa", "c"}
    assert not subscription.everything
    assert subscription.matches("Aa")
    assert not subscription.matches(None)
    # "BB" has the hash of "Aa": the broker lets it through, the consumer does not.
    assert subscription.may_match(tag_code("BB"))
    assert not subscription.matches("BB")
    assert not subscription.may_match(0)


@given(
    st.sets(
        st.text(st.characters(exclude_characters="|"), min_size=1)
        .map(str.strip)
        .filter(lambda tag: tag not in ("", "*"))
    )
)
def test_parse_reads_what_was_joined(tags: set[str]) -> None:
    assert Subscription.parse(" || ".join(tags)).tags == tags
