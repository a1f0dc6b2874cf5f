"""Queue locks: at any moment a queue has at most one owner in a group, a lease that is not renewed ends, and whoever reads the
log knows the owners."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kappamq.errors import NotAvailable
from kappamq.message import MessageQueue
from kappamq.protocol import fastjson
from kappamq.state.locks import QUEUES_PER_RECORD, QueueLocks
from tests.state.committing import committing

LEASE_S = 60
QUEUES = [MessageQueue("t", "b", queue_id) for queue_id in range(3)]
GROUPS = ["g1", "g2"]
CLIENTS = ["c1", "c2", "c3"]


class Log:
    def __init__(self) -> None:
        self.records: list[tuple[str, Any]] = []
        self.refuses = False

    def record(self, kind: str, change: Any) -> int:
        if self.refuses:
            raise NotAvailable("the disk is full")
        self.records.append((kind, fastjson.loads(fastjson.dumps(change))))
        return len(self.records)


def make(log: Log | None = None) -> QueueLocks:
    return committing(lambda commit: QueueLocks("b", LEASE_S, commit), (log or Log()).record)


def test_a_lock_is_kept_by_renewing_it_and_free_a_lease_later() -> None:
    log = Log()
    locks = make(log)
    one = {QUEUES[0]}
    assert locks.lock("g", "c1", one, now=0) == (one, 1)
    assert locks.lock("g", "c2", one, now=LEASE_S) == (set(), 0), "to the very end of the lease"
    assert locks.lock("g", "c1", one, now=LEASE_S) == (one, 1), (
        "nor is a renewal to be relied on before the log is safe"
    )
    locks.safe_up_to = 1
    assert locks.lock("g", "c1", one, now=LEASE_S) == (one, 0), "renewing is not recorded"
    assert locks.lock("g", "c2", one, now=2 * LEASE_S) == (set(), 0), "it was renewed"
    assert locks.lock("g", "c2", one, now=2 * LEASE_S + 1) == (one, 2)
    assert locks.lock("g", "c1", one, now=2 * LEASE_S + 1) == (set(), 0), "the old owner has lost it"
    assert log.records == [("lock", ["g", "c1", {"t": [0]}]), ("lock", ["g", "c2", {"t": [0]}])]


def test_somebody_elses_lock_cannot_be_given_back() -> None:
    log = Log()
    locks = make(log)
    locks.lock("g", "c1", {QUEUES[0]}, now=0)
    locks.unlock("g", "c2", {QUEUES[0]})
    assert locks.owner("g", QUEUES[0], now=0) == "c1"
    locks.unlock("g", "c1", {QUEUES[0], QUEUES[1]})
    assert locks.owner("g", QUEUES[0], now=0) is None
    locks.unlock("unknown", "c1", {QUEUES[0]})
    assert log.records[1:] == [("unlock", ["g", "c1", {"t": [0]}])]


def test_who_owns_anything() -> None:
    locks = make()
    locks.lock("g", "c1", {QUEUES[0]}, now=0)
    assert locks.is_owner("g", "c1", now=LEASE_S)
    assert not locks.is_owner("g", "c1", now=LEASE_S + 1)
    assert not locks.is_owner("g", "c2", now=0)
    assert not locks.is_owner("h", "c1", now=0)


def test_what_is_over_takes_no_memory() -> None:
    log = Log()
    locks = make(log)
    for number in range(100):
        locks.lock(f"g{number}", "c", set(QUEUES), now=number)
    locks.lock("nothing", "c", set(), now=0)
    locks.expire(now=99 + LEASE_S)
    assert len(locks._groups) == 1, "the youngest is still held"
    locks.expire(now=100 + LEASE_S)
    assert not locks._groups
    assert [kind for kind, _ in log.records[100:]] == ["lock-expired"] * 100
    locks.expire(now=1000)
    assert len(log.records) == 200, "nothing is told twice"


def test_many_queues_are_several_records() -> None:
    log = Log()
    locks = make(log)
    many = {MessageQueue("t", "b", number) for number in range(2 * QUEUES_PER_RECORD + 1)}
    assert locks.lock("g", "c", many, now=0) == (many, 3)
    locks.unlock("g", "c", many)
    assert len(log.records) == 6
    assert not locks._groups


def test_no_lock_without_a_record() -> None:
    """It would be forgotten in a crash, and somebody else would get it while its owner consumes."""
    log = Log()
    locks = make(log)
    locks.lock("g", "c", {QUEUES[0]}, now=0)
    log.refuses = True
    with pytest.raises(NotAvailable):
        locks.lock("g", "c", {QUEUES[1]}, now=0)
    with pytest.raises(NotAvailable):
        locks.lock("h", "c", {QUEUES[1]}, now=0)
    assert locks.lock("g", "c", set(QUEUES), now=1) == ({QUEUES[0]}, 1), "what it has it keeps"
    assert list(locks._groups) == ["g"]
    locks.unlock("g", "c", {QUEUES[0]})
    assert locks.owner("g", QUEUES[0], now=1) is None, "giving back works without a record: it costs others time only"


def test_what_is_read_holds_for_a_lease_from_when_we_begin_to_serve() -> None:
    log = Log()
    locks = make(log)
    locks.lock("g", "c1", {QUEUES[0]}, now=1_000_000)
    again = make()
    for kind, change in log.records:
        again.apply(kind, change)
    again.begin(now=5.0)
    assert again.owner("g", QUEUES[0], now=5.0 + LEASE_S) == "c1"
    assert again.owner("g", QUEUES[0], now=6.0 + LEASE_S) is None


def restarted(log: Log, now: float, snapshot: bytes | None = None, after: int = 0) -> QueueLocks:
    locks = make(log)
    if snapshot is not None:
        locks.from_snapshot(fastjson.loads(snapshot))
    for kind, change in list(log.records[after:]):
        assert kind in QueueLocks.kinds
        locks.apply(kind, change)
    locks.begin(now)
    return locks


@pytest.mark.parametrize("from_snapshot", [False, True], ids=["from the log", "from snapshots"])
@pytest.mark.parametrize("life_s", [2, 25, LEASE_S - 1])
def test_a_dead_owners_lock_ends_however_often_the_broker_restarts(life_s: int, from_snapshot: bool) -> None:
    """And one whose owner comes back in every life does not."""
    log, now, served, snapshot, after = Log(), 1000.0, 0, None, 0
    locks = make(log)
    locks.lock("g", "dead", {QUEUES[0]}, now)
    locks.lock("g", "alive", {QUEUES[1]}, now)
    lives = 0
    while locks.owner("g", QUEUES[0], now):
        now += 10_000  # how long nobody served means nothing
        locks = restarted(log, now, snapshot, after)
        lives += 1
        for _ in range(life_s):
            now, served = now + 1, served + 1
            locks.expire(now)
        assert locks.lock("g", "alive", {QUEUES[1]}, now).queues == {QUEUES[1]}
        if from_snapshot:
            snapshot, after = fastjson.dumps(locks.to_snapshot()), len(log.records)
        assert lives < 3 * LEASE_S / life_s + 3, "it never ends"
    assert served > LEASE_S, "not before it would have without restarts"
    assert locks.lock("g", "other", {QUEUES[0]}, now).queues == {QUEUES[0]}
    assert locks.owner("g", QUEUES[1], now) == "alive"


def test_who_was_missed_and_came_back_has_a_whole_lease() -> None:
    log = Log()
    make(log).lock("g", "c", {QUEUES[0]}, 0)
    locks = restarted(log, 100)
    locks.expire(100 + LEASE_S - 5)
    assert locks.lock("g", "c", {QUEUES[0]}, 100 + LEASE_S - 5).safe == 0, (
        "it had the lock already: nothing to wait for"
    )
    again = restarted(log, 1000)
    assert again.owner("g", QUEUES[0], 1000 + LEASE_S) == "c"
    assert again.owner("g", QUEUES[0], 1001 + LEASE_S) is None
    count = len(log.records)
    again.lock("g", "c", {QUEUES[0]}, 1001)
    again.lock("g", "c", {QUEUES[0]}, 1002)
    assert len(log.records) == count + 1, "the first renewal of a life is recorded, the others are not"
    for second in range(1003, 1020):
        again.expire(second)
    assert len(log.records) == count + 1, "nobody is missing"


def test_a_full_disk_costs_an_owner_nothing() -> None:
    log = Log()
    make(log).lock("g", "c", {QUEUES[0]}, 0)
    locks = restarted(log, 0)
    log.refuses = True
    locks.expire(10)
    assert locks.lock("g", "c", {QUEUES[0]}, 20).queues == {QUEUES[0]}
    assert locks.owner("g", QUEUES[0], 20 + LEASE_S) == "c"


class LocksMachine(RuleBasedStateMachine):
    """Against a plain list of everything that was ever granted; restarts come at any moment, from any snapshot."""

    groups, clients, queues = st.sampled_from(GROUPS), st.sampled_from(CLIENTS), st.sets(st.sampled_from(QUEUES))

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.locks = make(self.log)
        self.now = 0
        self.served = 0  # seconds in which somebody could have renewed
        self.granted: dict[tuple[str, MessageQueue], tuple[str, int]] = {}  # who, and `served` at the last renewal
        self.snapshots: list[tuple[int, bytes]] = [(0, b"{}")]

    def holder(self, group: str, queue: MessageQueue) -> str | None:
        """Who surely has it: later than this somebody may have been missed for long enough, or not, by what was recorded."""
        client, since = self.granted.get((group, queue), ("", 0))
        return client if client and self.served - since <= LEASE_S else None

    @rule(group=groups, client=clients, queues=queues)
    def lock(self, group: str, client: str, queues: set[MessageQueue]) -> None:
        got = self.locks.lock(group, client, queues, self.now).queues
        for queue in queues:
            holder = self.holder(group, queue)
            if holder is not None:
                assert (queue in got) == (holder == client)
            elif (group, queue) not in self.granted:
                assert queue in got, "it was never given to anybody, or given back"
            if queue in got:
                self.granted[group, queue] = (client, self.served)

    @rule(group=groups, client=clients, queues=queues)
    def unlock(self, group: str, client: str, queues: set[MessageQueue]) -> None:
        self.locks.unlock(group, client, queues)
        for queue in queues:
            if self.granted.get((group, queue), ("", 0))[0] == client:
                del self.granted[group, queue]

    @rule(seconds=st.sampled_from([1, LEASE_S // 2, LEASE_S, LEASE_S + 1]))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.served += seconds

    @rule()
    def expire(self) -> None:
        self.locks.expire(self.now)

    @rule()
    def snapshot(self) -> None:
        self.snapshots.append((len(self.log.records), fastjson.dumps(self.locks.to_snapshot())))

    @rule(data=st.data(), away=st.sampled_from([0, 10, 1000]))
    def restart(self, data: Any, away: int) -> None:
        """Everybody who held a lock holds it at least as long as without the restart."""
        at, text = data.draw(st.sampled_from(self.snapshots))
        self.now += away
        self.locks = restarted(self.log, self.now, text, data.draw(st.integers(0, at)))

    @invariant()
    def owners_are_as_granted(self) -> None:
        for group in GROUPS:
            for queue in QUEUES:
                holder, owner = self.holder(group, queue), self.locks.owner(group, queue, self.now)
                assert (
                    owner == holder
                    if holder is not None
                    else owner in (None, self.granted.get((group, queue), ("",))[0])
                )
                if owner is not None:
                    assert self.locks.any_held(group, self.now)


TestLocks = LocksMachine.TestCase
TestLocks.settings = settings(max_examples=60, stateful_step_count=30)
