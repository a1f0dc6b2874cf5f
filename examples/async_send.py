"""Send without waiting for each answer: futures tell how each send ended.

python examples/async_send.py [nameserver]
"""

import sys
import time
from concurrent.futures import as_completed

from kappamq import Message, Producer

nameserver = sys.argv[1] if len(sys.argv) > 1 else None
COUNT = 1000

# The time limit of a send begins when it is handed over: whoever hands over many at once gives them time to wait for each other.
with Producer(nameserver, group="example-shop", send_timeout_ms=30_000) as producer:
    began = time.perf_counter()
    futures = [producer.send_async(Message("example-orders", f"order {n}".encode())) for n in range(COUNT)]
    stored = sum(future.result().ok for future in as_completed(futures))
    seconds = time.perf_counter() - began

assert stored == COUNT
print(f"{stored} messages stored, {stored / seconds:,.0f} a second")
