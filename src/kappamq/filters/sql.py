"""SQL92 conditions on message properties: `price > 10 AND region IN ('eu', 'us')`.

    or-expression    and-expression { OR and-expression }
    and-expression   equality { AND equality }
    equality         comparison { ('=' | '<>') comparison | IS [NOT] NULL }
    comparison       unary { ('>' | '>=' | '<' | '<=') unary | [NOT] BETWEEN unary AND unary
                           | [NOT] IN '(' text { ',' text } ')' | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text }
    unary            ('+' | '-' | NOT) unary | '(' or-expression ')' | literal | property

RocketMQ's grammar and meaning, with one exception: it ignores whatever follows a complete expression, so that
`a LIKE 'x%'` means just `a`. Here that is an error, as is everything else that cannot be understood.
"""

from __future__ import annotations

from typing import Final

from kappamq.filters import conditions
from kappamq.filters.conditions import Get, Kind, Mismatch, Operand
from kappamq.filters.numbers import INT32_MAX, INT64_MAX
from kappamq.filters.words import BadExpression, Sort, Word, Words

DEPTH_MAX: Final = 100
"""Parentheses within parentheses, and whatever else stands one in another."""
_OR, _AND, _EQUALITY, _COMPARISON = 1, 2, 3, 4
_LEVELS: Final = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys(("=", "<>", "IS"), _EQUALITY),
    **dict.fromkeys((">", ">=", "<", "<=", "BETWEEN", "IN", "CONTAINS", "STARTSWITH", "ENDSWITH", "NOT"), _COMPARISON),
}


class Sql:
    """A compiled expression; safe to share."""

    __slots__ = ("_evaluate", "names", "size", "text")

    def __init__(self, text: str) -> None:
        """Raises BadExpression, which says where and why."""
        self.text = text
        parser = _Parser(text)
        self._evaluate, self.size = parser.whole()  # size: how many conditions there are, about a microsecond each
        self.names = tuple(parser.names)  # the properties that it asks for

    def evaluate(self, get: Get) -> bool | None:
        """True, False, or None for unknown. Raises ValueError where a property is not the number it is compared with."""
        return self._evaluate(get)

    def matches(self, get: Get) -> bool:
        """Whether a message is wanted: only if the expression is true of it for certain."""
        try:
            return self._evaluate(get) is True
        except ValueError:
            return False

    def __repr__(self) -> str:
        return f"Sql({self.text!r})"


