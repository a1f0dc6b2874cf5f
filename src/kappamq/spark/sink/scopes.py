"""The scopes that this process writes to: each is opened once, and again if an operator has reset it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from kappamq.errors import InvalidParameter, KappaError
from kappamq.spark import connection
from kappamq.spark.patience import PATIENCE_S, Patience

if TYPE_CHECKING:
    from kappamq.client.batches.scope import Ticket
    from kappamq.client.blocking.batch_scope import BatchScope
    from kappamq.client.blocking.clients import Producer
    from kappamq.spark.sink.options import WriteOptions

_opened: WeakKeyDictionary[Producer, dict[tuple[str, str], BatchScope]] = WeakKeyDictionary()
"""By client, which is one of this process, and by scope and owner."""
_checked: WeakKeyDictionary[Producer, set[str]] = WeakKeyDictionary()


def producer(options: WriteOptions) -> Producer:
    return connection.producer(options.nameservers, options.group, tls=options.tls)


def check_start(options: WriteOptions, owner: str | None) -> None:
    """Before the first batch of a query, on the driver: check all masters, without waiting for any.

    Raises NotConnected for one that cannot be reached, NotSupported for one that is not a KappaMQ broker, and, if the owner is known
    already, IllegalOperation if the scope has another owner."""
    client, name = producer(options), _name(options)
    if owner is not None:
        opened(options, owner, patience_s=0)
    elif name not in _checked.setdefault(client, set()):
        client.check_masters(name)
        _checked[client].add(name)


def opened(options: WriteOptions, owner: str, *, patience_s: float = PATIENCE_S) -> BatchScope:
    """Return the scope, opened as its owner. Raises IllegalOperation, which names both owners, if it has another one."""
    client, name = producer(options), _name(options)
    scopes = _opened.setdefault(client, {})
    if (name, owner) not in scopes:
        patience = Patience(f"opening scope {name}", patience_s)
        while (name, owner) not in scopes:
            try:
                scopes[name, owner] = client.open_scope(name, owner, patience_s=PATIENCE_S)
            except KappaError as error:
                patience.wait_after(error)
    return scopes[name, owner]


def begin(options: WriteOptions, owner: str, number: int, attempt: str) -> Ticket:
    """Take part in an attempt at a batch; the ticket says whether it was decided before."""
    try:
        return opened(options, owner).begin(number, attempt=attempt)
    except InvalidParameter:  # its coordinator no longer knows it: an operator has reset it
        del _opened[producer(options)][_name(options), owner]
        return opened(options, owner).begin(number, attempt=attempt)


def _name(options: WriteOptions) -> str:
    assert options.exactly_once is not None
    return options.exactly_once.scope
