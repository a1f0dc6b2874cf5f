"""When a kit has settled: the broker and every client of this process that uses it have nothing left to do.

That is: nothing is due at the broker, no request waits for its answer, every queue of a topic has a reader if somebody subscribes to it,
every reader has pulled its queue to the end, and every listener has dealt with what it got. Consumers that wait for a topic
which has been created meanwhile are told to look again, for by themselves they look only from time to time, in real time.

Of clients in other processes only what they say to the broker can be seen: they count as done when they are quiet for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, Final

from kappamq.broker.broker import Broker
from kappamq.client.core import registry
from kappamq.client.core.core import ClientCore
from kappamq.client.group.group_member import GroupMember
from kappamq.protocol.bodies.topics import PERMISSION_READ
from kappamq.testing.clock import KitClock

_QUIET_S: Final = 0.01
_QUIET_ROUNDS: Final = 2
_TURNS: Final = 5
"""Of each client's event loop between two looks: tasks that are ready get a chance to begin something."""


class Settling:
    """Of one kit, on its broker's loop. `nameservers`: the names by which clients may know it."""

    def __init__(self, broker: Broker, clock: KitClock, nameservers: Iterable[str]) -> None:
        self._broker = broker
        self._clock = clock
        self._nameservers = frozenset(nameservers)
        self._looking: dict[ClientCore, Future[None]] = {}

    async def wait(self, limit_s: float, caller: object) -> str | None:
        """Wait until there is nothing to do. Returns None then, and after `limit_s` seconds what is still going on.

        `caller`: the task or thread that waits for it. A message that it has in hand itself is not waited for."""
        until = self._clock.liveness() + limit_s
        quiet = 0
        while True:
            before = _activity(self._broker)
            await self._turn_loops()
            await asyncio.sleep(_QUIET_S)
            reason = self.reason(caller)
            if reason is None and before != _activity(self._broker):
                reason = "somebody still talks to the broker"
            quiet = quiet + 1 if reason is None else 0
            if quiet == _QUIET_ROUNDS:
                return None
            if reason is not None and self._clock.liveness() >= until:
                return reason

    def reason(self, caller: object = None) -> str | None:
        """Why there is still something to do, None if there is nothing."""
        if self._broker.agenda.is_working:
            return "the broker is at work"
        if self._clock.is_ringing:
            return "a consumer ends its pause"
        cores = registry.running(self._nameservers)
        try:
            members = [member for core in cores for member in core.members if isinstance(member, GroupMember)]
            return (
                next((f"{core.client_id} waits for an answer" for core in cores if core.questions_out > 0), None)
                or next((reason for member in members if (reason := self._work_of(member, caller))), None)
                or self._unread(cores)
            )
        except RuntimeError:  # tables change while we look, on other threads
            return "consumers come and go"

    def _work_of(self, member: GroupMember, caller: object) -> str | None:
        who = f"a consumer of group {member.group}"
        if not member.is_started:
            return f"{who} starts"
        if count := member.unfinished(caller):
            return f"{who} is not done with {count} messages"
        for held in member.held:
            queue = held.queue
            end = self._broker.kernel.queue_state(queue.topic, queue.queue_id).next
            reset = self._broker.pending_resets.get(member.group, queue.topic, queue.queue_id)
            if held.paused or held.full() is not None:
                continue
            if held.next_offset < end or (reset is not None and not member.broadcasting):
                return f"{who} has not read {queue} to its end yet"
        return None

    def _unread(self, cores: list[ClientCore]) -> str | None:
        """Queues that a group wants and nobody reads yet. Those who should are told to look."""
        members = [(core, member) for core in cores for member in core.members if isinstance(member, GroupMember)]
        unread: str | None = None
        for core, member in members:
            ours = [other for _, other in members if other.group == member.group]
            if self._has_strangers(member.group, len(ours)):
                continue  # of what they read we know nothing
            readers = [member] if member.broadcasting else ours
            read = {held.queue for reader in readers for held in reader.held}
            for topic in member.shared_topics:
                config = self._broker.topics.get(topic)
                if config is None or not config.permission & PERMISSION_READ:
                    continue
                known = {(queue.topic, queue.queue_id) for queue in read}
                if any((topic, number) not in known for number in range(config.read_queues)):
                    unread = f"no consumer of group {member.group} reads all of topic {topic} yet"
                    self._look_again(core)
        return unread

    def _has_strangers(self, group: str, known: int) -> bool:
        connected = self._broker.clients.consumers.get(group)
        return connected is not None and len(connected.members) > known

    def _look_again(self, core: ClientCore) -> None:
        looking = self._looking.get(core)
        if looking is None or looking.done():
            looking = _on(core.loop, core.look_again())
            if looking is not None:
                self._looking[core] = looking

    async def _turn_loops(self) -> None:
        """Let every loop that clients live on turn a few times."""
        loops = {core.loop for core in registry.running(self._nameservers)}
        turned = [future for loop in loops if (future := _on(loop, _turns())) is not None]
        if turned:
            await asyncio.wait([asyncio.wrap_future(future) for future in turned], timeout=_QUIET_S * 10)


def _on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> Future[None] | None:
    try:
        return asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # the loop was closed a moment ago
        work.close()
        return None


async def _turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def _activity(broker: Broker) -> tuple[Any, ...]:
    kernel = broker.kernel
    return kernel.put_count, kernel.get_count, kernel.fast_frames, kernel.left_frames