class _Parser:
    def __init__(self, text: str) -> None:
        self._words = Words(text)
        self._depth = 0
        self.names: dict[str, None] = {}

    def whole(self) -> tuple[conditions.Condition, int]:
        words = self._words
        try:
            operand = self._expression(_OR)
            evaluate = conditions.truth(operand)
        except Mismatch as error:
            raise words.wrong(str(error), error.position) from None
        # At the end `--` begins a comment even if no line break follows.
        if words.current.sort is not Sort.END and not words.text.startswith("--", words.current.position):
            raise words.wrong(f"the expression is complete, but {words.current} follows")
        return evaluate, 1 + operand.size

    # -- operators ---------------------------------------------------------------------------------------------------------

    def _expression(self, level: int) -> Operand:
        """Everything that binds as closely as `level`, or closer."""
        left = self._unary()
        ceiling = _COMPARISON
        while level <= (found := self._operator()) <= ceiling:
            ceiling = found  # `a IS NULL` is no part of a comparison, though `a > 1` is one of `a > 1 IS NULL`
            if found in (_OR, _AND):
                left = self._joined(left, found)
            elif found == _EQUALITY:
                left = self._equality(left)
            else:
                left = self._comparison(left)
            if left.depth > DEPTH_MAX:
                raise self._words.wrong(f"more than {DEPTH_MAX} conditions stand one in another", left.position)
        return left

    def _operator(self) -> int:
        word = self._words.current
        return _LEVELS.get(word.text, 0) if word.sort in (Sort.KEYWORD, Sort.SIGN) else 0

    def _joined(self, left: Operand, level: int) -> Operand:
        """AND and OR: all of a row at once, for there may be thousands."""
        keyword = "AND" if level == _AND else "OR"
        operands = [left]
        while self._is(keyword):
            self._words.advance()
            operands.append(self._expression(level + 1))
        return conditions.all_of(operands) if level == _AND else conditions.any_of(operands)

    def _equality(self, left: Operand) -> Operand:
        sign = self._words.advance()
        if sign.text == "IS":
            opposite = self._take_if("NOT")
            self._expect("NULL", "IS asks for NULL or NOT NULL")
            result = conditions.is_null(left)
        else:
            opposite = sign.text == "<>"
            result = conditions.equal(left, self._expression(_COMPARISON))
        return conditions.negation(result) if opposite else result

    def _comparison(self, left: Operand) -> Operand:
        words = self._words
        first = words.advance()
        if first.sort is Sort.SIGN:
            return conditions.ordered(left, first.text, self._unary())
        wanted = first.text != "NOT"
        keyword = first
        if not wanted:
            keyword = words.current
            if keyword.sort is not Sort.KEYWORD or _LEVELS.get(keyword.text) != _COMPARISON or keyword.text == "NOT":
                raise words.wrong(
                    f"NOT stands before BETWEEN, IN, CONTAINS, STARTSWITH, ENDSWITH or a condition, not before {keyword}"
                )
            words.advance()
        if keyword.text == "BETWEEN":
            low = self._unary()
            self._expect("AND", "BETWEEN needs two bounds with AND in the middle")
            high = self._unary()
            return conditions.between(left, low, high) if wanted else conditions.not_between(left, low, high)
        if keyword.text == "IN":
            return conditions.among(left, self._list(), wanted)
        return conditions.search(
            left, keyword.text, self._text(f"{keyword.text} needs a text in single quotes"), wanted
        )

    def _list(self) -> frozenset[str]:
        reason = "IN needs a list of texts, such as ('a', 'b')"
        self._expect("(", reason)
        texts = {self._text(reason)}
        while self._take_if(","):
            texts.add(self._text(reason))
        self._expect(")", reason)
        return frozenset(texts)

    # -- operands ----------------------------------------------------------------------------------------------------------

    def _unary(self) -> Operand:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._words.wrong(f"more than {DEPTH_MAX} conditions stand one in another")
        word = self._words.current
        if word.sort is Sort.SIGN and word.text in ("+", "-"):
            self._words.advance()
            operand = self._unary()
            operand = conditions.minus(operand, word.position) if word.text == "-" else operand
        elif word.sort is Sort.KEYWORD and word.text == "NOT":
            self._words.advance()
            operand = conditions.negation(self._unary())
        elif word.sort is Sort.SIGN and word.text == "(":
            self._words.advance()
            operand = self._expression(_OR)
            self._expect(")", "this parenthesis is not closed", word.position)
        else:
            operand = self._literal(word)
        self._depth -= 1
        return operand

    def _literal(self, word: Word) -> Operand:
        at = word.position
        if word.sort is Sort.NAME:
            operand = Operand(Kind.PROPERTY, at, word.text)
            self.names[word.text] = None
        elif word.sort is Sort.TEXT:
            operand = Operand(Kind.TEXT, at, word.text)
        elif word.sort is Sort.INTEGER:
            operand = self._integer(word)
        elif word.sort is Sort.DECIMAL:
            operand = self._decimal(word)
        elif word.text in ("TRUE", "FALSE"):
            operand = Operand(Kind.BOOLEAN, at, word.text == "TRUE")
        elif word.text == "NULL":
            operand = Operand(Kind.NULL, at)
        else:
            raise self._words.wrong(f"a property, a value or a condition is missing before {word}")
        self._words.advance()
        return operand

    def _integer(self, word: Word) -> Operand:
        digits = word.text.rstrip("lL")
        value = int(digits) if len(digits) <= 19 else INT64_MAX + 1
        if value > INT64_MAX:
            raise self._words.wrong(f"{word} is larger than {INT64_MAX}")
        return Operand(Kind.INT32 if value <= INT32_MAX else Kind.INT64, word.position, value)

    def _decimal(self, word: Word) -> Operand:
        value = float(word.text)
        if value == float("inf"):
            raise self._words.wrong(f"{word} is larger than any number")
        if value == 0 and word.text.lower().partition("e")[0].strip("0."):
            raise self._words.wrong(f"{word} is smaller than any number but 0")
        return Operand(Kind.DOUBLE, word.position, value)

    # -- words -------------------------------------------------------------------------------------------------------------

    def _is(self, text: str) -> bool:
        word = self._words.current
        return word.text == text and word.sort in (Sort.KEYWORD, Sort.SIGN)

    def _take_if(self, text: str) -> bool:
        if not self._is(text):
            return False
        self._words.advance()
        return True

    def _expect(self, text: str, reason: str, position: int | None = None) -> None:
        if not self._take_if(text):
            raise self._words.wrong(f"{reason}; {text} is missing before {self._words.current}", position)

    def _text(self, reason: str) -> str:
        word = self._words.current
        if word.sort is not Sort.TEXT:
            raise self._words.wrong(f"{reason}, not {word}")
        self._words.advance()
        return word.text


__all__ = ["DEPTH_MAX", "BadExpression", "Sql"]
