"""Large bodies travel and lie compressed; consumers get them as they were sent. The broker never unpacks them.

python examples/compressed_bodies.py [host:port of the name server]
"""

import sys
from typing import Literal

from kappamq import Consumer, Message, Producer

nameserver = sys.argv[1] if len(sys.argv) > 1 else None  # $KAPPAMQ_NAMESERVER, else 127.0.0.1:9876
report = b"oolong;7.20;in stock\nsencha;6.80;in stock\n" * 2000
kinds: tuple[Literal["zlib", "lz4", "zstd"], ...] = ("zlib", "lz4", "zstd")

for kind in kinds:
    # Bodies below 4096 bytes are sent as they are (compress_over_bytes).
    with Producer(nameserver, compress_kind=kind, compress_level=5) as producer:
        producer.send(Message("reports", report, tags=kind))

with Consumer(nameserver, group="archive", topics="reports", consume_from="first") as consumer:
    for _ in kinds:
        message = consumer.poll(10)
        assert message is not None
        assert message.body == report
        print(f"{message.tags}: {len(message.body)} bytes in a record of {message.stored_bytes}")
