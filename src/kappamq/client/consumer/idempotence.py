"""Idempotent listeners: the id of a message is stored in the same database transaction as the work done for it.

Messages are delivered at least once: a consumer that dies between its work and its acknowledgement gets the message again. If
the work is done in a database, the message id can be stored in the same transaction. A message whose id is already stored is
acknowledged without calling the work again.

    @idempotent("billing.db", scope="billing")
    def bill(message, connection):
        connection.execute("INSERT INTO bills VALUES (?, ?)", (message.keys[0], message.text))

    Consumer(group="billing", topics="orders", listener=bill)
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import re
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from kappamq.clock import SystemClock, WatchedClock
from kappamq.errors import ConfigError
from kappamq.message import ReceivedMessage, Redeliver
from kappamq.protocol.records import properties

log = logging.getLogger(__name__)

Work = Callable[[ReceivedMessage, Any], Any]
Identity = Callable[[ReceivedMessage], str]

KEEP_S: Final = 7 * 86_400.0
"""How long ids are kept. It must exceed the brokers' retention (RocketMQ: 3 days), or an old message could pass as new."""
CLEAN_S: Final = 600.0
CLEAN_ROWS: Final = 1000
"""How many old ids are removed at a time, so that no message waits long for the cleanup."""
ID_CHARACTERS_MAX: Final = 255
BUSY_S: Final = 30.0
"""How long SQLite waits for other writers."""

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", re.ASCII)
_PARAMETERS: Final = {
    "qmark": ("?", "?", "?"),
    "format": ("%s", "%s", "%s"),
    "pyformat": ("%s", "%s", "%s"),
    "numeric": (":1", ":2", ":3"),
    "named": (":1", ":2", ":3"),  # drivers that expect names accept numbers, too
}


def identity(message: ReceivedMessage) -> str:
    """Return the id that stays the same over all deliveries: the one its producer (or first broker) assigned."""
    given = message.properties
    return given.get(properties.UNIQUE_KEY) or given.get(properties.ORIGIN_MESSAGE_ID) or message.message_id


def idempotent(
    database: str | Path | Callable[[], Any],
    *,
    scope: str = "",
    table: str = "kappamq_done",
    keep_s: float = KEEP_S,
    identity: Identity = identity,
    paramstyle: str | None = None,
    clock: Callable[[], float] | None = None,
) -> Callable[[Work], Idempotent]:
    """Return a decorator that turns `work(message, connection)` into a listener.

    `database`: a file for SQLite, or a function that opens a DB-API connection (called once per thread; it must not
    commit by itself). `work` uses that connection and must not commit or roll back itself; if it raises or
    returns `Redeliver`, the transaction is rolled back.
    `scope`: groups that share the table need different scopes. `keep_s`: ids older than this are removed. `identity`: returns
    the key that identifies a message, if not its id.
    """
    return lambda work: Idempotent(work, database, scope, table, keep_s, identity, paramstyle, clock)


