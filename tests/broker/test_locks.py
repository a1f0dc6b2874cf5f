"""Queue locks: at any moment a queue has at most one owner in a group, and a lease that is not renewed ends."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kappamq.broker.locks import QueueLocks
from kappamq.message import MessageQueue

LEASE_S = 60
QUEUES = [MessageQueue("t", "b", queue_id) for queue_id in range(3)]
GROUPS = ["g1", "g2"]
CLIENTS = ["c1", "c2", "c3"]


def test_a_lock_is_kept_by_renewing_it_and_free_a_lease_later() -> None:
    locks = QueueLocks(LEASE_S)
    one = {QUEUES[0]}
    assert locks.lock("g", "c1", one, now=0) == one
    assert locks.lock("g", "c2", one, now=LEASE_S) == set(), "to the very end of the lease"
    assert locks.lock("g", "c1", one, now=LEASE_S) == one
    assert locks.lock("g", "c2", one, now=2 * LEASE_S) == set(), "it was renewed"
    assert locks.lock("g", "c2", one, now=2 * LEASE_S + 1) == one
    assert locks.lock("g", "c1", one, now=2 * LEASE_S + 1) == set(), "the old owner has lost it"


def test_somebody_elses_lock_cannot_be_given_back() -> None:
    locks = QueueLocks(LEASE_S)
    locks.lock("g", "c1", {QUEUES[0]}, now=0)
    locks.unlock("g", "c2", {QUEUES[0]})
    assert locks.owner("g", QUEUES[0], now=0) == "c1"
    locks.unlock("g", "c1", {QUEUES[0], QUEUES[1]})
    assert locks.owner("g", QUEUES[0], now=0) is None
    locks.unlock("unknown", "c1", {QUEUES[0]})


def test_what_is_over_takes_no_memory() -> None:
    locks = QueueLocks(LEASE_S)
    for number in range(100):
        locks.lock(f"g{number}", "c", set(QUEUES), now=number)
    locks.lock("nothing", "c", set(), now=0)
    locks.expire(now=99 + LEASE_S)
    assert len(locks._groups) == 1, "the youngest is still held"
    locks.expire(now=100 + LEASE_S)
    assert not locks._groups


class LocksMachine(RuleBasedStateMachine):
    """Against a plain list of everything that was ever granted."""

    def __init__(self) -> None:
        super().__init__()
        self.locks = QueueLocks(LEASE_S)
        self.now = 0
        self.granted: dict[tuple[str, MessageQueue], tuple[str, int]] = {}

    def holder(self, group: str, queue: MessageQueue) -> str | None:
        client, since = self.granted.get((group, queue), ("", 0))
        return client if client and self.now - since <= LEASE_S else None

    @rule(group=st.sampled_from(GROUPS), client=st.sampled_from(CLIENTS), queues=st.sets(st.sampled_from(QUEUES)))
    def lock(self, group: str, client: str, queues: set[MessageQueue]) -> None:
        expected = {queue for queue in queues if self.holder(group, queue) in (None, client)}
        assert self.locks.lock(group, client, queues, self.now) == expected
        for queue in expected:
            self.granted[group, queue] = (client, self.now)

    @rule(group=st.sampled_from(GROUPS), client=st.sampled_from(CLIENTS), queues=st.sets(st.sampled_from(QUEUES)))
    def unlock(self, group: str, client: str, queues: set[MessageQueue]) -> None:
        self.locks.unlock(group, client, queues)
        for queue in queues:
            if self.granted.get((group, queue), ("", 0))[0] == client:
                del self.granted[group, queue]

    @rule(seconds=st.sampled_from([1, LEASE_S // 2, LEASE_S, LEASE_S + 1]))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def expire(self) -> None:
        self.locks.expire(self.now)

    @invariant()
    def owners_are_as_granted(self) -> None:
        for group in GROUPS:
            holders = [self.holder(group, queue) for queue in QUEUES]
            assert [self.locks.owner(group, queue, self.now) for queue in QUEUES] == holders
            assert self.locks.any_held(group, self.now) == any(holders)


TestLocks = LocksMachine.TestCase
TestLocks.settings = settings(max_examples=50, stateful_step_count=30)
