"""Settling: waits until the broker and every client of this process that uses it are idle.

That is: nothing is due at the broker, no request is in flight, every queue of a subscribed topic has a reader, every reader has
pulled its queue to the end, and every listener has finished. Consumers that wait for a topic which has been created meanwhile
are triggered to look again, since by themselves they do so only at intervals of real time.

Of clients in other processes only their requests can be observed: they count as idle when they send none for a moment.
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
"""Turns of each client's event loop between two checks, so that ready tasks can start."""


class Settling:
    """For one kit, on its broker's loop. `nameservers`: the addresses that clients may use for it."""

    def __init__(self, broker: Broker, clock: KitClock, nameservers: Iterable[str]) -> None:
        self._broker = broker
        self._clock = clock
        self._nameservers = frozenset(nameservers)
        self._looking: dict[ClientCore, Future[None]] = {}

    async def wait(self, limit_s: float, caller: object) -> str | None:
        """Wait until everything is idle. Returns None then, or after `limit_s` seconds what is still busy.

        `caller`: the task or thread that waits. A message that it has in flight itself is ignored."""
        until = self._clock.liveness() + limit_s
        quiet = 0
        while True:
            before = _activity(self._broker)
            await self._turn_loops()
            await asyncio.sleep(_QUIET_S)
            reason = self.reason(caller)
            if reason is None and before != _activity(self._broker):
                reason = "a client is still sending requests to the broker"
            quiet = quiet + 1 if reason is None else 0
            if quiet == _QUIET_ROUNDS:
                return None
            if reason is not None and self._clock.liveness() >= until:
                return reason

    def reason(self, caller: object = None) -> str | None:
        """Return what is still busy, None if everything is idle."""
        if self._broker.delivery.agenda.is_working:
            return "the broker is busy"
        if self._clock.is_ringing:
            return "a consumer is resuming after a pause"
        cores = registry.running(self._nameservers)
        try:
            members = [member for core in cores for member in core.members if isinstance(member, GroupMember)]
            return (
                next((f"{core.client_id} waits for an answer" for core in cores if core.questions_out > 0), None)
                or next((reason for member in members if (reason := self._work_of(member, caller))), None)
                or self._unread(cores)
            )
        except RuntimeError:  # other threads change the tables while we iterate
            return "consumers are starting or stopping"

    def _work_of(self, member: GroupMember, caller: object) -> str | None:
        who = f"a consumer of group {member.group}"
        if not member.is_started:
            return f"{who} is starting"
        if count := member.unfinished(caller):
            return f"{who} has {count} messages in flight"
        for held in member.held:
            queue = held.queue
            end = self._broker.kernel.queue_state(queue.topic, queue.queue_id).next
            reset = self._broker.pending_resets.get(member.group, queue.topic, queue.queue_id)
            if held.paused or held.full() is not None:
                continue
            if held.next_offset < end or (reset is not None and not member.broadcasting):
                return f"{who} has not consumed {queue} to its end yet"
        return None

    def _unread(self, cores: list[ClientCore]) -> str | None:
        """Return queues that a group subscribes to and no one reads yet; triggers a rebalance of the consumers that should."""
        members = [(core, member) for core in cores for member in core.members if isinstance(member, GroupMember)]
        unread: str | None = None
        for core, member in members:
            ours = [other for _, other in members if other.group == member.group]
            if self._has_strangers(member.group, len(ours)):
                continue  # members in other processes: their queues are unknown
            readers = [member] if member.broadcasting else ours
            read = {held.queue for reader in readers for held in reader.held}
            for topic in member.shared_topics:
                config = self._broker.topics.get(topic)
                if config is None or not config.permission & PERMISSION_READ:
                    continue
                known = {(queue.topic, queue.queue_id) for queue in read}
                if any((topic, number) not in known for number in range(config.read_queues)):
                    unread = f"the consumers of group {member.group} do not cover all queues of topic {topic} yet"
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
        """Let every loop with clients run a few turns."""
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
