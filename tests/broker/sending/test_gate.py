"""The gate: closed while there is any reason to be, told to the kernel, and strict with the broker's own records only at the end."""

from __future__ import annotations

import traceback
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.broker.sending.gate import CONGESTED, DISK_FULL, FAILED, FILES, NO_ROOM, NOT_MASTER, Gate, not_master
from kappamq.errors import Busy, KappaError, NotAvailable, NotMaster

REASONS = (DISK_FULL, NO_ROOM, FILES, CONGESTED, FAILED)


def refusal(gate: Gate, own: bool = False) -> KappaError | None:
    try:
        gate.check(own=own)
    except KappaError as error:
        return error
    return None


def test_a_new_gate_is_open_whatever_the_kernel_thought() -> None:
    kernel = SimpleNamespace(accepting=False)
    gate = Gate(kernel)
    assert kernel.accepting
    assert refusal(gate) is None
    assert gate.reasons == []


def test_a_reason_is_new_once_and_gone_once() -> None:
    gate = Gate(SimpleNamespace())
    assert gate.close(DISK_FULL, NotAvailable("91 %"))
    assert not gate.close(DISK_FULL, NotAvailable("92 %")), "the same reason, only with newer words"
    assert gate.reasons == ["disk full: 92 %"]
    with pytest.raises(NotAvailable, match="92 %"):
        gate.check()
    assert gate.open(DISK_FULL)
    assert not gate.open(DISK_FULL)
    assert refusal(gate) is None


def test_the_error_says_what_was_given() -> None:
    gate = Gate(SimpleNamespace())
    gate.close(CONGESTED, Busy("slow disk"))
    assert isinstance(refusal(gate), Busy)


def test_the_reason_that_stops_all_is_told_first() -> None:
    gate = Gate(SimpleNamespace())
    gate.close(DISK_FULL, NotAvailable("full"))
    assert refusal(gate, own=True) is None, "room was kept for the broker's own records"
    gate.close(FAILED, NotAvailable("failed"), for_all=True)
    assert str(refusal(gate)) == str(refusal(gate, own=True)) == "failed"


def test_a_node_that_may_not_write_says_so_before_anything_else() -> None:
    gate = Gate(SimpleNamespace())
    gate.close(FAILED, NotAvailable("failed"), for_all=True)
    gate.close(NOT_MASTER, not_master(), for_all=True)
    assert isinstance(refusal(gate), NotMaster)
    assert isinstance(refusal(gate, own=True), NotMaster)
    gate.open(NOT_MASTER)
    assert str(refusal(gate, own=True)) == "failed"


def test_a_refusal_does_not_grow_with_every_message() -> None:
    gate = Gate(SimpleNamespace())
    gate.close(FAILED, NotAvailable("failed"), for_all=True)
    depths = []
    for _ in range(5):
        error = refusal(gate)
        assert error is not None
        depths.append(len(traceback.extract_tb(error.__traceback__)))
    assert len(set(depths)) == 1, depths


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("close"), st.sampled_from(REASONS), st.booleans()),
            st.tuples(st.just("open"), st.sampled_from(REASONS), st.just(False)),
        ),
        max_size=30,
    )
)
def test_open_and_closed_as_a_set_of_reasons_says(steps: list[tuple[str, str, bool]]) -> None:
    kernel = SimpleNamespace(accepting=True)
    gate = Gate(kernel)
    closed: dict[str, bool] = {}  # name -> whether it stops the broker's own records, too
    for what, name, for_all in steps:
        if what == "close":
            assert gate.close(name, NotAvailable(name), for_all=for_all) == (name not in closed)
            closed[name] = for_all or closed.get(name, False)
        else:
            assert gate.open(name) == (name in closed)
            closed.pop(name, None)
        assert kernel.accepting == (not closed)
        assert {known for known in REASONS if gate.has(known)} == set(closed)
        final = {known for known, for_all in closed.items() if for_all}
        refused, refused_own = refusal(gate), refusal(gate, own=True)
        assert (refused is not None) == bool(closed)
        assert (refused_own is not None) == bool(final)
        if refused is not None:
            assert str(refused) in (final or closed)
