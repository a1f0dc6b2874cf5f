"""Do the work for each message once, though messages may be delivered more than once.

The id of the message is stored in the same database transaction as the work: both, or neither.

python examples/idempotent.py [host:port of the name server]
"""

import sqlite3
import sys
import tempfile
import time
from pathlib import Path

from kappamq import Admin, Consumer, Message, Producer, ReceivedMessage, idempotent

nameserver = sys.argv[1] if len(sys.argv) > 1 else None  # $KAPPAMQ_NAMESERVER, else 127.0.0.1:9876
folder = tempfile.TemporaryDirectory()
database = Path(folder.name) / "accounts.db"
topic = f"payments-{time.time_ns():x}"  # a new one for each run of this example, as the database is
with sqlite3.connect(database) as setup:
    setup.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, cents INTEGER)")
    setup.execute("INSERT INTO accounts VALUES ('ann', 0)")
setup.close()


@idempotent(database, scope="accounting")
def book(message: ReceivedMessage, connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE accounts SET cents = cents + ? WHERE name = 'ann'", (int(message.body),))


def consume(count: int) -> None:
    """Listen until so many messages were dealt with."""
    with Consumer(nameserver, group="accounting", topics=topic, consume_from="first") as consumer:
        for _ in range(count):
            message = consumer.poll(10)
            assert message is not None
            book(message)


with Producer(nameserver) as producer, Admin(nameserver) as admin:
    for cents in (500, 250, 125):
        producer.send(Message(topic, str(cents).encode()))
    consume(3)
    admin.reset_offset("accounting", topic, 0)  # as if the consumer had died before it could acknowledge anything
    consume(3)
with sqlite3.connect(database) as connection:
    (balance,) = connection.execute("SELECT cents FROM accounts").fetchone()
connection.close()
book.close()
folder.cleanup()
print(
    f"3 payments, delivered {book.done + book.skipped} times; booked {book.done}, left alone {book.skipped}: {balance} cents"
)
assert balance == 875