class Idempotent:
    """A listener that does its work once per message, however often the message is delivered. Thread-safe."""

    def __init__(
        self,
        work: Work,
        database: str | Path | Callable[[], Any],
        scope: str,
        table: str,
        keep_s: float,
        identity: Identity,
        paramstyle: str | None,
        clock: Callable[[], float] | None,
    ) -> None:
        if inspect.iscoroutinefunction(work):
            raise ConfigError(
                "DB-API connections block: the work of an idempotent listener must be a plain function, not a coroutine function"
            )
        if not _TABLE.fullmatch(table):
            raise ConfigError(f"{table!r} is not the name of a table: use letters, digits and _")
        if keep_s <= 0:
            raise ConfigError(f"{keep_s=}: ids must be kept for more than 0 seconds")
        self.done = 0  # messages processed here
        self.skipped = 0  # messages that had been processed before
        self._work = work
        self._connect = database if callable(database) else lambda: _sqlite(database)
        self._scope, self._table = scope, table
        self._keep_s, self._identity, self._clock = keep_s, identity, clock
        self._machine = WatchedClock(SystemClock())
        self._paramstyle = paramstyle
        self._own = threading.local()
        self._lock = threading.Lock()
        self._connections: dict[threading.Thread, Any] = {}
        self._process = os.getpid()
        self._ready = False
        self._clean_at = 0.0

    def __call__(self, given: ReceivedMessage | Iterable[ReceivedMessage]) -> Any:
        """Process one message, or each of several. If one fails, those before it stay processed."""
        if isinstance(given, ReceivedMessage):
            return self._once(given)
        for number, message in enumerate(given):
            result = self._once(message)
            if isinstance(result, Redeliver):
                return replace(result, done=number)
        return None

    def is_done(self, message: ReceivedMessage) -> bool:
        """Return whether this message has been processed by anyone who shares this table and scope."""
        connection = self._connection()
        try:
            return self._is_noted(connection, self._identity(message))
        finally:
            connection.rollback()

    def close(self) -> None:
        """Close the connections of all threads. They are reopened when needed."""
        with self._lock:
            connections, self._connections = list(self._connections.values()), {}
            self._own = threading.local()
        for connection in connections:
            _close(connection)

    # --- the transaction ---

    def _once(self, message: ReceivedMessage) -> Any:
        name = self._identity(message)
        if not name or len(name) > ID_CHARACTERS_MAX:
            raise ValueError(f"a message id must have 1 to {ID_CHARACTERS_MAX} characters, got {name[:300]!r}")
        connection = self._connection()
        try:
            # Insert the id first: a concurrent delivery of the same message blocks here until we commit or roll back.
            if not self._note(connection, name):
                self._count(skipped=1)
                return None
            result = self._work(message, connection)
            if isinstance(result, Redeliver):
                connection.rollback()  # the message was not processed
                return result
            connection.commit()
        except BaseException:
            self._undo(connection)
            raise
        self._count(done=1)
        self._clean(connection)
        return result

    def _note(self, connection: Any, name: str) -> bool:
        """Insert the id. Returns False if it is already there."""
        try:
            self._execute(
                connection,
                f"INSERT INTO {self._table} (scope, message_id, done_ms) VALUES ({{}}, {{}}, {{}})",
                (self._scope, name, self._now_ms()),
            )
        except Exception:
            # Drivers raise different errors for a duplicate key, so look into the table instead.
            connection.rollback()
            if self._is_noted(connection, name):
                connection.rollback()
                return False
            raise
        if getattr(connection, "in_transaction", True) is False or getattr(connection, "autocommit", False) is True:
            raise ConfigError(
                "this database connection is in autocommit mode, so work and id would not be stored "
                "together: open it with autocommit off (SQLite: isolation_level other than None)"
            )
        return True

    def _is_noted(self, connection: Any, name: str) -> bool:
        cursor = self._execute(
            connection,
            f"SELECT 1 FROM {self._table} WHERE scope = {{}} AND message_id = {{}}",
            (self._scope, name),
        )
        return cursor.fetchone() is not None

    def _clean(self, connection: Any) -> None:
        """Remove expired ids, a limited number per call; the rest follow with later messages."""
        now = time.monotonic() if self._clock is None else self._clock()
        with self._lock:
            if now < self._clean_at:
                return
            self._clean_at = now + CLEAN_S
        try:
            condition = f"FROM {self._table} WHERE scope = {{}}"
            old = self._execute(
                connection,
                f"SELECT message_id {condition} AND done_ms < {{}}",
                (self._scope, self._settled_ms() - round(self._keep_s * 1000)),
            ).fetchmany(CLEAN_ROWS)
            for (name,) in old:
                self._execute(connection, f"DELETE {condition} AND message_id = {{}}", (self._scope, name))
            connection.commit()
            if len(old) == CLEAN_ROWS:
                self._clean_at = 0.0
        except Exception:
            self._undo(connection)
            log.exception("could not remove old ids from table %s; retrying later", self._table)

    def _now_ms(self) -> int:
        if self._clock is not None:
            return round(self._clock() * 1000)
        self._machine.adopt()
        return self._machine.message_ms()

    def _settled_ms(self) -> int:
        """A wall clock that jumps a year ahead for a second must not expire every id."""
        return round(self._clock() * 1000) if self._clock is not None else self._machine.settled_ms()

    def _undo(self, connection: Any) -> None:
        try:
            connection.rollback()
        except Exception as error:
            log.warning("lost the database connection (%s); the next message opens a new one", error)
            self._own.connection = None
            with self._lock:
                self._connections.pop(threading.current_thread(), None)
            _close(connection)

    def _count(self, *, done: int = 0, skipped: int = 0) -> None:
        with self._lock:
            self.done += done
            self.skipped += skipped

    # --- the connection ---

    def _connection(self) -> Any:
        if self._process != os.getpid():
            # After a fork: a connection must not be used by two processes, not even to close it.
            self._process, self._own, self._connections = os.getpid(), threading.local(), {}
            self._lock = threading.Lock()
        connection = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._connect()
            if self._paramstyle is None:
                self._paramstyle = _paramstyle(connection)
            if not self._ready:
                self._make_table(connection)
                self._ready = True
            self._own.connection = connection
            self._keep(connection)
        return connection

    def _keep(self, connection: Any) -> None:
        """Store this thread's connection, and close those of threads that have ended."""
        own = threading.current_thread()
        with self._lock:
            ended = [thread for thread in self._connections if thread is own or not thread.is_alive()]
            unused = [self._connections.pop(thread) for thread in ended]
            self._connections[own] = connection
        for one in unused:
            _close(one)

    def _make_table(self, connection: Any) -> None:
        columns = "scope VARCHAR(255) NOT NULL, message_id VARCHAR(255) NOT NULL, done_ms BIGINT NOT NULL"
        index = f"{self._table.replace('.', '_')}_age"
        for statement, needed in (
            (f"CREATE TABLE IF NOT EXISTS {self._table} ({columns}, PRIMARY KEY (scope, message_id))", True),
            (f"CREATE INDEX IF NOT EXISTS {index} ON {self._table} (scope, done_ms)", False),
        ):
            try:
                connection.cursor().execute(statement)
                connection.commit()
            except Exception:
                # Another thread or process may have created it just now; some databases have no IF NOT EXISTS for an index.
                connection.rollback()
                if needed:
                    self._is_noted(connection, "")  # raises if there is no table
                    connection.rollback()

    def _execute(self, connection: Any, statement: str, values: tuple[Any, ...]) -> Any:
        assert self._paramstyle is not None
        cursor = connection.cursor()
        cursor.execute(statement.format(*_PARAMETERS[self._paramstyle]), values)
        return cursor


def _sqlite(path: str | Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_S, check_same_thread=False)
    # WAL lets readers proceed during a write, and the file remembers the mode. While another connection is switching the
    # mode, SQLite reports "database is locked" at once, whatever the timeout.
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA journal_mode = WAL")
    return connection


def _close(connection: Any) -> None:
    # The connection may be lost, and some drivers let only the owning thread close it.
    with contextlib.suppress(Exception):
        connection.close()


def _paramstyle(connection: Any) -> str:
    """Return the parameter style of the connection's driver, as its module declares it."""
    module = sys.modules.get(type(connection).__module__.partition(".")[0].lstrip("_"))
    style = getattr(module, "paramstyle", None)
    if style not in _PARAMETERS:
        raise ConfigError(
            f"the parameter style of {type(connection).__module__} is unknown ({style}): set paramstyle to one of "
            f"{', '.join(_PARAMETERS)}"
        )
    return str(style)
