"""Suggests the broker of the group from which consumers should read old messages: a slave reads from its own disk those that are not in
the master's memory.

The answers to pulls name it, also those that the kernel makes alone. A master sends consumers to a slave that keeps up, and a slave
keeps them as long as it does; messages young enough to be in the master's memory are read there."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from kappamq.config.copies import CopiesConfig
from kappamq.store.message_store import MessageStore

MASTER_ID: Final = 0
MEMORY_BYTES: Final = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Suggesting:
    def __init__(self, config: CopiesConfig, store: MessageStore, reader: Callable[[], int]) -> None:
        """`reader`: the id of the broker that may serve reads for the master now; 0 if none may."""
        self._config = config
        self._store = store
        self._reader = reader

    def look(self) -> None:
        """Called several times a second."""
        reader = self._reader() if self._config.read_from_slaves else MASTER_ID
        self._store.suggest(reader, MEMORY_BYTES * self._config.memory_percent // 100)
