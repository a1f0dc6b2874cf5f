"""What the parts of an expression mean.

Properties are texts, so what will be compared with what is known when an expression is compiled. Each function here checks
that it makes sense and returns a closure that is called for every message. Such a closure answers as SQL does: True, False or
None for unknown; it raises ValueError where a text is not the number it is compared with. Odd rules are RocketMQ's, and kept.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kappamq.filters import numbers

Get = Callable[[str], str | None]
"""The value of a property by its name, None if the message has no such property."""
Condition = Callable[[Get], bool | None]


class Kind(Enum):
    PROPERTY = "a property"
    TEXT = "a text"
    INT32 = "an integer"
    INT64 = "a long integer"
    DOUBLE = "a decimal number"
    BOOLEAN = "TRUE or FALSE"
    NULL = "NULL"
    CONDITION = "a condition"
    NOTHING = "a value that is always unknown"  # minus something that is no number


NUMBERS: Final = frozenset({Kind.INT32, Kind.INT64, Kind.DOUBLE})
TEXTS: Final = frozenset({Kind.PROPERTY, Kind.TEXT})
_READ: Final[dict[Kind, Callable[[str], Any]]] = {
    Kind.INT32: numbers.int32,
    Kind.INT64: numbers.int64,
    Kind.DOUBLE: numbers.double,
}
_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_MIRRORED: Final = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


@dataclass(frozen=True, slots=True)
class Operand:
    """A part of an expression: its value where that is fixed, the name of a property, or how it is found out."""

    kind: Kind
    position: int
    value: Any = None
    condition: Condition | None = None
    negated: bool = False  # -5 is not written down as such, and not judged when bounds are compared
    depth: int = 0
    size: int = 0  # how many conditions it takes to find it out

    def reader(self) -> Callable[[Get], Any]:
        if self.kind is Kind.PROPERTY:
            name = self.value
            return lambda get: get(name)
        if self.condition is not None:
            return self.condition
        value = self.value
        return lambda get: value


class Mismatch(Exception):
    """Two parts that cannot stand together; `position` is that of the one to blame."""

    def __init__(self, reason: str, operand: Operand) -> None:
        super().__init__(reason)
        self.position = operand.position


def condition(operand: Operand, condition: Condition, *others: Operand) -> Operand:
    """A condition that is built on operands and stands where the first of them does."""
    depth = 1 + max([operand.depth, *(other.depth for other in others)])
    size = 1 + operand.size + sum(other.size for other in others)
    return Operand(Kind.CONDITION, operand.position, condition=condition, depth=depth, size=size)


def truth(operand: Operand) -> Condition:
    """The operand where a condition is wanted."""
    if operand.kind is Kind.CONDITION and operand.condition is not None:
        return operand.condition
    if operand.kind is Kind.PROPERTY:
        name = operand.value
        return lambda get: None if get(name) is None else False  # a text is not TRUE
    if operand.kind in (Kind.BOOLEAN, Kind.NULL):
        value = operand.value
        return lambda get: value
    raise Mismatch(f"{operand.kind.value} is no condition that can be true or false", operand)


# -- logic -----------------------------------------------------------------------------------------------------------------


def all_of(operands: Sequence[Operand]) -> Operand:
    parts = [truth(operand) for operand in operands]

    def evaluate(get: Get) -> bool | None:
        result: bool | None = True
        for part in parts:
            value = part(get)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return condition(operands[0], evaluate, *operands[1:])


def any_of(operands: Sequence[Operand]) -> Operand:
    parts = [truth(operand) for operand in operands]

    def evaluate(get: Get) -> bool | None:
        result: bool | None = False
        for part in parts:
            value = part(get)
            if value:
                return True
            if value is None:
                result = None
        return result

    return condition(operands[0], evaluate, *operands[1:])


def negation(operand: Operand) -> Operand:
    inner = truth(operand)

    def evaluate(get: Get) -> bool | None:
        value = inner(get)
        return None if value is None else not value

    return condition(operand, evaluate)


def minus(operand: Operand, position: int) -> Operand:
    if operand.kind in NUMBERS:
        return Operand(operand.kind, position, -operand.value, negated=True, depth=operand.depth)
    # Properties are texts, and there is no minus of a text, even if it looks like a number.
    read = operand.reader()

    def nothing(get: Get) -> None:
        read(get)  # a condition in there may fail for a message, and then all of it does

    return Operand(Kind.NOTHING, position, condition=nothing, depth=operand.depth + 1, size=operand.size)


# -- comparing -------------------------------------------------------------------------------------------------------------


def equal(left: Operand, right: Operand) -> Operand:
    for operand in (left, right):
        if operand.kind is Kind.NULL:
            raise Mismatch("nothing equals NULL: ask with IS NULL or IS NOT NULL", operand)
    if left.kind is Kind.BOOLEAN and not right.negated and (right.kind in NUMBERS or right.kind is Kind.TEXT):
        raise Mismatch(f"{right.kind.value} cannot equal TRUE or FALSE", right)
    if left.kind is Kind.PROPERTY and (right.kind is Kind.TEXT or right.kind in NUMBERS):
        return condition(left, _property_equals(left.value, right))
    read_left, read_right, same = left.reader(), right.reader(), _sameness(left.kind, right.kind)

    def evaluate(get: Get) -> bool | None:
        one, other = read_left(get), read_right(get)
        # Not SQL's rule, but RocketMQ's: an unknown value on the right is just different.
        if one is None:
            return True if other is None else None
        return False if other is None else same(one, other)

    return condition(left, evaluate, right)


def _property_equals(name: str, right: Operand) -> Condition:
    wanted = right.value
    if right.kind is Kind.TEXT:

        def equals_text(get: Get) -> bool | None:
            text = get(name)
            return None if text is None else text == wanted

        return equals_text
    read = _READ[right.kind]

    def equals_number(get: Get) -> bool | None:
        text = get(name)
        return None if text is None else read(text) == wanted

    return equals_number


def _sameness(left: Kind, right: Kind) -> Callable[[Any, Any], bool]:
    """How values of these kinds are compared if there are any."""
    truths = (Kind.BOOLEAN, Kind.CONDITION)
    if left in TEXTS:
        if right in NUMBERS:
            read = _READ[right]
            return lambda one, other: bool(read(one) == other)
        if right in truths:
            return lambda one, other: (one.lower() == "true") is other
        return lambda one, other: one == other
    if left in truths:
        return _no_text_here if right in TEXTS else lambda one, other: one is other
    if right in TEXTS and left in NUMBERS:
        read = _READ[left]
        return lambda one, other: bool(one == read(other))
    if Kind.DOUBLE in (left, right) and right in NUMBERS:
        return lambda one, other: float(one) == float(other)
    return lambda one, other: one == other and type(one) is type(other)


def _no_text_here(one: Any, other: Any) -> bool:
    raise ValueError(f"{other!r} on the right of TRUE or FALSE")


def is_null(operand: Operand) -> Operand:
    read = operand.reader()
    return condition(operand, lambda get: read(get) is None)


def ordered(left: Operand, sign: str, right: Operand) -> Operand:
    """left > right, and the like: of numbers."""
    for operand in (left, right):
        if operand.kind not in NUMBERS and operand.kind not in (Kind.PROPERTY, Kind.NOTHING):
            raise Mismatch(f"{operand.kind.value} is neither larger nor smaller than anything ({sign})", operand)
    if Kind.NOTHING in (left.kind, right.kind):
        return condition(left, _unknown(left.reader(), right.reader()), right)
    compare = _ORDERS[sign]
    if left.kind is Kind.PROPERTY and right.kind is Kind.PROPERTY:
        return condition(left, _two_properties(left.value, compare, right.value), right)
    if left.kind is Kind.PROPERTY:
        return condition(left, _property_ordered(left.value, sign, right), right)
    if right.kind is Kind.PROPERTY:
        return condition(left, _property_ordered(right.value, _MIRRORED[sign], left), right)
    one, other = left.value, right.value
    if Kind.DOUBLE in (left.kind, right.kind):
        one, other = float(one), float(other)
    result = compare(one, other)
    return condition(left, lambda get: result, right)


def _unknown(read_left: Callable[[Get], Any], read_right: Callable[[Get], Any]) -> Condition:
    def evaluate(get: Get) -> None:
        if read_left(get) is not None:
            read_right(get)

    return evaluate


def _property_ordered(name: str, sign: str, number: Operand) -> Condition:
    compare, read, bound = _ORDERS[sign], _READ[number.kind], number.value
    if number.kind is not Kind.DOUBLE:

        def with_integer(get: Get) -> bool | None:
            text = get(name)
            return None if text is None else compare(read(text), bound)

        return with_integer
    for_nan = compare(1, 0)

    def with_double(get: Get) -> bool | None:
        text = get(name)
        if text is None:
            return None
        value = read(text)
        return compare(value, bound) if value == value else for_nan

    return with_double


def _two_properties(left: str, compare: Callable[[Any, Any], bool], right: str) -> Condition:
    def evaluate(get: Get) -> bool | None:
        one, other = get(left), get(right)
        if one is None or other is None:
            return None
        return compare(numbers.order(numbers.double(one), numbers.double(other)), 0)

    return evaluate


def between(operand: Operand, low: Operand, high: Operand) -> Operand:
    if low.kind in NUMBERS and high.kind in NUMBERS and not low.negated and not high.negated:
        bounds = (low.value, high.value)
        if Kind.DOUBLE in (low.kind, high.kind):
            bounds = (float(low.value), float(high.value))
        if bounds[0] > bounds[1]:
            raise Mismatch(f"nothing is BETWEEN {low.value} AND {high.value}: the smaller bound comes first", low)
    return all_of([ordered(operand, ">=", low), ordered(operand, "<=", high)])


def not_between(operand: Operand, low: Operand, high: Operand) -> Operand:
    return any_of([ordered(operand, "<", low), ordered(operand, ">", high)])


# -- texts -----------------------------------------------------------------------------------------------------------------


def among(operand: Operand, texts: frozenset[str], wanted: bool) -> Operand:
    if operand.kind is not Kind.PROPERTY:
        raise Mismatch(f"IN asks about a property, not about {operand.kind.value}", operand)
    name = operand.value

    def evaluate(get: Get) -> bool | None:
        text = get(name)
        return None if text is None else (text in texts) is wanted

    return condition(operand, evaluate)


_SEARCHES: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def search(operand: Operand, keyword: str, part: str, wanted: bool) -> Operand:
    """CONTAINS and its like. Where there is nothing to search in or for, the answer is no, even to NOT CONTAINS."""
    if not part:
        return condition(operand, lambda get: False)
    if operand.kind not in TEXTS:
        read = operand.reader()

        def never(get: Get) -> bool | None:
            read(get)  # it is found out all the same: a condition in there may fail for a message
            return False

        return condition(operand, never)
    read_text, found = operand.reader(), _SEARCHES[keyword]

    def evaluate(get: Get) -> bool | None:
        text = read_text(get)
        return text is not None and found(text, part) is wanted

    return condition(operand, evaluate)
