"""A message that is delivered if, and only if, a row was written. Here the database is SQLite.

python examples/transaction.py [host:port of the name server]
"""

import sqlite3
import sys

from kappamq import Consumer, Message, ReceivedMessage, TransactionProducer

nameserver = sys.argv[1] if len(sys.argv) > 1 else None  # $KAPPAMQ_NAMESERVER, else 127.0.0.1:9876
database = sqlite3.connect("file:orders?mode=memory&cache=shared", uri=True, check_same_thread=False)
database.execute("CREATE TABLE orders (message_id TEXT PRIMARY KEY, what TEXT)")


def was_written(message: ReceivedMessage) -> bool:
    """Asked when nobody knows what has become of a message, perhaps because a producer died. Any producer may be asked."""
    own = sqlite3.connect("file:orders?mode=memory&cache=shared", uri=True)
    return bool(own.execute("SELECT 1 FROM orders WHERE message_id = ?", (message.message_id,)).fetchone())


with TransactionProducer(nameserver, group="order-desk", check=was_written) as producer:
    for number, stock in ((1, 5), (2, 0), (3, 2)):
        try:
            # The message is stored, but nobody sees it. A normal end of the block commits it, an exception rolls it back.
            with producer.transaction(Message("orders-written", f"order {number}".encode())) as transaction, database:
                database.execute("INSERT INTO orders VALUES (?, ?)", (transaction.message_id, f"order {number}"))
                if not stock:
                    raise LookupError(f"order {number}: sold out")
            print(f"order {number}: written and told, {transaction.decision}")
        except LookupError as error:
            print(f"{error}, {transaction.decision}")

with Consumer(nameserver, group="shipping", topics="orders-written", consume_from="first", idle_timeout=5) as consumer:
    heard: list[str] = []
    for message in consumer:
        heard.append(message.text)
        if len(heard) == 2:
            break
print(f"shipping heard of: {', '.join(sorted(heard))}")
