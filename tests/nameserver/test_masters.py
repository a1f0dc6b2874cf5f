"""Who may be the master of a group: the rules without a table."""

from __future__ import annotations

import pytest

from kappamq.errors import BrokerError
from kappamq.nameserver.masters import REMEMBERED_S, Holder, Masters

ONE, TWO = "10.0.0.1:10911", "10.0.0.2:10911"


@pytest.mark.parametrize(
    ("version", "holder", "refusal"),
    [
        (0, None, None),
        (0, Holder(ONE, 0, beats=False), None),
        (0, Holder(ONE, 0, beats=True), f"{ONE} is registered with id 0 and state version 0, and alive"),
        (7, Holder(ONE, 7, beats=True), f"{ONE} is registered with id 0 and state version 7, and alive"),
        (8, Holder(ONE, 7, beats=True), None),
        (6, Holder(ONE, 7, beats=True), f"{ONE} is the master with state version 7, this one claims 6"),
        (6, Holder(ONE, 7, beats=False), f"{ONE} is the master with state version 7, this one claims 6"),
    ],
)
def test_place(version: int, holder: Holder | None, refusal: str | None) -> None:
    masters = Masters(10)
    if refusal is None:
        masters.check("b", TWO, version, holder, 0.0)
        return
    with pytest.raises(BrokerError, match=f"^register broker failed: .*{refusal}"):
        masters.check("b", TWO, version, holder, 0.0)


def test_the_last_term_is_remembered_for_a_while() -> None:
    masters = Masters(10)
    masters.registered("b", TWO, 7, 0.0)
    masters.check("b", TWO, 0, None, 1.0)  # the same address knows what it does: its store was emptied
    masters.check("other", ONE, 0, None, 1.0)
    masters.check("b", ONE, 7, None, 1.0)
    with pytest.raises(BrokerError, match=f"{TWO} was until recently the master"):
        masters.check("b", ONE, 6, None, REMEMBERED_S - 1)
    masters.check("b", ONE, 6, None, REMEMBERED_S)


def test_what_is_remembered_is_bounded() -> None:
    masters = Masters(2)
    for number in range(5):
        masters.registered(f"b{number}", ONE, 7, float(number))
    for number in range(3):
        masters.check(f"b{number}", TWO, 0, None, 5.0)
    for number in (3, 4):
        with pytest.raises(BrokerError):
            masters.check(f"b{number}", TWO, 0, None, 5.0)
    masters.registered("without", ONE, 0, 5.0)
    masters.check("without", TWO, 0, None, 5.0)
    masters.registered("b9", ONE, 7, REMEMBERED_S * 3)
    assert list(masters._last) == ["b9"], "what is too old goes"
