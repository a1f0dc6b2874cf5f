"""The standing of the members of a Raft group, from the runtime information of its brokers: one view for all commands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

VOTER: Final = "voter"
LEARNER: Final = "learner"
REMOVED: Final = "removed"
SAFE_VOTERS: Final = 3
"""With fewer voters the loss of one stops the group."""
_LEADER: Final = "leader"
_DIGITS_MAX: Final = 19  # of 63 bits
_NAME: Final = re.compile(r"'([^'#]+)(?:#[^']*)?'")  # ['n0', 'n1#2']: without the incarnation


@dataclass(frozen=True, slots=True)
class Standing:
    """What one member reports about itself and its group."""

    member: str
    leads: bool
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    term: int = 0

    def of(self, member: str) -> str:
        """Return the standing of another member, as this one, which should be the leader, sees it."""
        return VOTER if member in self.voters else LEARNER if member in self.learners else REMOVED


def standing(table: Mapping[str, str]) -> Standing | None:
    """Return None if that broker does not belong to a Raft group."""
    member = table.get("kappamqRaftMember")
    if not member:
        return None
    return Standing(
        member.partition("#")[0],
        table.get("kappamqRaftRole") == _LEADER,
        tuple(_NAME.findall(table.get("kappamqRaftVoters", ""))),
        tuple(_NAME.findall(table.get("kappamqRaftLearners", ""))),
        number(table.get("kappamqRaftTerm", "")) or 0,
    )


def number(text: str) -> int | None:
    """A number that a broker tells as text; None if it is none."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS_MAX else None


def leading(known: Standing | None, told: Standing) -> Standing | None:
    """Return the leader, given one more report: a deposed leader that has not noticed still claims to lead."""
    return told if told.leads and (known is None or told.term > known.term) else known


def caution(voters: tuple[str, ...] | list[str]) -> str | None:
    """Return a warning about a group with this few voters; None if it survives the loss of one."""
    if len(voters) >= SAFE_VOTERS:
        return None
    names = ", ".join(voters)
    if len(voters) == 1:
        return f"1 voter ({names}): its loss stops the group, and there is no other copy that counts"
    return f"{len(voters)} voters ({names}): the loss of one stops the group"
