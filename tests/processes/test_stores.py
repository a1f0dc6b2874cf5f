from __future__ import annotations

from pathlib import Path

from kappamq.processes.stores import held, in_use
from kappamq.raft import Ballot, MemberId, Members, TermRecord, Terms
from kappamq.replication import terms_file, vote_file
from kappamq.replication.vote_file import Vote
from kappamq.store.lock import StoreLock


def stored(store: Path, data: bytes = b"\0\0\0\x55record") -> Path:
    """A store whose log begins with a record."""
    (store / "commitlog").mkdir(parents=True, exist_ok=True)
    (store / "commitlog" / "0".zfill(20)).write_bytes(data)
    return store


def founded(store: Path, name: str, founders: list[str], term: int = 0) -> Path:
    """The store of a member that has its vote, and no log."""
    vote = Vote(counter=1, ballot=Ballot(term, None), member=MemberId(name, 1), group_id=f"g:{','.join(founders)}")
    store.mkdir(parents=True, exist_ok=True)
    (store / "kappamq.vote").write_bytes(vote_file.encode_slot(vote) * 2)
    return store


def voted(store: Path, name: str, members: list[str], term: int = 1) -> Path:
    """The store of a member that has voted, and knows these members."""
    founded(stored(store), name, ["n0", "n1", "n2"], term)
    base = TermRecord(0, 0, Members())
    record = TermRecord(0, term, Members(frozenset(MemberId(member, 1) for member in members)))
    (store / "kappamq.terms").write_bytes(terms_file.encode(Terms(base, [record]), "g"))
    return store


def test_copies_are_those_with_messages(tmp_path: Path) -> None:
    assert held(tmp_path / "none") == {}
    stored(tmp_path / "a-0", b"\0" * 64)  # a file that was prepared, and nothing in it
    stored(tmp_path / "a-1", b"\0" * 64)
    (tmp_path / "a-0.conf").write_text("")
    assert held(tmp_path)["a"].copies == 2
    stored(tmp_path / "a-0")
    assert (held(tmp_path)["a"].copies, held(tmp_path)["a"].is_raft) == (1, False)
    stored(tmp_path / "b-0")
    assert list(held(tmp_path)) == ["a", "b"]


def test_members_are_those_of_the_latest_record(tmp_path: Path) -> None:
    voted(tmp_path / "a-0", "n0", ["n0", "n1"], term=2)
    voted(tmp_path / "a-1", "n1", ["n0", "n1"], term=2)
    voted(tmp_path / "a-2", "n2", ["n0", "n1", "n2"], term=1)
    assert held(tmp_path)["a"].members() == ["n0", "n1"]
    (tmp_path / "a-1" / "kappamq.terms").write_text("torn")
    assert held(tmp_path)["a"].members() == ["n0", "n1"], "who says nothing does not deny it"
    for number in range(3):
        (tmp_path / f"a-{number}" / "kappamq.terms").write_text("torn")
    (tmp_path / "a-1" / "kappamq.vote").write_text("torn")
    assert held(tmp_path)["a"].members() == ["n0", "n1", "n2"], "the names that the votes, or else the folders, say"


def test_a_change_that_the_leader_alone_has_noted_does_not_count(tmp_path: Path) -> None:
    for number in range(3):
        voted(tmp_path / f"a-{number}", f"n{number}", ["n0", "n1", "n2"])
    voted(tmp_path / "a-0", "n0", ["n0", "n1"], term=2)
    assert held(tmp_path)["a"].members() == ["n0", "n1", "n2"]


def test_founders_are_members_before_they_have_voted(tmp_path: Path) -> None:
    five = [f"n{number}" for number in range(5)]
    founded(tmp_path / "a-0", "n0", five)
    assert held(tmp_path)["a"].members() == five
    founded(tmp_path / "b-0", "n0", ["n0#1791"])  # began alone
    founded(tmp_path / "b-1", "n1", ["n0#1791"])
    assert held(tmp_path)["b"].members() == ["n0", "n1"]


def test_a_store_in_use(tmp_path: Path) -> None:
    stored(tmp_path / "a-0")
    assert in_use(tmp_path) is None
    with StoreLock(tmp_path / "a-0"):
        found = in_use(tmp_path)
    assert found is not None
    assert found[0] == tmp_path / "a-0"
