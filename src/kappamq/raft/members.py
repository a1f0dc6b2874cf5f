"""The members of a group: voters, and learners that become voters once they have caught up."""

from __future__ import annotations

from typing import NamedTuple


class MemberId(NamedTuple):
    """One incarnation of one member. `name` is its place in the group, `incarnation` identifies its disk.

    A member that has lost its vote or its log, or whose log another broker has written to, comes back under the same name with a larger
    incarnation. The group treats it as a stranger: promises of the old one do not bind it, so its votes and reports must not count.
    """

    name: str
    incarnation: int

    def __str__(self) -> str:
        return self.name if self.incarnation == 1 else f"{self.name}#{self.incarnation}"


NOBODY: frozenset[MemberId] = frozenset()


class Members(NamedTuple):
    """The members as named by one term record. Consecutive lists differ in at most one voter: only then does any majority of the old list
    share a member with any majority of the new one, and only then may a list take effect as soon as it is written."""

    voters: frozenset[MemberId] = NOBODY
    learners: frozenset[MemberId] = NOBODY

    @property
    def all(self) -> frozenset[MemberId]:
        return self.voters | self.learners

    def named(self, name: str) -> MemberId | None:
        return next((member for member in self.all if member.name == name), None)

    def with_learner(self, member: MemberId) -> Members:
        return Members(self.voters, self.learners | {member})

    def promoted(self, member: MemberId) -> Members:
        return Members(self.voters | {member}, self.learners - {member})

    def without(self, member: MemberId) -> Members:
        return Members(self.voters - {member}, self.learners - {member})

    def is_one_step_from(self, other: Members) -> bool:
        return len(self.voters ^ other.voters) <= 1
