"""Which messages a consumer wants, as predicates: SQL92 conditions on properties. (Tags: see protocol/records/tags.py.)

Pure, and loaded only when somebody uses such a condition.

    sql.py          text -> a compiled condition; the grammar
    words.py        text -> words, with their positions; what a wrong expression is told
    conditions.py   what the parts of an expression mean: checks at compile time, closures for every message
    numbers.py      texts as numbers, read as Java reads them
    bloom.py        what a Java broker wants to find in consumerFilter.json
"""

from __future__ import annotations

from typing import Final

LENGTH_MAX: Final = 16_384
"""Characters of an expression. Reading one this long takes tens of milliseconds."""
