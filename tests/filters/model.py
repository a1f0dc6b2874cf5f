"""Random filter expressions as trees, what they look like, and what they mean, spelled out as plainly as possible.

The meaning is written down a second time here, from the rules and not from the code: values carry their type and every rule
is looked up while a message is judged. tests/interop holds this and the code against Java's own evaluator.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

NAMES = ["a", "b", "c", "$d", "_e"]
TEXTS = ["x", "1", "", "true", "it's", "2.5", "abc", "TRUE"]
NUMBERS = [
    "1",
    "2",
    "0",
    "1.5",
    "2.0",
    "3000000000",
    "10",
    "1L",
    "2147483647",
    "2147483648",
    "9223372036854775807",
    ".5",
]
VALUES = [
    "1", "2", "x", "1.5", "true", "TRUE", "abc", "3000000000", "-1", "01", "+1", " 2", "NaN", "2.0", "it's", "2147483648",
    "Infinity", "-0.0", "0", "1e3", "0x1p1", "９", "-9223372036854775808",
]  # fmt: skip

Tree = tuple[Any, ...]
SEARCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH")


class Failed(Exception):
    """The message cannot be judged: it is not delivered."""


@dataclass(frozen=True)
class Typed:
    type: str  # int32 int64 double
    value: float


# -- making them -----------------------------------------------------------------------------------------------------------


def condition(dice: Random, depth: int) -> Tree:
    """A tree that compiles: operands stand only where they may."""
    kind = dice.randrange(12 if depth > 0 else 9)
    wanted = dice.random() < 0.6
    if kind in (0, 1):
        return ("order", dice.choice(["<", "<=", ">", ">="]), _number(dice), _number(dice))
    if kind in (2, 3):
        return ("equal", wanted, *_comparable(dice, depth))
    if kind == 4:
        return ("null", wanted, dice.choice([_value, lambda dice, depth: ("NULL",)])(dice, depth))
    if kind == 5:
        return ("in", wanted, ("property", dice.choice(NAMES)), dice.choices(TEXTS, k=dice.randint(1, 3)))
    if kind == 6:
        return ("search", wanted, dice.choice(SEARCHES), _value(dice, depth), dice.choice(TEXTS))
    if kind == 7:
        return ("between", wanted, _number(dice), *_bounds(dice, wanted))
    if kind == 8:
        return dice.choice([("property", dice.choice(NAMES)), ("boolean", wanted), ("NULL",)])
    if kind == 9:
        return ("not", condition(dice, depth - 1))
    parts = [condition(dice, depth - 1) for _ in range(dice.randint(2, 3))]
    return ("and" if kind == 10 else "or", *parts)


def _number(dice: Random) -> Tree:
    kind = dice.randrange(8)
    if kind < 4:
        return ("property", dice.choice(NAMES))
    number: Tree = ("number", dice.choice(NUMBERS))
    return number if kind < 7 else ("minus", dice.choice([number, ("property", dice.choice(NAMES)), ("text", "1")]))


def _bounds(dice: Random, checked: bool) -> tuple[Tree, Tree]:
    low, high = _number(dice), _number(dice)
    if checked and low[0] == high[0] == "number":
        low, high = sorted((low, high), key=lambda bound: float(bound[1].rstrip("L")))
    return low, high


def _value(dice: Random, depth: int) -> Tree:
    kind = dice.randrange(6)
    if kind < 3:
        return _number(dice)
    if kind == 3:
        return ("text", dice.choice(TEXTS))
    return condition(dice, depth - 1) if depth > 0 and kind == 4 else ("boolean", dice.random() < 0.5)


def _comparable(dice: Random, depth: int) -> tuple[Tree, Tree]:
    while True:
        left, right = _value(dice, depth), _value(dice, depth)
        if ("NULL",) not in (left, right) and not (left[0] == "boolean" and right[0] in ("number", "text")):
            return left, right


def message(dice: Random) -> dict[str, str]:
    return {name: dice.choice(VALUES) for name in NAMES if dice.random() < 0.7}


# -- writing them down -----------------------------------------------------------------------------------------------------


def text(tree: Tree, dice: Random) -> str:
    kind, *rest = tree
    if kind in ("property", "number"):
        return str(rest[0])
    if kind == "text":
        return _quoted(rest[0])
    if kind == "boolean":
        return _word(dice, "TRUE" if rest[0] else "FALSE")
    if kind == "NULL":
        return _word(dice, "NULL")
    if kind == "minus":
        return f"-{_operand(rest[0], dice)}"
    if kind == "not":
        return f"{_word(dice, 'NOT')} {_operand(rest[0], dice)}"
    if kind in ("and", "or"):
        return f"{_blank(dice)}{_word(dice, kind)}{_blank(dice)}".join(_operand(part, dice) for part in rest)
    if kind == "order":
        return f"{_operand(rest[1], dice)}{rest[0]}{_operand(rest[2], dice)}"
    if kind == "equal":
        return f"{_operand(rest[1], dice)} {'=' if rest[0] else '<>'} {_operand(rest[2], dice)}"
    no = "" if rest[0] else _word(dice, "NOT") + _blank(dice)
    if kind == "null":
        return f"{_operand(rest[1], dice)} {_word(dice, 'IS')} {no}{_word(dice, 'NULL')}"
    if kind == "in":
        return f"{_operand(rest[1], dice)} {no}{_word(dice, 'IN')} ({', '.join(map(_quoted, rest[2]))})"
    if kind == "search":
        return f"{_operand(rest[2], dice)} {no}{_word(dice, rest[1])} {_quoted(rest[3])}"
    low, high = _operand(rest[2], dice), _operand(rest[3], dice)
    return f"{_operand(rest[1], dice)} {no}{_word(dice, 'BETWEEN')} {low} {_word(dice, 'AND')} {high}"


def _operand(tree: Tree, dice: Random) -> str:
    written = text(tree, dice)
    return written if tree[0] in ("property", "number", "text", "boolean", "NULL") else f"({written})"


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _word(dice: Random, word: str) -> str:
    return dice.choice([word.upper(), word.lower(), word.capitalize()])


def _blank(dice: Random) -> str:
    return dice.choice([" ", "  ", "\n", "\t ", " /* or so */ ", " -- why\n"])


# -- judging by them -------------------------------------------------------------------------------------------------------


def judge(tree: Tree, properties: dict[str, str]) -> bool | None:
    """The tree as a condition. Raises Failed."""
    value = _evaluate(tree, properties)
    return False if isinstance(value, str) else value


def _evaluate(tree: Tree, properties: dict[str, str]) -> Any:
    kind, *rest = tree
    if kind == "property":
        return properties.get(rest[0])
    if kind == "NULL":
        return None
    if kind in ("text", "boolean"):
        return rest[0]
    if kind == "number":
        return _typed(rest[0])
    if kind == "minus":
        value = _evaluate(rest[0], properties)
        return Typed(value.type, -value.value) if isinstance(value, Typed) else None
    if kind == "not":
        value = judge(rest[0], properties)
        return None if value is None else not value
    if kind in ("and", "or"):
        unknown = False
        for part in rest:
            value = judge(part, properties)
            if value is (kind == "or"):
                return value
            unknown |= value is None
        return None if unknown else kind == "and"
    if kind == "order":
        return _order(rest[0], _evaluate(rest[1], properties), _evaluate(rest[2], properties))
    if kind == "equal":
        same = _same(_evaluate(rest[1], properties), _evaluate(rest[2], properties))
        return None if same is None else same is rest[0]
    if kind == "null":
        return (_evaluate(rest[1], properties) is None) is rest[0]
    if kind == "in":
        value = _evaluate(rest[1], properties)
        return None if value is None else (value in rest[2]) is rest[0]
    if kind == "search":
        return _search(rest, properties)
    signs = ("and", ">=", "<=") if rest[0] else ("or", "<", ">")
    return _evaluate(
        (signs[0], ("order", signs[1], rest[1], rest[2]), ("order", signs[2], rest[1], rest[3])), properties
    )


def _search(rest: list[Any], properties: dict[str, str]) -> bool:
    wanted, keyword, operand, part = rest
    if not part:
        return False
    value = _evaluate(operand, properties)
    if not isinstance(value, str):
        return False
    found = {"CONTAINS": part in value, "STARTSWITH": value.startswith(part), "ENDSWITH": value.endswith(part)}
    return found[keyword] is wanted


def _typed(text: str) -> Typed:
    if "." in text:
        return Typed("double", float(text))
    value = int(text.rstrip("L"))
    return Typed("int32" if value < 1 << 31 else "int64", value)


def _read(text: str, type: str) -> Typed:
    """A property as a number, for the values above: what Java makes of each of them."""
    whole = {"1": 1, "2": 2, "-1": -1, "01": 1, "+1": 1, "0": 0, "９": 9}
    long = {"3000000000": 3_000_000_000, "2147483648": 1 << 31, "-9223372036854775808": -(1 << 63)}
    decimal = {
        "1.5": 1.5, "NaN": float("nan"), "2.0": 2.0, "2.5": 2.5, "Infinity": float("inf"), "-0.0": -0.0, "1e3": 1000.0,
        "0x1p1": 2.0, " 2": 2.0,
    }  # fmt: skip
    if type == "double" and text != "９":
        known: dict[str, float] = {**whole, **long, **decimal}
    else:
        known = {**whole, **(long if type == "int64" else {})}
        known = {} if type == "double" else known
    if text not in known:
        raise Failed(text)
    return Typed(type, known[text])


def _order(sign: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        left, right = _read(left, "double"), _read(right, "double")
    elif isinstance(left, str):
        left = _read(left, right.type)
    elif isinstance(right, str):
        right = _read(right, left.type)
    if "double" in (left.type, right.type):
        left, right = _sortable(float(left.value)), _sortable(float(right.value))
    else:
        left, right = left.value, right.value
    return bool({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[sign])


def _sortable(value: float) -> tuple[bool, float, int]:
    if value != value:
        return (True, 0.0, 0)
    return (False, value, -1 if str(value) == "-0.0" else 0)


def _same(left: Any, right: Any) -> bool | None:
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    if isinstance(left, str):
        if isinstance(right, bool):
            return (left.lower() == "true") is right
        if isinstance(right, str):
            return left == right
        return _read(left, right.type).value == right.value
    if isinstance(left, bool):
        if isinstance(right, str):
            raise Failed(right)
        return left is right
    if isinstance(right, bool):
        return False
    if isinstance(right, str):
        right = _read(right, left.type)
    if "double" in (left.type, right.type):
        return float(left.value) == float(right.value)
    return bool(left.value == right.value)
