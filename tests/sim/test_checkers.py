"""Each checker sees what it is there for; that together they see enough is shown by test_mutants.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kappamq.raft import Ballot, MemberId, Role
from kappamq.raft.messages import PreVoteAnswer, Vote, VoteAnswer
from kappamq.sim.broker import Broker
from kappamq.sim.checkers import Checker, Violation
from kappamq.sim.cluster import Cluster
from kappamq.sim.disk import piece_after
from kappamq.sim.settings import Faults
from kappamq.sim.world import World


@pytest.fixture
def cluster() -> Cluster:
    """A group that is well and has something confirmed."""
    cluster = Cluster(World(3), replace(Faults(), appends=20.0))
    cluster.world.run_until(3000)
    assert cluster.checker.confirmed_end > 20
    return cluster


@pytest.fixture
def leader(cluster: Cluster) -> Broker:
    assert cluster.leader is not None
    return cluster.leader


def other(cluster: Cluster) -> Broker:
    return next(broker for broker in cluster.brokers.values() if broker is not cluster.leader)


def test_two_votes_and_two_leaders_in_a_term(cluster: Cluster, leader: Broker) -> None:
    checker, follower = cluster.checker, other(cluster)
    checker.said(follower, VoteAnswer(follower.me, MemberId("X", 1), 90, True))
    with pytest.raises(Violation, match="votes for Y in term 90, after it voted for X"):
        checker.said(follower, VoteAnswer(follower.me, MemberId("Y", 1), 90, True))
    with pytest.raises(Violation, match="in term 90, after it voted for X"):
        checker.said(follower, Vote(follower.me, leader.me, 90, 1, 1, False))
    with pytest.raises(Violation, match="two leaders in term"):
        checker.role_changed(follower, Role.LEADER, leader.node.term)


def test_who_stands_without_having_asked(cluster: Cluster) -> None:
    follower = other(cluster)
    with pytest.raises(Violation, match="nobody said it could win"):
        cluster.checker.role_changed(follower, Role.CANDIDATE, 90)
    third = next(broker for broker in cluster.brokers.values() if broker not in (follower, cluster.leader))
    cluster.checker.said(third, PreVoteAnswer(third.me, follower.me, 90, True))
    cluster.checker.role_changed(follower, Role.CANDIDATE, 90)


def test_a_leader_that_lacks_something(cluster: Cluster) -> None:
    follower = other(cluster)
    follower.disk.shorten(follower.disk.ends[1])
    with pytest.raises(Violation, match="lacks what is confirmed"):
        cluster.checker.role_changed(follower, Role.LEADER, 90)


def test_a_forgotten_vote(cluster: Cluster) -> None:
    follower = other(cluster)
    follower.crash()
    term = follower.disk.ballot.term
    follower.disk.ballot = Ballot(term, MemberId("Y", 1))
    with pytest.raises(Violation, match="has forgotten its vote"):
        cluster.checker.started(follower)
    follower.disk.ballot = Ballot(0, None)
    with pytest.raises(Violation, match="has spoken in term"):
        cluster.checker.started(follower)


def test_a_log_that_ends_before_what_was_confirmed(cluster: Cluster) -> None:
    follower = other(cluster)
    follower.crash()
    follower.disk.confirmed = follower.disk.end + 1
    with pytest.raises(Violation, match="it was confirmed up to"):
        cluster.checker.started(follower)


def test_other_bytes_at_the_same_place(cluster: Cluster, leader: Broker) -> None:
    piece = leader.disk.pieces[-1]
    with pytest.raises(Violation, match="than somebody else"):
        cluster.checker.written(other(cluster), piece._replace(chain=5))


def test_more_confirmed_than_there_is(cluster: Cluster, leader: Broker) -> None:
    checker = cluster.checker
    with pytest.raises(Violation, match="shows its log up to"):
        checker.shown(leader, checker.confirmed_end + 1)
    with pytest.raises(Violation, match="follows, and has more confirmed"):
        checker.confirmed(other(cluster), checker.confirmed_end + 1)
    disk = leader.disk
    disk.append(piece_after(disk.end, 3, leader.node.term - 1, disk.chain, 1))
    with pytest.raises(Violation, match="the bytes before that are of term"):
        checker.confirmed(leader, disk.end)
    disk.append(piece_after(disk.end, 3, leader.node.term, disk.chain, 1))
    with pytest.raises(Violation, match="only 0 of 3 voters have that on disk"):
        checker.confirmed(leader, disk.end)


def test_what_is_not_healed(cluster: Cluster, leader: Broker) -> None:
    checker, brokers = cluster.checker, list(cluster.brokers.values())
    assert checker.is_healed(None, brokers) == "no leader is ready"
    assert "are members and are gone" in checker.is_healed(leader, [leader])
    cluster.heal()
    follower = other(cluster)
    follower.disk.pieces[-1] = follower.disk.pieces[-1]._replace(chain=5)
    assert "have different logs" in checker.is_healed(cluster.leader, brokers)
    follower.crash()
    assert checker.is_healed(cluster.leader, brokers) == f"{follower.me} is starting"


def test_a_checker_begins_with_an_empty_log() -> None:
    assert Checker().confirmed_by_end == {0: 0}
