"""Our SQL92 conditions beside RocketMQ's own: random expressions, whole and damaged, and random messages."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from kappamq.filters.sql import BadExpression, Sql
from tests.filters import model
from tests.interop import jars
from tests.interop.apache import SHORT_LIVED, java_command
from tests.interop.probe import JsonLines, compiled

SOURCE = Path(__file__).parent / "java" / "SqlOracle.java"
SEED, ROUNDS, EXPRESSIONS, MESSAGES = 20261117, 10, 500, 6
DAMAGE = ["'", "(", ")", " ", "-", "=", " AND ", "1", "a", ",", "--", "\n", " NOT ", "NULL", "1.", "/*"]
# Where we refuse and RocketMQ does not: it looks one word beyond a whole expression, and ignores the rest.
STRICTER = (
    "the expression is complete, but",
    "this text has no closing quote",
    "means nothing here",
    "comment has no end",
    "single quotes",
    "not equal is written",
)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JsonLines]:
    home = tmp_path_factory.mktemp("oracle")
    command = java_command(
        jars.SERVER, home, "SqlOracle", heap_mb=128, options=SHORT_LIVED, before=(compiled(jars.SERVER, [SOURCE]),)
    )
    with JsonLines(command, home / "err.txt") as lines:
        yield lines


def verdicts(sql: Sql, messages: list[dict[str, str]]) -> str:
    found = ""
    for message in messages:
        try:
            found += {True: "T", False: "F", None: "U"}[sql.evaluate(message.get)]
        except ValueError:
            found += "E"
    return found


def damaged(dice: Random, expression: str) -> str:
    at = dice.randrange(len(expression) + 1)
    return expression[:at] + dice.choice(DAMAGE) + expression[at + dice.randint(0, 3) :]


def test_random_conditions(oracle: JsonLines) -> None:
    dice = Random(SEED)
    seen: Counter[str] = Counter()
    for _ in range(ROUNDS):
        asked = []
        for number in range(EXPRESSIONS):
            expression = model.text(model.condition(dice, dice.randint(0, 3)), dice)
            if number % 3 == 0:
                expression = damaged(dice, expression)
            asked.append({"sql": expression, "messages": [model.message(dice) for _ in range(MESSAGES)]})
        for each, theirs in zip(asked, oracle("judge", asked=asked), strict=True):
            ours: str | None = None
            reason = ""
            try:
                ours = verdicts(Sql(each["sql"]), each["messages"])
            except BadExpression as error:
                reason = str(error)
            if ours is None and theirs is not None and any(text in reason for text in STRICTER):
                seen["stricter"] += 1
                continue
            if theirs is None and ours is not None and "0." in each["sql"]:
                continue  # 0.0 is a number for us
            assert ours == theirs, (each, reason)
            seen.update(ours if ours is not None else ["refused"])
    assert min(seen[kind] for kind in ("T", "F", "U", "E", "refused", "stricter")) > 100, seen
