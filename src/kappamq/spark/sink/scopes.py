"""The scopes that this process writes to: opened once, and again if an operator has reset one meanwhile."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kappamq.errors import InvalidParameter, KappaError
from kappamq.spark import connection
from kappamq.spark.patience import PATIENCE_S, Patience

if TYPE_CHECKING:
    from kappamq.client.batches.scope import Ticket
    from kappamq.client.blocking.batch_scope import BatchScope
    from kappamq.client.blocking.clients import Producer
    from kappamq.spark.sink.options import ExactlyOnce, WriteOptions

_opened: dict[tuple[int, WriteOptions, str], BatchScope] = {}
_checked: set[tuple[int, WriteOptions]] = set()


def producer(options: WriteOptions) -> Producer:
    return connection.producer(options.nameservers, options.group, tls=options.tls)


def check_start(options: WriteOptions, owner: str | None) -> None:
    """Before the first batch of a query, on the driver: all masters are asked, none is waited for.

    Raises NotConnected for one that cannot be reached, NotSupported for one that is no KappaMQ broker, and, where the owner is known
    already, IllegalOperation if the scope is somebody else's."""
    key = (os.getpid(), options)
    if key in _checked:
        return
    if owner is None:
        producer(options).check_masters(_of(options).scope)
    else:
        opened(options, owner, patience_s=0)
    _checked.add(key)


def opened(options: WriteOptions, owner: str, *, patience_s: float = PATIENCE_S) -> BatchScope:
    """The scope, as its owner uses it. Raises IllegalOperation, which names both owners, if it is somebody else's."""
    key = (os.getpid(), options, owner)
    if key not in _opened:
        name = _of(options).scope
        patience = Patience(f"opening scope {name}", patience_s)
        while key not in _opened:
            try:
                _opened[key] = producer(options).open_scope(name, owner, patience_s=PATIENCE_S)
            except KappaError as error:
                patience.wait_after(error)
    return _opened[key]


def begin(options: WriteOptions, owner: str, number: int, attempt: str) -> Ticket:
    """Take part in an attempt at a batch; the ticket says whether it was decided before."""
    try:
        return opened(options, owner).begin(number, attempt=attempt)
    except InvalidParameter:  # its coordinator does not know it any more: an operator has reset it
        del _opened[os.getpid(), options, owner]
        return opened(options, owner).begin(number, attempt=attempt)


def _of(options: WriteOptions) -> ExactlyOnce:
    assert options.exactly_once is not None
    return options.exactly_once
