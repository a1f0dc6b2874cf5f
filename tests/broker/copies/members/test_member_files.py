from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kappamq.broker.copies.members.member_files import MemberFiles, demand_own_log
from kappamq.errors import StoreError
from kappamq.raft import MemberId, Members, TermRecord, Terms
from kappamq.raft.effects import Ballot
from kappamq.replication.vote_file import SLOT_BYTES, Vote
from kappamq.store.files import Files
from kappamq.store.recovery import Recovered

A = MemberId("a", 1)
VOTE = Vote(counter=1, ballot=Ballot(4, A), member=A, group_id="g")
TERMS = Terms(TermRecord(0, 0, Members(frozenset({A}))), [TermRecord(10, 1, Members(frozenset({A})))])


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    files = MemberFiles(tmp_path, Files())
    assert files.load_vote() is None
    assert files.load_terms() is None
    files.save_vote(VOTE)
    files.save_vote(later := VOTE.with_ballot(Ballot(5, None)))
    files.save_terms(TERMS, "g")
    again = MemberFiles(tmp_path, Files())
    assert again.load_vote() == later
    loaded = again.load_terms()
    assert loaded is not None
    assert (loaded[0].base, loaded[0].records, loaded[1]) == (TERMS.base, TERMS.records, "g")


def test_a_crash_while_the_first_vote_is_written_leaves_none(tmp_path: Path) -> None:
    """Half of one would pass for a promise that is lost, and this member's log with it."""

    class Dying(Files):
        left = 0

        def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            super().pwrite(fd, data, at)

    for writes in range(2):
        dying = Dying()
        dying.left = writes
        with pytest.raises(KeyboardInterrupt):
            MemberFiles(tmp_path, dying).save_vote(VOTE)
        assert MemberFiles(tmp_path, Files()).load_vote() is None
    files = MemberFiles(tmp_path, Files())
    files.save_vote(VOTE)
    assert files.load_vote() == VOTE


def test_a_damaged_vote_does_not_pass_for_none(tmp_path: Path) -> None:
    files = MemberFiles(tmp_path, Files())
    files.save_vote(VOTE)
    files.vote_path.write_bytes(bytes(files.vote_path.stat().st_size))
    with pytest.raises(StoreError, match="does not know what it has promised"):
        files.load_vote()


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_slot_of_the_vote_that_differs_is_written_again(tmp_path: Path, damaged: int) -> None:
    files = MemberFiles(tmp_path, Files())
    files.save_vote(VOTE)
    whole = files.vote_path.read_bytes()
    with files.vote_path.open("r+b") as file:
        file.seek(damaged * SLOT_BYTES)
        file.write(bytes(SLOT_BYTES))
    assert files.load_vote() == VOTE
    assert files.vote_path.read_bytes() == whole


def test_damaged_terms_are_read_from_the_log_instead(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    files = MemberFiles(tmp_path, Files())
    files.terms_path.write_bytes(b"{}")
    assert files.load_terms() is None
    assert "terms are read from the log" in caplog.text


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Recovered(writer="ours", damage=[(10, 20)]), "damaged from 10 to 20"),
        (Recovered(writer="foreign", contradicted=True), "another broker"),
    ],
)
def test_a_log_that_is_another_one_since_is_refused(found: Recovered, text: str) -> None:
    demand_own_log(Path("store"), Recovered(writer="ours"))
    demand_own_log(Path("store"), Recovered(writer="foreign"))  # a power cut has taken away what would say whose it is
    with pytest.raises(StoreError, match=f"{text}.*empty data directory"):
        demand_own_log(Path("store"), found)
