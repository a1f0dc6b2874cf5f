"""What an answer with code 14 (SERVICE_NOT_AVAILABLE) says in its remark beside the text for people, which Java's clients log.

- A refusal of a node that is not the master: at the end stands `[leader 10.0.0.7:10911]`, or `[leader unknown]` while there is none. So
  a client knows that this node is well but nothing was stored, and where to go.
- The request was taken, and it is not known whether what it wanted stored is, or will be: `not known to be stored: ...`. It names no
  leader, since whoever reads that goes there as if nothing had been stored.
"""

from __future__ import annotations

import re
from typing import Final

UNKNOWN: Final = "unknown"
_NOT_KNOWN: Final = "not known to be stored: "
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


def not_known(why: str) -> str:
    """Return the remark for what may have been stored."""
    return _NOT_KNOWN + why


def speaks_of_not_known(remark: str) -> bool:
    return _NOT_KNOWN in remark
