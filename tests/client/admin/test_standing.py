from __future__ import annotations

from kappamq.client.admin.standing import caution, standing

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


def test_a_member_that_waits_for_its_group() -> None:
    waiting = standing({"kappamqRaftMember": "n1", "kappamqRaftState": "waits for the other members"})
    assert waiting is not None
    assert (waiting.leads, waiting.voters) == (False, ())


def test_few_voters() -> None:
    assert caution(["n0", "n1", "n2"]) is None
    assert caution(["n0", "n1"]) == "2 voters (n0, n1): the loss of one stops the group"
    assert "1 voter (n0)" in (caution(["n0"]) or "")
