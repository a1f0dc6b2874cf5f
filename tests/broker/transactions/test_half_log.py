"""Transactions and the log: a crash at any step, any tail torn off, positions that are never ahead of the disk, Java's stores."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kappamq.broker.sending.appending import Draft
from kappamq.broker.transactions.half_records import GROUP
from kappamq.broker.transactions.open_transactions import Half
from kappamq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC, TRANSACTION_GIVEN_UP_TOPIC
from kappamq.store.log.commit_log import file_name
from tests.broker.half_life import HalfLife, Peer
from tests.broker.transacting import COMMIT, ROLLBACK, UNKNOWN, Begun
from tests.store.stores import BORN

CHECK_MAX = 3
GROUPS = ("pg", "other")
OPEN, COMMITTED, ROLLED_BACK, GIVEN_UP = "open", "committed", "rolled back", "given up"
STATES = {COMMIT: COMMITTED, ROLLBACK: ROLLED_BACK}


def torn(source: Path, target: Path, cut: int | None, segment_bytes: int = 64 << 10) -> None:
    """A copy as a crash leaves it; from `cut` on the log has not got to the disk."""
    shutil.copytree(source, target)
    if cut is None:
        return
    for path in sorted((target / "commitlog").iterdir()):
        start = int(path.name)
        with path.open("r+b") as file:
            if start + segment_bytes > cut:
                at = max(0, cut - start)
                file.seek(at)
                file.write(bytes(segment_bytes - at))


def known(half: Half) -> tuple[object, ...]:
    """What the log says of it."""
    return half.root, half.log_offset, half.queue_offset, half.size, half.group, half.topic, half.since_ms, half.checks


class Transacting(RuleBasedStateMachine):
    """Against a model: what has happened, each with the log offset at which it is safe."""

    def __init__(self) -> None:
        super().__init__()
        shared = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="kappamq-halves-", dir=shared if shared.is_dir() else None))
        self.events: list[tuple[int, bytes, str]] = []
        self.count = 0
        self.lives = self.boots = 0
        self.names: dict[bytes, list[Begun]] = {}  # what producers know: the half and its copies
        self.groups: dict[bytes, str] = {}
        self.peers: dict[str, Peer] = {}
        self.immune: dict[bytes, bool] = {}

    @initialize()
    def begin_life(self) -> None:
        self.life = HalfLife(self.folder / "0", boot="boot 0", transaction_check_max=CHECK_MAX)
        self.life.write()
        self.life.flush()
        self.fold = self.life.new_fold()

    @property
    def state(self) -> dict[bytes, str]:
        return {body: state for _end, body, state in self.events}

    def note(self, body: bytes, state: str) -> None:
        self.events.append((self.life.log.end, body, state))

    # -- producers ---------------------------------------------------------------------------------------------------------

    @rule(group=st.sampled_from(GROUPS), immune=st.sampled_from([None, None, 0, 20]))
    def begin(self, group: str, immune: int | None) -> None:
        self.count += 1
        body = b"%d" % self.count
        self.names[body] = [self.life.begin(body, group, immune)]
        self.groups[body], self.immune[body] = group, immune is not None
        self.note(body, OPEN)

    @rule(data=st.data(), decision=st.sampled_from([COMMIT, ROLLBACK, UNKNOWN]))
    @precondition(lambda self: self.names)
    def decide(self, data: st.DataObject, decision: int) -> None:
        body = data.draw(st.sampled_from(sorted(self.names)))
        self._decide(body, data.draw(st.sampled_from(self.names[body])), decision, data.draw(st.booleans()))

    @rule(data=st.data(), first=st.sampled_from([COMMIT, ROLLBACK]), second=st.sampled_from([COMMIT, ROLLBACK]))
    @precondition(lambda self: OPEN in self.state.values())
    def decide_at_the_same_moment(self, data: st.DataObject, first: int, second: int) -> None:
        body = data.draw(st.sampled_from(sorted(body for body, state in self.state.items() if state == OPEN)))
        self._decide(body, self.names[body][0], first, False)
        self._decide(body, self.names[body][-1], second, True)

    def _decide(self, body: bytes, name: Begun, decision: int, from_check: bool) -> None:
        before = self.state.get(body)
        code = self.life.end(name, decision, self.groups[body], from_check=from_check)
        if decision == UNKNOWN:
            assert code == 0
        elif before is None:  # the crash that took it happened before its producer got an answer
            assert code == 1
        elif before == OPEN and code == 0:
            self.note(body, STATES[decision])
        elif before == OPEN:
            # It asked for time and has used it up; or a crash took the copy that this name stands for.
            assert code == 604 if self.immune[body] and not from_check else code == 1 and name != self.names[body][0]
        else:
            assert code == (0 if before == STATES[decision] else 4) or (code == 1 and name != self.names[body][0])

    @rule(group=st.sampled_from(GROUPS))
    def join(self, group: str) -> None:
        if group not in self.peers:
            self.peers[group] = self.life.join(group)

    @rule(group=st.sampled_from(GROUPS))
    def leave(self, group: str) -> None:
        self.hear()
        self.peers.pop(group, None)
        self.life.leave(group)

    # -- time and disk -----------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([0, 5_999, 6_000, 30_000, 90_000]))
    def time_passes(self, ms: int) -> None:
        open_before = {body for body, state in self.state.items() if state == OPEN}
        asked = sum(len(peer.questions) for peer in self.peers.values())
        self.life.pass_time(ms)
        assert sum(len(peer.questions) for peer in self.peers.values()) - asked <= CHECK_MAX * len(open_before)
        self.hear()
        still = set(self.life.open_bodies())
        for body in sorted(open_before - still):
            self.note(body, GIVEN_UP)
            assert len(self.names[body]) > CHECK_MAX, "nobody was asked"

    def hear(self) -> None:
        for peer in self.peers.values():
            for question in peer.questions:
                body = (question.message_id or "")[1:].encode()
                assert self.state[body] == OPEN
                self.names[body].append(
                    Begun(question.log_offset, question.transaction_offset, question.message_id or "")
                )
            peer.questions.clear()

    @rule(data=st.data())
    @precondition(lambda self: len(self.life.log.halves))
    def renew(self, data: st.DataObject) -> None:
        """As if its log file were about to go."""
        places = list(self.life.log.halves._live)
        half = self.life.log.halves._live[data.draw(st.sampled_from(places))]
        self.life.log.renew(half, self.life.log.load(half))

    @rule()
    def write(self) -> None:
        self.life.write()

    @rule()
    def flush(self) -> None:
        self.life.write()
        self.life.flush()

    @rule()
    def keep_positions(self) -> None:
        self.life.keep_positions()

    @rule()
    def save(self) -> None:
        self.life.write()
        self.life.save()

    # -- a node that reads along -------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 5))
    def read_along(self, count: int) -> None:
        self.fold.read_on(count)

    @rule()
    def take_the_role(self) -> None:
        """Whoever has read along knows what the role that wrote knows."""
        self.life.write()
        self.fold.read_all()
        assert not self.fold.is_behind
        own, read = self.life.log.halves, self.fold.halves
        assert list(map(known, read._live.values())) == list(map(known, own._live.values()))
        assert read.counts == own.counts
        ended = {root: read.ended(root) for root in own._remembered}
        assert {root: said and said[0] for root, said in ended.items()} == {
            root: said[0] for root, said in own._remembered.items()
        }

    # -- ends --------------------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """The process is killed: what was written is there. Or the power fails: what was flushed is, and some of the rest."""
        store = self.life.store
        safe, end = store.marks.flushed.offset, store.log.end
        self.reopen(data.draw(st.none() | st.integers(safe, end)))

    @rule()
    def stop(self) -> None:
        self.life.write()
        self.life.keep_positions()
        self.life.write()
        self.life.save()
        self.life.store.close()
        self.reopen(None, closed=True)

    def reopen(self, cut: int | None, *, closed: bool = False) -> None:
        self.lives += 1
        before, after = self.life.root, self.folder / str(self.lives)
        torn(before, after, cut)
        if not closed:
            self.life.store.close(clean=False)
        shutil.rmtree(before)
        self.boots += cut is not None
        self.life = HalfLife(after, self.life.clock, f"boot {self.boots}", transaction_check_max=CHECK_MAX)
        end = self.life.store.log.end
        if cut is not None:
            assert end <= cut
        self.events = [event for event in self.events if event[0] <= end]
        self.peers.clear()
        self.life.write()
        self.life.flush()
        self.fold = self.life.new_fold()

    # -- always ------------------------------------------------------------------------------------------------------------

    @invariant()
    def consumers_see_each_committed_message_once(self) -> None:
        if not hasattr(self, "life"):
            return
        self.life.write()
        state = self.state
        assert sorted(self.life.seen()) == sorted(body for body in state if state[body] == COMMITTED)
        assert self.life.open_bodies() == sorted(body for body in state if state[body] == OPEN)

    @invariant()
    def positions_are_good_for_a_java_broker_too(self) -> None:
        if hasattr(self, "life"):
            assert self.life.open_for_java() == self.life.open_bodies()

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.store.close(clean=False)
        shutil.rmtree(self.folder)


TestTransacting = Transacting.TestCase
TestTransacting.settings = settings(max_examples=25, stateful_step_count=30)


# -- kill points, one by one -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_every_byte_of_a_decision_may_be_the_last(tmp_path: Path, decision: int) -> None:
    """Half stored, and the group of the decision torn anywhere: it is open then, or ended, never in between."""
    life = HalfLife(tmp_path / "a")
    begun = life.begin(b"x")
    life.write()
    life.flush()
    start = life.store.log.end
    assert life.end(begun, decision) == 0
    life.write()
    end = life.store.log.end
    life.store.close(clean=False)
    outcomes = []
    for cut in [*range(start, end, 37), end - 1, end]:
        torn(tmp_path / "a", tmp_path / "b", cut)
        again = HalfLife(tmp_path / "b", boot="after the power cut")
        outcomes.append((again.seen(), again.open_bodies()))
        # The producer never got an answer, and decides again.
        assert again.end(begun, decision) == 0
        again.write()
        assert again.seen() == [b"x"] * (decision == COMMIT)
        assert again.open_bodies() == []
        again.store.close(clean=False)
        shutil.rmtree(tmp_path / "b")
    assert outcomes[:-1] == [([], [b"x"])] * (len(outcomes) - 1)
    assert outcomes[-1] == ([b"x"] * (decision == COMMIT), [])


def test_every_byte_of_a_copy_may_be_the_last(tmp_path: Path) -> None:
    """Before it is complete the old place is the live one, then the new one: there is always exactly one."""
    life = HalfLife(tmp_path / "a")
    begun = life.begin(b"x")
    peer = life.join("pg")
    life.write()
    life.flush()
    start = life.store.log.end
    life.pass_time(6000)
    life.write()
    end = life.store.log.end
    (question,) = peer.questions
    copy = Begun(question.log_offset, question.transaction_offset, "Ux")
    life.store.close(clean=False)
    for cut in [*range(start, end, 37), end]:
        torn(tmp_path / "a", tmp_path / "b", cut)
        again = HalfLife(tmp_path / "b", boot="after the power cut")
        assert again.open_bodies() == [b"x"]
        half = again.log.halves.get(begun.log_offset)
        assert half is not None
        assert (half.checks, half.queue_offset) == ((1, 1) if cut == end else (0, 0))
        # The answer to the question comes, though the broker may not know the copy any more; so does the producer's own end.
        codes = (again.end(copy, COMMIT, from_check=True), again.end(begun, COMMIT))
        assert codes == ((0, 0) if cut == end else (1, 0))
        again.write()
        assert again.seen() == [b"x"]
        again.store.close(clean=False)
        shutil.rmtree(tmp_path / "b")


def test_a_half_that_never_got_to_the_disk(tmp_path: Path) -> None:
    life = HalfLife(tmp_path / "a")
    life.write()
    life.flush()
    begun = life.begin(b"x")
    life.write()
    torn(tmp_path / "a", tmp_path / "b", begun.log_offset + 20)
    life.store.close(clean=False)
    again = HalfLife(tmp_path / "b", boot="after the power cut")
    assert again.end(begun, COMMIT) == 1
    other = again.begin(b"y")
    assert other.log_offset == begun.log_offset, "in the very place where the lost one was"
    again.write()
    assert again.end(begun, COMMIT) == 1, "it does not commit the transaction of somebody else"
    assert again.end(begun, ROLLBACK) == 1
    assert again.end(other, COMMIT) == 0
    again.write()
    assert again.seen() == [b"y"]
    again.store.close(clean=False)


# -- positions -------------------------------------------------------------------------------------------------------------


def test_positions_are_never_ahead_of_the_disk(tmp_path: Path) -> None:
    life = HalfLife(tmp_path)
    begun = life.begin(b"x")
    assert life.end(begun, COMMIT) == 0
    life.write()
    for _ in range(3):
        life.keep_positions()
        assert life.offsets.get(GROUP, HALF_TOPIC, 0) is None, "a power cut could still take the end of the log"
    assert life.log.needed_from <= begun.log_offset
    life.write()
    life.flush()
    life.keep_positions()
    assert (life.offsets.get(GROUP, HALF_TOPIC, 0), life.offsets.get(GROUP, HALF_OP_TOPIC, 0)) == (1, 1)
    assert life.log.needed_from > begun.log_offset
    assert life.log.behind == 0
    life.store.close(clean=False)


def test_what_a_second_decision_is_told_survives_a_restart(tmp_path: Path) -> None:
    life = HalfLife(tmp_path)
    yes, no = life.begin(b"yes"), life.begin(b"no")
    assert (life.end(yes, COMMIT), life.end(no, ROLLBACK)) == (0, 0)
    life.write()
    life.store.close(clean=False)
    again = HalfLife(tmp_path)
    assert (again.end(yes, COMMIT), again.end(no, ROLLBACK)) == (0, 0), "the answers may have been lost with the broker"
    assert (again.end(yes, ROLLBACK), again.end(no, COMMIT)) == (4, 4)
    again.write()
    assert again.seen() == [b"yes"]
    again.store.close(clean=False)


# -- stores of a Java broker -----------------------------------------------------------------------------------------------


def java_half(body: bytes, **more: str) -> Draft:
    pairs = {"UNIQ_KEY": f"U{body.decode()}", "TRAN_MSG": "true", "PGROUP": "pg", "REAL_TOPIC": "t", "REAL_QID": "0"}
    return Draft(HALF_TOPIC, 0, body, pairs | more, born_ms=5, born=BORN)


def java_op(body: bytes) -> Draft:
    return Draft(HALF_OP_TOPIC, 0, body, {"TAGS": "d"}, born=BORN)


def test_a_java_brokers_transactions_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    life = HalfLife(tmp_path)
    first, *_ = placed = [
        life.appender.append(draft)
        for draft in [
            java_half(b"asked"),  # 0: was asked about; it lies below the position, its copy is the live one
            java_half(b"done"),  # 1
            java_half(b"done too"),  # 2
            java_half(b"open"),  # 3
            java_half(b"asked", TRANSACTION_CHECK_TIMES="2"),  # 4
            java_half(b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="60", TRAN_PREPARED_QUEUE_OFFSET="0"),  # 5
            java_half(b"ended", CHECK_IMMUNITY_TIME_IN_SECONDS="60", TRAN_PREPARED_QUEUE_OFFSET="9"),  # 6
            Draft(HALF_TOPIC, 0, b"nonsense", born=BORN),  # 7
            java_op(b"1,2,9,"),
            java_op(b"nonsense"),
        ]
    ]
    life.offsets.set(GROUP, HALF_TOPIC, 0, 1)
    life.offsets.set(GROUP, HALF_OP_TOPIC, 0, 0)
    life.offsets.record_commits()
    life.write()
    life.store.close(clean=False)
    again = HalfLife(tmp_path)
    assert again.open_bodies() == [b"asked", b"immune", b"open"]
    assert "lacks the properties of a half message" in caplog.text
    assert "the op record at" in caplog.text
    asked = again.log.halves.get(placed[4].log_offset)
    assert asked is not None
    assert asked.checks == 2
    # The producer's own end comes late. It names the first half, and the copy does not say whose copy it is.
    assert again.end(Begun(first.log_offset, 0, "Uasked"), COMMIT) == 0
    assert again.end(Begun(placed[4].log_offset, 4, "Uasked"), COMMIT, from_check=True) == 0
    again.write()
    assert again.seen() == [b"asked"]
    assert again.open_bodies() == [b"immune", b"open"]
    again.keep_positions()
    again.store.close(clean=False)


def test_given_up_by_a_java_broker(tmp_path: Path) -> None:
    """Its copy does not name the half either; an operator can still have its producers asked."""
    life = HalfLife(tmp_path)
    draft = java_half(b"x", TRANSACTION_CHECK_TIMES="15")
    draft.topic = TRANSACTION_GIVEN_UP_TOPIC
    placed = life.appender.append(draft)
    life.write()
    record = life.log.record_at(placed.log_offset)
    assert record is not None
    life.log.reopen(record, placed.log_offset)
    life.write()
    assert life.open_bodies() == [b"x"]
    half = life.log.halves.get(placed.log_offset)
    assert half is not None
    assert half.checks == 0
    life.store.close(clean=False)


def test_a_record_is_looked_at_before_it_is_read(tmp_path: Path) -> None:
    """Whoever ends a transaction may claim any offset: nothing is read on a claim."""
    life = HalfLife(tmp_path)
    begun = life.begin(b"x")
    life.write()
    forged = bytearray(100)
    forged[:4] = (60_000).to_bytes(4, "big")
    end = life.store.log.end
    forged[28 - 0 : 36] = (end + 95).to_bytes(8, "big")
    place = life.appender.append(Draft("t", 0, bytes(forged), born=BORN))
    life.write()
    path = tmp_path / "commitlog" / file_name(0)
    inside = place.log_offset + path.read_bytes()[place.log_offset :].index(bytes(forged[:4]))
    for at in (inside, begun.log_offset + 1, -5, end + 10_000, 1 << 62):
        assert life.log.record_at(at) is None
    assert life.log.record_at(begun.log_offset) is not None
    life.store.close(clean=False)
