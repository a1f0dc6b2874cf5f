"""SQL92 conditions: the verified truth table, what is refused and where, and random expressions against a plain model."""

from __future__ import annotations

import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.errors import SubscriptionInvalid
from kappamq.filters import LENGTH_MAX
from kappamq.filters.sql import DEPTH_MAX, BadExpression, Sql
from kappamq.protocol.codes import ResponseCode
from tests.filters import model


def verdict(expression: str, **properties: str) -> str:
    try:
        return {True: "T", False: "F", None: "U"}[Sql(expression).evaluate(properties.get)]
    except ValueError:
        return "E"


# behaviour.md, section 10: T true, F false, U unknown, E error; only T delivers.
MISSING = [
    ("a='x'", "U"), ("a<>'x'", "U"), ("'x'=a", "F"), ("'x'<>a", "T"), ("NOT(a='x')", "U"), ("a IS NULL", "T"),
    ("a IS NOT NULL", "F"), ("a IN ('x')", "U"), ("a NOT IN ('x')", "U"), ("a CONTAINS 'x'", "F"), ("a NOT CONTAINS 'x'", "F"),
    ("a>1", "U"), ("a>1 OR b='2'", "T"), ("a>1 AND b='3'", "F"), ("a", "U"), ("NOT a", "U"), ("1 > a", "U"), ("a = c", "T"),
    ("a = b", "U"), ("b = a", "F"), ("TRUE = a", "F"), ("a BETWEEN 1 AND 2", "U"), ("a STARTSWITH 'x' = FALSE", "T"),
]  # fmt: skip
PRESENT = [
    ("a>1", "2", "T"), ("a>1", "1.5", "E"), ("a>1.0", "1.5", "T"), ("a=1", "1", "T"), ("a=1", "01", "T"), ("a=TRUE", "true", "T"),
    ("a=TRUE", "TRUE", "T"), ("TRUE=a", "true", "E"), ("a STARTSWITH ''", "y", "F"), ("a='it''s'", "it's", "T"), ("a=-1", "-1", "T"),
    ("a>1", "abc", "E"), ("a>1", "3000000001", "E"), ("a>3000000000", "3000000001", "T"), ("a", "true", "F"), ("NOT a", "x", "T"),
    ("a = 1 OR a = 'abc'", "abc", "E"), ("a = 'abc' OR a = 1", "abc", "T"), ("a NOT BETWEEN 1 AND 3", "9", "T"), ("-a < 0", "5", "U"),
    ("a = --5", "5", "T"), ("a > b", "10", "T"), ("a < b", "x", "E"), ("a BETWEEN b AND 99", "9", "T"), ("0x = 1", "1", None),
    ("a > 0.0", "0.5", "T"), ("a = 0.0", "-0.0", "T"), ("a>1.0", "NaN", "T"), ("a<1.0", "NaN", "F"), ("1 = a", "01", "T"),
    ("a=FALSE", "anything", "T"), ("NOT a = 'x'", "x", "E"), ("(NOT a) IS NULL", "x", "F"), ("a IN ('x', 'y')", "y", "T"),
    ("a NOT IN ('x')", "x", "F"), ("a ENDSWITH 'z'", "yz", "T"), ("a NOT ENDSWITH 'z'", "yz", "F"), ("1 CONTAINS '1'", "", "F"),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "expected"), MISSING)
def test_property_a_is_missing(expression: str, expected: str) -> None:
    assert verdict(expression, b="2") == expected


