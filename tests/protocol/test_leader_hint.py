"""The end of a remark that names the leader."""

from __future__ import annotations

import pytest

from kappamq.errors import MaybeStored, NotAvailable, NotMaster, Retry, for_code
from kappamq.protocol.leader_hint import leader_of, not_known, speaks_of_leader, with_leader


@pytest.mark.parametrize("address", ["10.0.0.7:10911", "[2001:db8::1]:10911", "broker.example:1"])
def test_what_was_written_is_read(address: str) -> None:
    text = with_leader("this broker is not the master now", address)
    assert text == f"this broker is not the master now [leader {address}]"
    assert speaks_of_leader(text)
    assert leader_of(text) == address


@pytest.mark.parametrize(
    ("text", "speaks"),
    [
        (with_leader("not the master", None), True),
        ("", False),
        ("the disk is full", False),
        ("[leader 10.0.0.7:10911] was the leader", False),
        ("no [leader nowhere]", False),
        ("no [leader 10.0.0.7:123456]", False),
        ("no [leader a b:1]", False),
        (f"no [leader {'x' * 301}:1]", False),
    ],
)
def test_who_names_nobody(text: str, speaks: bool) -> None:
    assert speaks_of_leader(text) is speaks
    assert leader_of(text) is None


def test_code_14_of_a_node_without_the_role_has_a_class_of_its_own() -> None:
    error = for_code(14, with_leader("no", "10.0.0.7:1") + " ")
    assert isinstance(error, NotMaster)
    assert (error.leader, error.response_code, error.retry) == ("10.0.0.7:1", 14, Retry.AFTER_ROUTE_REFRESH)
    unknown = for_code(14, with_leader("no", None))
    assert isinstance(unknown, NotMaster)
    assert unknown.leader is None
    assert type(for_code(14, "the disk is full")) is NotAvailable
    assert type(for_code(1, with_leader("no", "10.0.0.7:1"))) is not NotMaster


def test_what_may_have_been_stored_is_no_refusal() -> None:
    for remark in (
        not_known("the disk is gone"),
        "broker b: " + not_known("the disk is gone"),
        with_leader(not_known("another broker leads"), "10.0.0.7:1"),  # of earlier releases
    ):
        error = for_code(14, remark)
        assert isinstance(error, MaybeStored)
        assert not isinstance(error, NotMaster)
        assert error.message == remark
    assert isinstance(for_code(14, MaybeStored.because("late").message), MaybeStored)
