"""Which messages a consumer wants, as predicates: SQL92 conditions on properties. (Tags: see protocol/tags.py.)

Pure, and loaded only when somebody uses such a condition.

    sql.py          text -> a compiled condition; the grammar
    words.py        text -> words, with their positions; what a wrong expression is told
    conditions.py   what the parts of an expression mean: checks at compile time, closures for every message
    numbers.py      texts as numbers, read as Java reads them
"""
