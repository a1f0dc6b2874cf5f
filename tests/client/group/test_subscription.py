from __future__ import annotations

import pytest

from kappamq.client.group.subscription import wanted_topics
from kappamq.errors import ConfigError, InvalidParameter
from kappamq.message import sql


def test_topics_may_be_written_in_several_ways() -> None:
    assert wanted_topics("tea") == {"tea": "*"}
    assert wanted_topics("tea", " a || b ") == {"tea": "a || b"}
    assert wanted_topics("tea", "") == {"tea": "*"}
    assert wanted_topics(["tea", "cake"]) == {"tea": "*", "cake": "*"}
    assert wanted_topics({"tea": "a", "cake": sql("n > 1")}) == {"tea": "a", "cake": sql("n > 1")}
    assert wanted_topics("tea", sql("n > 1")) == {"tea": sql("n > 1")}


@pytest.mark.parametrize(
    ("topics", "wanted", "error", "text"),
    [
        ({}, "*", ConfigError, "needs a topic"),
        ({"tea": 5}, "*", ConfigError, r"filter of 'tea'.*got 5"),
        ({"tea": "a"}, "b", ConfigError, "put the filter of each topic into it"),
        ({"tea": "price > 3"}, "*", ConfigError, r"looks like SQL.*sql\('price > 3'\)"),
        ("tea", "a IS NOT NULL", ConfigError, "looks like SQL"),
        ("tea", "n between 1 and 3", ConfigError, "looks like SQL"),
        ("tea", "colour not in ('red')", ConfigError, "looks like SQL"),
        ("tea", "colour LIKE 'r%'", ConfigError, "looks like SQL"),
        ("te a", "*", InvalidParameter, "not allowed"),
    ],
)
def test_what_is_wrong_is_named(topics: object, wanted: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        wanted_topics(topics, wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize("tags", ["made in italy", "new or used || not new", "salt and pepper", "in between", "is it"])
def test_a_tag_may_hold_words_of_sql(tags: str) -> None:
    assert wanted_topics("tea", tags) == {"tea": tags}


def test_an_sql_filter_is_a_text() -> None:
    for wrong in ("", "  ", 5):
        with pytest.raises(TypeError, match="price > 100"):
            sql(wrong)  # type: ignore[arg-type]
