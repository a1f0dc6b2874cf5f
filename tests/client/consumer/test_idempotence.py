"""Redelivery does no harm."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kappamq.client import Consumer, Producer
from kappamq.client.consumer.idempotence import CLEAN_ROWS, CLEAN_S, idempotent, identity
from kappamq.errors import ConfigError
from kappamq.local import LocalThread
from kappamq.message import Message, MessageQueue, ReceivedMessage, Redeliver
from tests.cli.conftest import small_local
from tests.waiting import eventually

KILLS = 200


def received(name: str, **changes: Any) -> ReceivedMessage:
    values: dict[str, Any] = {
        "topic": "t", "body": name.encode(), "queue": MessageQueue("t", "b", 0), "queue_offset": 0, "log_offset": 0,
        "message_id": name, "offset_id": name,
    }  # fmt: skip
    return ReceivedMessage(**(values | changes))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "work.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bills (name TEXT)")
    connection.close()
    return path


def bills(database: Path) -> Counter[str]:
    connection = sqlite3.connect(database)
    try:
        return Counter(name for (name,) in connection.execute("SELECT name FROM bills"))
    finally:
        connection.close()


def bill(message: ReceivedMessage, connection: Any) -> str:
    connection.execute("INSERT INTO bills VALUES (?)", (message.text,))
    return "billed"


def test_a_message_that_comes_again_is_left_alone(database: Path) -> None:
    listener = idempotent(database, scope="g")(bill)
    assert not listener.is_done(received("a"))
    assert listener(received("a")) == "billed"
    assert listener(received("a")) is None
    listener([received("a"), received("b"), received("b")])
    assert bills(database) == {"a": 1, "b": 1}
    assert (listener.done, listener.skipped) == (2, 3)
    assert listener.is_done(received("a"))
    listener.close()
    again = idempotent(str(database), scope="g")(bill)  # another start of the program
    again(received("a"))
    assert again.skipped == 1
    idempotent(database, scope="other group")(bill)(received("a"))
    assert bills(database)["a"] == 2


def test_what_fails_is_undone_and_may_be_done_later(database: Path) -> None:
    fail = True

    @idempotent(database)
    def work(message: ReceivedMessage, connection: Any) -> None:
        bill(message, connection)
        if fail:
            raise RuntimeError("the printer is on fire")

    with pytest.raises(RuntimeError, match="fire"):
        work(received("a"))
    assert bills(database) == {}
    assert not work.is_done(received("a"))
    fail = False
    work(received("a"))
    assert bills(database) == {"a": 1}


def test_work_that_asks_for_the_message_again_is_undone(database: Path) -> None:
    @idempotent(database)
    def work(message: ReceivedMessage, connection: Any) -> Redeliver | None:
        bill(message, connection)
        return Redeliver(level=2) if message.text == "b" else None

    assert work(received("b")) == Redeliver(level=2)
    assert work([received("a"), received("c"), received("b"), received("d")]) == Redeliver(level=2, done=2)
    assert bills(database) == {"a": 1, "c": 1}
    assert work.done == 2


def test_the_works_own_constraint_errors_are_not_taken_for_a_duplicate(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE UNIQUE INDEX one ON bills (name)")
    connection.close()
    listener = idempotent(database)(bill)
    listener(received("a"))
    with pytest.raises(sqlite3.IntegrityError):
        listener(received("b", body=b"a"))
    assert (listener.done, listener.skipped) == (1, 0)


def test_the_id_is_the_producers_whatever_became_of_the_message_since() -> None:
    assert identity(received("offset-id", properties={"UNIQ_KEY": "u", "ORIGIN_MESSAGE_ID": "o"})) == "u"
    assert identity(received("offset-id", properties={"ORIGIN_MESSAGE_ID": "o"})) == "o"
    assert identity(received("offset-id")) == "offset-id"


def test_what_counts_as_the_same_message_can_be_chosen(database: Path) -> None:
    listener = idempotent(database, identity=lambda message: message.keys[0])(bill)
    listener(received("a", keys=("order-7",)))
    listener(received("b", keys=("order-7",)))
    assert bills(database) == {"a": 1}
    with pytest.raises(ValueError, match="1 to 255 characters"):
        listener(received("c", keys=("x" * 256,)))


def test_threads_that_get_the_same_message_at_once_do_it_once(database: Path) -> None:
    listener = idempotent(database)(bill)
    start = threading.Barrier(8)

    def work() -> None:
        start.wait(10)
        for number in range(25):
            listener(received(f"m{number}"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert bills(database) == {f"m{number}": 1 for number in range(25)}
    assert (listener.done, listener.skipped) == (25, 7 * 25)
    listener.close()


def test_old_ids_are_removed_a_part_at_a_time(database: Path) -> None:
    now = 1_000_000.0
    listener = idempotent(database, scope="g", keep_s=1000, clock=lambda: now)(lambda message, connection: None)
    count = 2 * CLEAN_ROWS + 10
    listener(received("first"))  # makes the table
    with sqlite3.connect(database) as connection:
        old = [("g", f"m{number}", int(now * 1000)) for number in range(count - 1)]
        connection.executemany("INSERT INTO kappamq_done VALUES (?, ?, ?)", old)
    connection.close()

    def rows() -> int:
        connection = sqlite3.connect(database)
        try:
            return connection.execute("SELECT COUNT(*) FROM kappamq_done").fetchone()[0]
        finally:
            connection.close()

    assert rows() == count
    now += CLEAN_S  # not old enough yet
    listener(received("young"))
    assert rows() == count + 1
    now += 1001
    for left in (CLEAN_ROWS + 12, 13, 3):  # each message removes a part, until only these three are left
        listener(received(f"left {left}"))
        assert rows() == left
    assert listener.is_done(received("left 13"))
    assert not listener.is_done(received("young"))
    listener.close()


class Formatting(sqlite3.Connection):
    """A driver that wants %s for its parameters."""

    def cursor(self, *args: Any) -> Any:
        inner = super().cursor

        class Cursor(sqlite3.Cursor):
            def execute(self, statement: str, values: Any = ()) -> Any:
                assert "?" not in statement
                return super().execute(statement.replace("%s", "?"), values)

        return inner(Cursor)


def test_any_connection_will_do_that_does_not_commit_by_itself(database: Path) -> None:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(database, factory=Formatting)

    with pytest.raises(ConfigError, match="set paramstyle to one of qmark, format"):
        idempotent(connect)(lambda message, connection: None)(received("a"))
    listener = idempotent(connect, paramstyle="format")(
        lambda message, connection: connection.cursor().execute("INSERT INTO bills VALUES (%s)", (message.text,))
    )
    listener(received("a"))
    listener(received("a"))
    assert bills(database) == {"a": 1}
    listener.close()
    by_itself = idempotent(lambda: sqlite3.connect(database, isolation_level=None))(bill)
    with pytest.raises(ConfigError, match="is in autocommit mode"):
        by_itself(received("b"))
    assert bills(database) == {"a": 1}


def test_a_lost_connection_is_replaced(database: Path) -> None:
    opened: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        opened.append(sqlite3.connect(database))
        return opened[-1]

    listener = idempotent(connect)(bill)
    listener(received("a"))
    opened[0].close()
    with pytest.raises(sqlite3.ProgrammingError):
        listener(received("b"))  # comes again
    listener(received("b"))
    assert bills(database) == {"a": 1, "b": 1}
    assert len(opened) == 2


def test_connections_of_threads_that_have_ended_are_closed(database: Path) -> None:
    opened: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        opened.append(sqlite3.connect(database, check_same_thread=False))
        return opened[-1]

    listener = idempotent(connect)(bill)
    for number in range(5):
        thread = threading.Thread(target=listener, args=(received(str(number)),))
        thread.start()
        thread.join()
    assert bills(database) == {str(number): 1 for number in range(5)}
    for connection in opened[:-1]:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
    opened[-1].execute("SELECT 1")
    listener(received("here"))
    opened[-1].close()
    with pytest.raises(sqlite3.ProgrammingError):
        listener(received("lost"))
    assert listener._connections == {}
    listener.close()


def test_mistakes_are_told_at_once(database: Path) -> None:
    async def work(message: ReceivedMessage, connection: Any) -> None: ...

    with pytest.raises(ConfigError, match="plain function"):
        idempotent(database)(work)
    with pytest.raises(ConfigError, match="not the name of a table"):
        idempotent(database, table="x; DROP TABLE bills")(bill)
    with pytest.raises(ConfigError, match="kept for more than 0 seconds"):
        idempotent(database, keep_s=0)(bill)


@pytest.mark.timeout(180)
def test_the_work_is_done_once_though_the_consumer_is_killed_200_times(database: Path, tmp_path: Path) -> None:
    with LocalThread(small_local(tmp_path / "data")) as local:
        names = [f"order-{number}" for number in range(KILLS + 20)]
        with Producer(local.nameserver) as producer:
            for part in producer.in_batches([Message("orders", name.encode()) for name in names], count_max=50):
                producer.send_batch(part)
        command = [sys.executable, "-m", "tests.client.killing", local.nameserver, str(database), str(KILLS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 0, done.stderr
        before, after = map(int, done.stdout.split())
        assert (before > KILLS // 10, after) == (True, KILLS)
        assert sum(bills(database).values()) == KILLS
        # One that lives does the rest; nothing is left out, and nothing is done twice.
        listener = idempotent(database, scope="billing")(bill)
        with Consumer(local.nameserver, group="billing", topics="orders", listener=listener, consume_from="first"):
            eventually(lambda: sum(bills(database).values()) == len(names), timeout=30)
        assert bills(database) == dict.fromkeys(names, 1)
        assert listener.skipped >= 1
        listener.close()


def test_a_clock_that_is_a_year_ahead_for_a_moment_forgets_nothing(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = idempotent(database, scope="g")(lambda message, connection: None)
    listener(received("done"))
    real, ahead_ns = time.time_ns, [0]
    monkeypatch.setattr(time, "time_ns", lambda: real() + ahead_ns[0])
    monkeypatch.setattr(listener, "_clean_at", 0.0)
    ahead_ns[0] = 365 * 86_400 * 10**9
    listener(received("during"))
    monkeypatch.setattr(listener, "_clean_at", 0.0)
    ahead_ns[0] = 0
    listener(received("after"))
    assert listener.is_done(received("done"))
    assert listener.is_done(received("during"))
    listener.close()