@pytest.mark.parametrize(("expression", "a", "expected"), PRESENT)
def test_property_a_is_present(expression: str, a: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(BadExpression):
            Sql(expression)
    else:
        assert verdict(expression, a=a, b="2") == expected


def test_only_what_is_true_for_certain_is_delivered() -> None:
    assert Sql("a > 1").matches({"a": "2"}.get)
    for properties in ({"a": "1"}, {}, {"a": "two"}):
        assert not Sql("a > 1").matches(properties.get)


def test_size_says_what_a_message_costs() -> None:
    assert Sql("a").size == 1
    assert Sql("a = 1").size == 2
    assert 1000 < Sql(" OR ".join(["a = 'x'"] * 1000)).size < 1010


def test_names_are_the_properties_that_it_asks_for() -> None:
    assert Sql("b > 1 AND (a = 'x' OR b IN ('c') OR NOT (d IS NULL)) AND 1 < 2").names == ("b", "a", "d")
    assert Sql("TRUE").names == ()


@pytest.mark.parametrize(
    ("expression", "position", "reason"),
    [
        ("", 0, "missing before the end"),
        ("a >", 3, "missing before the end"),
        ("a > 'x'", 4, "a text is neither larger nor smaller than anything (>)"),
        ("'x' < a", 0, "a text is neither larger"),
        ("a > 1 > 2", 0, "a condition is neither larger"),
        ("NULL < 1", 0, "NULL is neither larger"),
        ("a = NULL", 4, "ask with IS NULL or IS NOT NULL"),
        ("TRUE = 1", 7, "an integer cannot equal TRUE or FALSE"),
        ("a IS 1", 5, "IS asks for NULL or NOT NULL"),
        ("a BETWEEN 3 AND 1", 10, "nothing is BETWEEN 3 AND 1"),
        ("a BETWEEN 2.5 AND 1", 10, "nothing is BETWEEN 2.5 AND 1"),
        ("a BETWEEN 1", 11, "BETWEEN needs two bounds"),
        ("a BETWEEN NULL AND 1", 10, "NULL is neither"),
        ("a IN (1)", 6, "IN needs a list of texts, such as ('a', 'b'), not 1"),
        ("a IN ()", 6, "IN needs a list"),
        ("a IN ('x',)", 10, "IN needs a list"),
        ("a IN ('x' 'y')", 10, "IN needs a list"),
        ("'a' IN ('a')", 0, "IN asks about a property, not about a text"),
        ("a CONTAINS b", 11, "CONTAINS needs a text in single quotes, not b"),
        ("a NOT LIKE 'x'", 6, "NOT stands before BETWEEN, IN, CONTAINS"),
        ("a NOT NOT IN ('x')", 6, "NOT stands before"),
        ("a LIKE 'x%'", 2, "the expression is complete, but LIKE follows"),
        ("a = 1 b = 2", 6, "the expression is complete, but b follows"),
        ("a = 01", 5, "the expression is complete, but 1 follows"),
        ("a = 1)", 5, "the expression is complete, but ) follows"),
        ("a IS NULL > 1", 10, "the expression is complete, but > follows"),
        ("(a = 1", 0, "this parenthesis is not closed"),
        ("1", 0, "an integer is no condition"),
        ("a = 1 AND 'x'", 10, "a text is no condition"),
        ("NOT 5", 4, "an integer is no condition"),
        ("-a", 0, "a value that is always unknown is no condition"),
        ("a = 9223372036854775808", 4, "9223372036854775808 is larger than"),
        ("a = 1" + "0" * 5000, 4, "is larger than"),
        ("a > 1e400", 4, "1e400 is larger than any number"),
        ("a > 1e-400", 4, "1e-400 is smaller than any number but 0"),
        ("a = 1 AND\n  b ! 2", 14, "'!' means nothing here"),
        ("a = 1 XOR b = 2", 6, "the expression is complete, but XOR follows"),
        ("CONTAINS = 1", 0, "missing before CONTAINS"),
    ],
)
def test_bad_expressions_are_told_where_and_why(expression: str, position: int, reason: str) -> None:
    with pytest.raises(BadExpression) as caught:
        Sql(expression)
    assert caught.value.position == position
    assert reason in str(caught.value)
    assert isinstance(caught.value, SubscriptionInvalid)
    assert caught.value.response_code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


@pytest.mark.parametrize(
    "expression",
    ["a = 1 -- one", "a = 1 -- one\n", "/* a */ a /**/ = -- x\r 1", "a\t=\f1\r\n", "+a = +1", "A = 1 OR ((((a))) = 1)"],
)
def test_comments_and_blanks(expression: str) -> None:
    assert verdict(expression, a="1") == "T"


def test_names_know_their_case_and_keywords_do_not() -> None:
    assert verdict("A = 'x'", a="x") == "U"
    assert verdict("like = 'x' aNd Not ($a_1 iS nUlL)", **{"like": "x", "$a_1": "1"}) == "T"


# -- sizes -----------------------------------------------------------------------------------------------------------------


def test_a_long_row_of_conditions_is_no_nesting() -> None:
    for keyword, last in (("OR", "T"), ("AND", "F")):
        expression = f" {keyword} ".join(["a = 'x'"] * 1000) + f" {keyword} b = '1'"
        assert len(expression) < LENGTH_MAX
        assert verdict(expression, a="y", b="1") == last


@pytest.mark.parametrize(
    "expression",
    [
        "a" * (1 << 20),
        "a = '" + "x" * LENGTH_MAX,
        "(" * 8000 + "a = 1" + ")" * 8000,
        "NOT " * 4000 + "a",
        "- " * 8000 + "1 = 1",
        "a" + " = a" * 4000,
        "a" + " IS NULL" * 2000,
        "a" + " CONTAINS 'x'" * 1200,
        "a='" + "''" * 8000,
        "/*" * 8000,
    ],
    ids=lambda expression: expression[:12],
)
def test_monsters_are_refused_at_once(expression: str) -> None:
    started = time.process_time()
    with pytest.raises(BadExpression):
        Sql(expression)
    assert time.process_time() - started < 1  # milliseconds, on a machine that has nothing else to do


def test_nesting_up_to_the_limit() -> None:
    deep = DEPTH_MAX - 1
    assert verdict("(" * deep + "a = 1" + ")" * deep, a="1") == "T"
    assert verdict("NOT " * (deep - 1) + "(a = 1)", a="1") == "TF"[(deep - 1) % 2]
    assert verdict("a" + " IS NULL" * DEPTH_MAX) == "F"


# -- against the model -----------------------------------------------------------------------------------------------------


@settings(max_examples=400, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 3))
def test_it_means_what_the_model_says(dice: Random, depth: int) -> None:
    tree = model.condition(dice, depth)
    expression = model.text(tree, dice)
    sql = Sql(expression)
    for _ in range(4):
        properties = model.message(dice)
        try:
            expected = model.judge(tree, properties)
        except model.Failed:
            with pytest.raises(ValueError):
                sql.evaluate(properties.get)
            assert sql.matches(properties.get) is False
        else:
            assert sql.evaluate(properties.get) is expected, (expression, properties)
            assert sql.matches(properties.get) is (expected is True)


_PIECES = [
    *(
        "a",
        "b",
        "1",
        "2.5",
        "'x'",
        "'",
        "(",
        ")",
        ",",
        "=",
        "<>",
        "<",
        ">=",
        "-",
        "--",
        "/*",
        "*/",
        "\n",
        " ",
        "é",
        "\0",
        "!",
    ),
    *(f" {word} " for word in ("AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "CONTAINS")),
]


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.lists(st.sampled_from(_PIECES), max_size=30).map("".join), st.text(max_size=60)))
def test_whatever_comes_is_compiled_or_refused(expression: str) -> None:
    refused: BadExpression | None = None
    try:
        assert Sql(expression).matches({"a": "1", "b": "x"}.get) in (True, False)
    except BadExpression as error:
        refused = error
    if refused is not None:
        assert 0 <= refused.position <= len(expression)
        assert len(str(refused)) < 400


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_what_stands_behind_a_whole_expression_is_never_ignored(dice: Random) -> None:
    expression = model.text(model.condition(dice, 2), dice)
    Sql(expression)
    with pytest.raises(BadExpression):
        Sql(f"{expression} {dice.choice(['b', '1', 'LIKE', ')', 'TRUE'])}")
