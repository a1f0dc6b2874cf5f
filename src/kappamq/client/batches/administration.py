"""Operators' view of the scopes of batch transactions: list them, and free one for another owner."""

from __future__ import annotations

from kappamq.client.batches.scope import masters
from kappamq.client.core.core import ClientCore
from kappamq.errors import InvalidParameter, NotSupported
from kappamq.protocol.bodies.batches import ScopeList, ScopeState
from kappamq.protocol.headers.batches import QueryScopes, RemoveScope


async def scopes(core: ClientCore, name: str | None = None) -> dict[str, dict[str, ScopeState]]:
    """Return scope -> broker -> what that broker knows of it; of all scopes, or of one. Brokers other than KappaMQ's know none."""
    found: dict[str, dict[str, ScopeState]] = {}
    for broker, address in (await masters(core)).items():
        try:
            answer = await core.ask(address, QueryScopes(scope=name))
        except NotSupported:
            continue
        for scope in ScopeList.decode(answer.body).scopes:
            found.setdefault(scope.name, {})[broker] = scope
    return dict(sorted(found.items()))


async def reset_scope(core: ClientCore, name: str, *, force: bool = False) -> list[str]:
    """Forget a scope on all brokers, with what is staged for it, so that another owner can use its name; returns the brokers.

    Raises InvalidParameter if no broker knows it, IllegalOperation if decided batches are still being published, NotAvailable if its
    coordinator cannot be asked. With `force` it is forgotten all the same: batches that were decided but not published may be lost."""
    known = (await scopes(core, name)).get(name)
    if not known:
        raise InvalidParameter(f"no broker knows the scope {name}")
    addresses = await masters(core)
    # The coordinator first: it refuses while something of the scope is still to be published.
    for broker, scope in sorted(known.items(), key=lambda item: item[0] != item[1].coordinator):
        await core.ask(addresses[broker], RemoveScope(scope=name, owner=scope.owner, force=force or None))
    return sorted(known)
