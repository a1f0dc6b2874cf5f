from __future__ import annotations

from kappamq.client.admin.standing import caution, leading, standing

LEADER = {
    "kappamqRaftMember": "n0#2",
    "kappamqRaftRole": "leader",
    "kappamqRaftVoters": "['n0#2', 'n1']",
    "kappamqRaftLearners": "['n3']",
}


def test_what_a_leader_says() -> None:
    assert standing({"kappamqKernel": "native"}) is None
    leader = standing(LEADER)
    assert leader is not None
    assert (leader.member, leader.leads, leader.voters, leader.learners) == ("n0", True, ("n0", "n1"), ("n3",))
    assert [leader.of(name) for name in ("n0", "n1", "n2", "n3")] == ["voter", "voter", "removed", "learner"]


def test_of_two_that_say_they_lead_the_later_one_does() -> None:
    deposed, leader = (standing({**LEADER, "kappamqRaftTerm": term}) for term in ("9", "10"))
    follower = standing({**LEADER, "kappamqRaftRole": "follower", "kappamqRaftTerm": "11"})
    assert deposed is not None
    assert leader is not None
    assert follower is not None
    assert leading(None, follower) is None
    for known, told in ((deposed, leader), (leader, deposed), (None, leader), (leader, follower)):
        assert leading(known, told) is leader


def test_a_member_that_waits_for_its_group() -> None:
    waiting = standing({"kappamqRaftMember": "n1", "kappamqRaftState": "waits for the other members"})
    assert waiting is not None
    assert (waiting.leads, waiting.voters) == (False, ())


def test_few_voters() -> None:
    assert caution(["n0", "n1", "n2"]) is None
    assert caution(["n0", "n1"]) == "2 voters (n0, n1): the loss of one stops the group"
    assert "1 voter (n0)" in (caution(["n0"]) or "")


def test_what_no_broker_of_ours_says_harms_nobody() -> None:
    """A command asks all brokers, and one that says nonsense must not keep the others' answers from being shown."""
    odd = standing({**LEADER, "kappamqRaftTerm": "9" * 5000, "kappamqRaftVoters": "'" + "a" * 200_000})
    assert odd is not None
    assert (odd.term, odd.voters) == (0, ())
