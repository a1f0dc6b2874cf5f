"""How an answer with code 14 (SERVICE_NOT_AVAILABLE) names the node that is the master now.

The remark is text for people, and Java's clients log it. At its end stands `[leader 10.0.0.7:10911]`, or `[leader unknown]` while
there is none: so a client knows that this node is well but not the master, and where to go.
"""

from __future__ import annotations

import re
from typing import Final

UNKNOWN: Final = "unknown"
_HINT: Final = re.compile(r"\[leader (?:(?P<address>[^\s]{1,300}:\d{1,5})|unknown)\]\s*$")


def with_leader(text: str, leader: str | None) -> str:
    """Return the remark with the address of the leader, or that it is unknown."""
    return f"{text} [leader {leader or UNKNOWN}]"


def speaks_of_leader(remark: str) -> bool:
    return _HINT.search(remark) is not None


def leader_of(remark: str) -> str | None:
    """Return the address of the leader that a remark names."""
    found = _HINT.search(remark)
    return found["address"] if found is not None else None
