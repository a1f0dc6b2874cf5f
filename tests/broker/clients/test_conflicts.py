"""Members of a group that subscribe differently are named, with both wishes, once for each change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kappamq.broker.clients.conflicts import Agreement, Interest
from kappamq.protocol.bodies.clients import MessageModel, SubscriptionData


def wants(*expressions: tuple[str, str], model: MessageModel = MessageModel.CLUSTERING, kind: str = "TAG") -> Interest:
    return Interest.of(
        model, [SubscriptionData(topic=topic, expression=text, expression_type=kind) for topic, text in expressions]
    )


def test_both_clients_and_both_wishes_are_named() -> None:
    agreement = Agreement()
    assert agreement.note(1, "c1", wants(("t", "A || B"))) is None
    said = agreement.note(2, "c2", wants(("t", "C"), ("u", "*")))
    assert said == "c2 wants 'C' of t, '*' of u but c1 wants 'A || B' of t, nothing of u"
    assert agreement.conflicts == ["c1 wants 'A || B' of t, nothing of u but c2 wants 'C' of t, '*' of u"]


def test_a_contradiction_is_said_once_and_again_after_a_change() -> None:
    agreement = Agreement()
    agreement.note(1, "c1", wants(("t", "A")))
    assert agreement.note(2, "c2", wants(("t", "B")))
    for _ in range(3):
        assert agreement.note(1, "c1", wants(("t", "A"))) is None
        assert agreement.note(2, "c2", wants(("t", "B"))) is None
    assert agreement.note(3, "c3", wants(("t", "B"))) is None, "one more of the same kind is nothing new"
    assert agreement.note(2, "c2", wants(("t", "C")))
    assert agreement.note(2, "c2", wants(("t", "A"))) is None, "c3 contradicted c1 already"
    agreement.leave(3)
    assert agreement.conflicts == []
    assert agreement.note(3, "c3", wants(("t", "B"))), "it is back with it"


def test_the_same_wish_in_other_words() -> None:
    agreement = Agreement()
    for number, text in enumerate(("A||B", "B || A", " A ||  B ||", "A || B || A")):
        assert agreement.note(number, f"c{number}", wants(("t", text))) is None
    assert agreement.conflicts == []
    assert wants(("t", "")) == wants(("t", "*"), ("%RETRY%g", "*"))
    assert wants(("t", "a  > 1"), kind="SQL92") != wants(("t", "a > 1"), kind="SQL92"), "nobody parses it here"


def test_other_kinds_and_modes_differ() -> None:
    agreement = Agreement()
    agreement.note(1, "c1", wants(("t", "*")))
    said = agreement.note(2, "c2", wants(("t", "a = 1"), kind="SQL92"))
    assert said == "c2 wants SQL92 'a = 1' of t but c1 wants '*' of t"
    agreement.leave(2)
    said = agreement.note(2, "c2", wants(("t", "*"), model=MessageModel.BROADCASTING))
    assert said == "c2 wants BROADCASTING mode but c1 wants CLUSTERING mode"


def test_a_client_does_not_contradict_itself() -> None:
    """It may have a new connection while the broker has not noticed yet that the old one is gone."""
    agreement = Agreement()
    agreement.note(1, "c1", wants(("t", "A")))
    assert agreement.note(2, "c1", wants(("t", "B"))) is None
    assert agreement.conflicts == []
    agreement.leave(1)
    assert agreement.note(3, "c2", wants(("t", "A")))


def test_long_texts_are_cut() -> None:
    agreement = Agreement()
    agreement.note(1, "c1", wants(*((f"t{number}", "*") for number in range(100))))
    said = agreement.note(2, "c2", wants(("t0", "x" * 1_000_000)))
    assert said is not None
    assert len(said) < 1000
    assert "(and 97 more topics)" in said


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["A", "B", "C", None])), max_size=40))
def test_conflicts_are_those_of_who_is_there(steps: list[tuple[int, str | None]]) -> None:
    agreement, model = Agreement(), dict[int, str]()
    for member, text in steps:
        if text is None:
            agreement.leave(member)
            model.pop(member, None)
        else:
            said = agreement.note(member, f"c{member}", wants(("t", text)))
            others = {other for name, other in model.items() if name != member}
            assert said is None or (others - {text} and f"c{member}" in said)
            model[member] = text
        assert len(agreement.conflicts) == max(0, len(set(model.values())) - 1)
    for member in list(model):
        agreement.leave(member)
    assert (agreement._members, agreement._names, agreement._reported) == ({}, {}, set()), (
        "nothing is kept of who has gone"
    )
