"""The message properties that are special or private, each declared once; everything else is generated from this table.

*Special*: the broker must act on it, so a message with it is not plain, and the kernel leaves it to Python.
*Private*: bookkeeping that a broker writes into a stored record. Pulled bytes contain it; columns, our client and the
command line do not show it.

`header()` is the text of property_names.h, the names for C; tests/native/test_property_names.py checks the file against it and
rewrites it if `KAPPAMQ_REWRITE=1` is in the environment.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Property(NamedTuple):
    name: str
    why: str
    private: bool = False


TAIL_CRC: Final = "__CRC32#"
BATCH_BYTES: Final = "__BATCH#"
HALF_SINCE: Final = "__HALF_MS#"
TRANSACTION_OUTCOME: Final = "__END#"

SPECIAL: Final = (
    Property("DELAY", "a delay level: the message waits before it is delivered"),
    Property("REAL_TOPIC", "the target of a parked message: a client must not choose it"),
    Property("REAL_QID", "the target queue of a parked message"),
    Property("TRAN_MSG", "a half message of a transaction"),
    Property("RECONSUME_TIME", "a consumer sends a message back: it counts deliveries"),
    Property("MAX_RECONSUME_TIMES", "a consumer sends a message back: it may go to the dead letters"),
    Property("MSG_REGION", "the broker writes it into every message"),
    Property("TRACE_ON", "the broker writes it into every message"),
    Property("CLUSTER", "the broker writes it into every message"),
    Property("INNER_NUM", "how many messages an inner batch holds"),
    Property("INNER_BASE", "the first queue offset of an inner batch"),
    Property("POP_CK", "only a broker may set it"),
    Property("INNER_MULTI_DISPATCH", "the message goes to several queues"),
    Property("INNER_MULTI_QUEUE_OFFSET", "the offsets of a message in several queues"),
    Property("TRAN_PREPARED_QUEUE_OFFSET", "a copy of a half message names its first place"),
    Property("TIMER_DELAY_SEC", "the message is delivered after a delay"),
    Property("TIMER_DELAY_MS", "the message is delivered after a delay"),
    Property("TIMER_DELIVER_MS", "the message is delivered at a time"),
    Property("TIMER_OUT_MS", "the broker writes it when it parks a timer"),
    Property("TIMER_ENQUEUE_MS", "the broker writes it when it delivers a timer"),
    Property("TIMER_DEQUEUE_MS", "the broker writes it when it delivers a timer"),
    Property("TIMER_ROLL_TIMES", "how often a timer was parked again"),
    Property("TIMER_DEL_UNIQKEY", "recalls a timer"),
    Property("TIMER_DELAY_LEVEL", "the delay level of a timer"),
    Property(TAIL_CRC, "the checksum of the record it stands in", private=True),
    Property(BATCH_BYTES, "on the first record of a batch: the bytes that the batch takes in the log", private=True),
    Property(HALF_SINCE, "on a copy of a half message: when the first one was stored", private=True),
    Property(TRANSACTION_OUTCOME, "on an op record: the result of the transaction", private=True),
)

SPECIAL_NAMES: Final = frozenset(one.name for one in SPECIAL)
PRIVATE_NAMES: Final = frozenset(one.name for one in SPECIAL if one.private)
assert len(SPECIAL_NAMES) == len(SPECIAL), "a property is declared twice"


def header() -> str:
    """The text of property_names.h."""
    lines = [
        "/* Generated from the table in property_names.py: edit that, then run",
        " * tests/native/test_property_names.py with KAPPAMQ_REWRITE=1. */",
        "#ifndef KAPPAMQ_PROPERTY_NAMES_H",
        "#define KAPPAMQ_PROPERTY_NAMES_H",
        "",
        "#include <stdbool.h>",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "#include <string.h>",
        "",
        f'#define TAIL_CRC_PROPERTY "{TAIL_CRC}"',
        f'#define BATCH_BYTES_PROPERTY "{BATCH_BYTES}"',
    ]
    lines += _function("is_special", "The broker has to act on it.", SPECIAL_NAMES)
    lines += _function("is_private", "Bookkeeping of the broker: not shown to readers.", PRIVATE_NAMES)
    return "\n".join([*lines, "", "#endif", ""])


def _function(name: str, comment: str, properties: frozenset[str]) -> list[str]:
    sizes: dict[int, list[str]] = {}
    for one in sorted(properties):
        sizes.setdefault(len(one), []).append(one)
    lines = ["", f"/* {comment} */", f"static inline bool {name}(const uint8_t *name, size_t size)", "{"]
    lines.append("    switch (size) {")
    for size in sorted(sizes):
        tests = " || ".join(f'memcmp(name, "{one}", {size}) == 0' for one in sizes[size])
        lines += [f"    case {size}:", f"        return {tests};"]
    return [*lines, "    }", "    return false;", "}"]
