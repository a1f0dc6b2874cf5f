"""Who may follow whom, and what the others hear."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kappamq.replication.frames import BadStream
from kappamq.replication.greeting import Hello, MemberHello, Refusal, Welcome, check, check_member, is_proof, proof

MASTER = Hello(
    cluster="c", name="b", broker_id=0, address="h:1", segment_bytes=1 << 20, delay_levels="1s 5s", log_min=0, end=5000, crc=7,
    nonce="",
)  # fmt: skip
SLAVE = replace(MASTER, broker_id=1, address="h:2", end=4000)


def test_a_copy_of_the_same_group_may_follow() -> None:
    check(SLAVE, MASTER)
    check(replace(SLAVE, end=MASTER.end), MASTER)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"cluster": "other"}, "other/b cannot follow c/b"),
        ({"name": "x"}, "c/x cannot follow c/b"),
        ({"broker_id": 0}, "have the id 0"),
        ({"segment_bytes": 4096}, "4096 bytes, the master's 1048576"),
        ({"delay_levels": "1s"}, "delay levels are '1s', the master's '1s 5s'"),
        ({"end": 5001}, "the master has lost messages.*store cut --to 5000"),
    ],
)
def test_others_are_refused_with_both_values(change: dict[str, Any], text: str) -> None:
    with pytest.raises(Refusal, match=text):
        check(replace(SLAVE, **change), MASTER)


def test_greetings_go_over_and_come_back() -> None:
    assert Hello.of(SLAVE.values()) == SLAVE
    assert Hello.of(SLAVE.values() | {"later": "version"}) == SLAVE
    welcome = Welcome(broker_id=0, address="h:1", term=3, start=10, end=20, reports="written")
    assert Welcome.of(welcome.values()) == welcome


@pytest.mark.parametrize(
    "change", [{"end": -1}, {"end": "5"}, {"end": True}, {"end": 1 << 62}, {"name": 5}, {"cluster": None}]
)
def test_greetings_that_make_no_sense_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadStream, match=next(iter(change))):
        Hello.of(SLAVE.values() | change)


@pytest.mark.parametrize(
    "change",
    [
        {"address": "\ud800:1"},
        {"address": "10.0.0.1"},
        {"address": "10.0.0.1:1\n2026-11-19 06:00:00,000 ERROR   a forged line:1"},
        {"address": "x" * 300 + ":1"},
        {"nonce": "0" * 301},
        {"cluster": "\udfff"},
        {"delay_levels": "1s " * 2000},
        {"delay_levels": "é" * 2049},
    ],
)
def test_texts_that_nobody_could_show_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadStream, match=next(iter(change))) as refused:
        Hello.of(SLAVE.values() | change)
    assert len(str(refused.value)) < 200
    str(refused.value).encode()


def test_texts_may_be_as_long_as_groups_are_large() -> None:
    long = SLAVE.values() | {"delay_levels": "é" * 2048, "address": ("x" * 49 + ".") * 5 + "x:1", "nonce": "0" * 300}
    assert Hello.of(long).values() == long
    assert Hello.of(SLAVE.values() | {"address": ""}).address == ""


def test_a_greeting_must_be_whole() -> None:
    values = SLAVE.values()
    del values["segment_bytes"]
    with pytest.raises(BadStream, match="without segment_bytes"):
        Hello.of(values)


def test_a_proof_fits_one_secret_one_side_and_these_nonces() -> None:
    given = proof("secret", "follower", "a", "b")
    assert is_proof(given, "secret", "follower", "a", "b")
    for wrong in (("other", "follower", "a", "b"), ("secret", "leader", "a", "b"), ("secret", "follower", "b", "a")):
        assert not is_proof(given, *wrong)
    assert not is_proof(None, "secret", "follower", "a", "b")
    assert not is_proof("\ud800", "secret", "follower", "a", "\ud800"), "what is no text at all"
    assert not is_proof("é", "secret", "follower", "a", "b")


def test_founders_are_told_of_the_same_members_and_later_ones_need_not_be() -> None:
    founder = MemberHello(
        cluster="c", name="b", group="g", members="n0,n1,n2", member="n0", address="h:1", segment_bytes=1, delay_levels="1s",
        term=0, end=0, group_id="",
    )  # fmt: skip
    other = replace(founder, member="n1", members="n0,n1,n3")
    with pytest.raises(Refusal, match="dLegerPeers must be the same on all members that found a group"):
        check_member(other, founder)
    with pytest.raises(Refusal, match="dLegerPeers"):
        check_member(other, replace(founder, group_id="g:1"))  # it might found another group with the rest of its list
    check_member(other, replace(founder, group_id="g:1", term=1))
    check_member(replace(other, group_id="g:1", end=5), replace(founder, group_id="g:1"))


@pytest.mark.parametrize("name", ["", "a b", "\x1b[31m", "n" * 65])
def test_a_member_has_a_name_that_members_can_have(name: str) -> None:
    ours = MemberHello(
        cluster="c", name="b", group="g", members="n0,n1,n2", member="n0", address="h:1", segment_bytes=1, delay_levels="1s",
        term=0, end=0, group_id="",
    )  # fmt: skip
    with pytest.raises(Refusal, match="dLegerSelfId is not one that a member can have"):
        check_member(replace(ours, member=name), ours)


def test_a_member_that_is_known_stays_as_it_is() -> None:
    hello = MemberHello(
        cluster="c", name="b", group="g", members="n0", member="n0", address="h:1", segment_bytes=1, delay_levels="1s",
        term=0, end=0, group_id="",
    )  # fmt: skip
    known = hello.of_incarnation(5)
    assert known == replace(hello, incarnation=5)
    assert known.of_incarnation(5) is known
