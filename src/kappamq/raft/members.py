"""The members of a group: voters, and learners that become voters once they have caught up."""

from __future__ import annotations

from typing import NamedTuple


class MemberId(NamedTuple):
    """One life of one member. `name` is its place in the group, `incarnation` its disk.

    A member that has lost its vote or its log, or whose log was written to by another broker, comes back under the same name with a larger
        incarnation. For the group that is a stranger: no promise of the old one binds it, so no vote and no report of it may count.
    """

    name: str
    incarnation: int

    def __str__(self) -> str:
        return self.name if self.incarnation == 1 else f"{self.name}#{self.incarnation}"


NOBODY: frozenset[MemberId] = frozenset()


class Members(NamedTuple):
    """The members as one term record names them. Two lists that follow each other differ in one voter at most: only then do any
    majority of the old and any majority of the new one share a member, and only then may a list count as soon as it is written."""

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
