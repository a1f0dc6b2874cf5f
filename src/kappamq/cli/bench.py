"""`kappamq bench`: measures how fast a cluster stores and delivers messages. The amount of work is bounded.

The load comes from our own asyncio client, so the figures measure the client as much as the broker; `make bench` in the
source tree measures the broker alone.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kappamq.cli.shared.cluster import Cluster, clustered
from kappamq.cli.shared.exits import Exit
from kappamq.cli.shared.options import OutputOption, spoken
from kappamq.cli.shared.output import Format, Output
from kappamq.cli.shared.usage import topic_name, wrong


@spoken
@clustered
def bench(
    cluster: Cluster,
    topic: Annotated[str, typer.Option(help="Created if it does not exist.", callback=topic_name)] = "kappamq_bench",
    messages: Annotated[int, typer.Option(min=1, max=100_000_000, help="How many to send.")] = 20_000,
    size: Annotated[int, typer.Option(min=1, max=4 << 20, help="Bytes in a body.")] = 100,
    connections: Annotated[int, typer.Option(min=1, max=1000, help="How many connections to send on.")] = 4,
    inflight: Annotated[int, typer.Option(min=1, max=10_000, help="Requests in flight per connection.")] = 16,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Messages per request.")] = 1,
    consume: Annotated[bool, typer.Option(help="Read them back as well.")] = True,
    output: OutputOption = Format.TEXT,
) -> None:
    """Send messages as fast as the cluster accepts them, then read them back."""
    from kappamq.cli.load import Work, send_and_receive
    from kappamq.event_loop import run

    out = Output(output)
    if size * batch > 4 << 20:
        raise wrong("--batch", f"{batch} messages of {size} bytes do not fit into one request of 4 MiB")
    work = Work(topic, messages, size, connections, inflight, batch)
    failed = run(send_and_receive(work, consume, cluster, out))
    if failed:
        raise typer.Exit(int(Exit.FAILED))
