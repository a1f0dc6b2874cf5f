"""Messages for two topics that are published together or not at all, each once, however often the program runs.

python examples/batch_transaction.py [host:port of the name server]
"""

import sys

from kappamq import Message, Producer

nameserver = sys.argv[1] if len(sys.argv) > 1 else None  # $KAPPAMQ_NAMESERVER, else 127.0.0.1:9876
days = [["milk", "tea"], ["coffee"]]

with Producer(nameserver, group="closing") as producer:
    for attempt in ("first run", "the same again, as after a crash"):
        for day, sold in enumerate(days):
            # A batch is known by its scope and its number: the second run changes nothing.
            with producer.batch_transaction("daily-sales", day) as batch:
                for article in sold:
                    batch.send(Message("sales", article.encode()), key=article)
                batch.send(Message("sales-totals", f"day {day}: {len(sold)}".encode()))
            assert batch.outcome is not None
            print(f"{attempt}, day {day}: {batch.outcome.rows} messages, written before: {batch.outcome.repeated}")
