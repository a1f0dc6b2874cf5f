"""Who of a group reads which queue. Every member computes the same answer from the same two sorted lists.

No one assigns: each consumer asks a broker who is in the group, sorts, and takes its own share. Until all members
have seen the same list, a queue may have two readers or none; that is RocketMQ's rule, and messages may come twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kappamq.errors import ConfigError
from kappamq.message import MessageQueue

Strategy = Callable[[str, Sequence[str], Sequence[MessageQueue]], list[MessageQueue]]
"""(own client id, all client ids sorted, all queues sorted) -> own queues. A client not in the list gets none."""


def averagely(client_id: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Cut the queues into runs of neighbours; the first members get one more if it does not divide."""
    if client_id not in client_ids or not queues:
        return []
    index, members = client_ids.index(client_id), len(client_ids)
    size, rest = divmod(len(queues), members)
    start = index * size + min(index, rest)
    return list(queues[start : start + size + (index < rest)])


def circle(client_id: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Deal the queues out like cards, so that each member reads from every broker."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


STRATEGIES: dict[str, Strategy] = {"averagely": averagely, "circle": circle}


def strategy(chosen: str | Strategy) -> Strategy:
    """Return the strategy of that name, or `chosen` itself if it is one already."""
    if callable(chosen):
        return chosen
    try:
        return STRATEGIES[chosen]
    except KeyError:
        raise ConfigError(
            f"no balance strategy {chosen!r}: use one of {', '.join(STRATEGIES)}, or a function"
        ) from None


def share(
    chosen: Strategy, client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]
) -> set[MessageQueue]:
    """Return the queues of one topic that `client_id` reads."""
    return set(chosen(client_id, sorted(set(client_ids)), sorted(set(queues))))
