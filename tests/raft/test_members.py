from kappamq.raft.members import MemberId, Members

A, B, C = (MemberId(name, 1) for name in "ABC")


def test_an_incarnation_is_a_stranger() -> None:
    again = MemberId("A", 2)
    members = Members(frozenset({A, B}))
    assert again not in members.all
    assert members.named("A") == A
    assert members.named("X") is None
    assert (str(A), str(again)) == ("A", "A#2")


def test_learner_then_voter_then_gone() -> None:
    members = Members(frozenset({A, B}))
    learning = members.with_learner(C)
    assert (learning.voters, learning.learners) == ({A, B}, {C})
    voting = learning.promoted(C)
    assert (voting.voters, voting.learners) == ({A, B, C}, frozenset())
    assert voting.without(A).all == {B, C}


def test_one_step_is_one_voter() -> None:
    members = Members(frozenset({A, B}))
    assert members.is_one_step_from(members)
    assert members.is_one_step_from(members.with_learner(C)), "learners have no vote"
    assert members.promoted(C).is_one_step_from(members)
    assert not members.promoted(C).without(A).is_one_step_from(members)
