from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from kappamq.raft.quorum import held_by_majority, is_majority


@given(st.dictionaries(st.sampled_from("ABCDE"), st.integers(0, 9)), st.sets(st.sampled_from("ABCDE"), min_size=1))
def test_held_is_what_some_majority_holds(held: dict[str, int], voters: set[str]) -> None:
    groups = chain.from_iterable(combinations(sorted(voters), size) for size in range(1, len(voters) + 1))
    majorities = [group for group in groups if is_majority(set(group), voters)]
    assert held_by_majority(voters, held) == max(min(held.get(voter, 0) for voter in group) for group in majorities)


def test_half_is_no_majority_and_strangers_do_not_count() -> None:
    assert not is_majority({"A"}, {"A", "B"})
    assert is_majority({"A", "B"}, {"A", "B", "C"})
    assert not is_majority({"A", "X", "Y"}, {"A", "B", "C"})
    assert not is_majority(set(), set())
    assert held_by_majority([], {"A": 5}) == 0
