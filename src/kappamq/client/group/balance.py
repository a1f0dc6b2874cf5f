"""Rebalancing strategies: which member of a group reads which queue.

There is no coordinator: each consumer asks a broker for the members, sorts them, and computes its own share. Until all
members have seen the same list, a queue may have two readers or none; that is RocketMQ's rule, and messages may be delivered
twice. All members must use the same strategy. The rules are Java's, so that members of both languages can share a group.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from kappamq.errors import ConfigError
from kappamq.message import MessageQueue

K = TypeVar("K")

Strategy = Callable[[str, Sequence[str], Sequence[MessageQueue]], list[MessageQueue]]
"""Maps own client id, all client ids sorted and all queues sorted to the own queues; none for a client not in the list."""

VIRTUAL_NODES: Final = 10
_RINGS_KEPT: Final = 16


def averagely(client_id: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Assign contiguous ranges of queues; the first members get one more if it does not divide."""
    if client_id not in client_ids or not queues:
        return []
    index, members = client_ids.index(client_id), len(client_ids)
    size, rest = divmod(len(queues), members)
    start = index * size + min(index, rest)
    return list(queues[start : start + size + (index < rest)])


def circle(client_id: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Deal the queues out round-robin, so that each member reads from every broker."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


class ConsistentHash:
    """Members and queues on a hash ring; a queue belongs to the first member at or after it.

    When a member joins or leaves only its own queues move. Shares may be very uneven: more virtual nodes even them out,
    but then every member, including Java's, must use the same number.
    """

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        if virtual_nodes < 1:
            raise ConfigError(f"{virtual_nodes=}: must be at least 1")
        self._virtual_nodes = virtual_nodes
        self._rings: dict[tuple[str, ...], tuple[list[int], list[str]]] = {}

    def __call__(self, client_id: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        places, owners = self._ring(tuple(client_ids))
        return [
            queue
            for queue in queues
            if owners[bisect.bisect_left(places, _place(_queue_key(queue))) % len(places)] == client_id
        ]

    def _ring(self, client_ids: tuple[str, ...]) -> tuple[list[int], list[str]]:
        # Called once per topic with the same members, so cache the ring.
        ring = self._rings.get(client_ids)
        if ring is None:
            # If two members hash to the same place the later one in the list has it, so all members agree.
            at = {
                _place(f"{member}-{number}"): member for member in client_ids for number in range(self._virtual_nodes)
            }
            places = sorted(at)
            ring = places, [at[place] for place in places]
            if len(self._rings) >= _RINGS_KEPT:
                self._rings.clear()
            self._rings[client_ids] = ring
        return ring


def by_configuration(queues: Iterable[MessageQueue]) -> Strategy:
    """This member reads exactly these queues, whatever others read. You have to make sure that all queues are covered."""
    mine = frozenset(queues)

    def chosen(client_id: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        return [queue for queue in queues if queue in mine]

    return chosen


def by_machine_room(rooms: Collection[str]) -> Strategy:
    """Only queues of brokers called `room@name` with a room in `rooms`; these are divided among all members."""
    wanted = frozenset([rooms] if isinstance(rooms, str) else rooms)

    def chosen(client_id: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        here = [queue for queue in queues if queue.broker.count("@") == 1 and queue.broker.partition("@")[0] in wanted]
        size, rest = divmod(len(here), len(client_ids))
        index = client_ids.index(client_id)
        share = here[index * size : (index + 1) * size]
        # The remainder is dealt out from the end.
        return share + ([here[len(client_ids) * size + index]] if index < rest else [])

    return chosen


def nearby(
    room_of_broker: Callable[[MessageQueue], str] | Mapping[str, str],
    room_of_client: Callable[[str], str] | Mapping[str, str],
    within: str | Strategy = "averagely",
) -> Strategy:
    """Queues go to members in the same room; queues of rooms without a member are divided among all.

    `room_of_broker`: broker name -> room, or a function of the queue. `room_of_client`: client id -> room.
    """
    broker_room = _looked_up(room_of_broker, "broker", lambda queue: queue.broker)
    client_room = _looked_up(room_of_client, "client", lambda client_id: client_id)
    inner = strategy(within)

    def chosen(client_id: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        queues_in: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_in.setdefault(broker_room(queue), []).append(queue)
        members_in: dict[str, list[str]] = {}
        for member in client_ids:
            members_in.setdefault(client_room(member), []).append(member)
        own = client_room(client_id)
        mine = inner(client_id, members_in[own], queues_in.get(own, []))
        for room in sorted(queues_in.keys() - members_in.keys()):
            mine = mine + inner(client_id, client_ids, queues_in[room])
        return mine

    return chosen


consistent_hash: Final = ConsistentHash()

STRATEGIES: dict[str, Strategy] = {"averagely": averagely, "circle": circle, "consistent-hash": consistent_hash}
"""Strategies without parameters; `by_configuration`, `by_machine_room` and `nearby` create others."""


def strategy(chosen: str | Strategy) -> Strategy:
    """Return the strategy with that name, or `chosen` itself if it is a function."""
    if callable(chosen):
        return chosen
    try:
        return STRATEGIES[chosen]
    except KeyError:
        raise ConfigError(
            f"unknown balance strategy {chosen!r}: use one of {', '.join(STRATEGIES)}, or a function"
        ) from None


def share(
    chosen: Strategy, client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]
) -> set[MessageQueue]:
    """Return the queues of one topic that `client_id` reads."""
    return set(chosen(client_id, sorted(set(client_ids)), sorted(set(queues))))


def _queue_key(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"


def _place(key: str) -> int:
    return int.from_bytes(hashlib.md5(key.encode("utf-8", "replace"), usedforsecurity=False).digest()[:4], "big")


def _looked_up(
    given: Callable[[K], str] | Mapping[str, str], what: str, name: Callable[[K], str]
) -> Callable[[K], str]:
    if callable(given):
        return given
    table = dict(given)

    def room(item: K) -> str:
        try:
            return table[name(item)]
        except KeyError:
            raise ConfigError(f"nearby: no room is configured for {what} {name(item)!r}") from None

    return room
