"""`kappamq bench`: how fast a cluster takes messages from here, and hands them back. A bounded amount of work.

The load is our own asyncio client, so the figures are about the client as much as about the broker; `make bench` in the
source tree measures the broker alone.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kappamq.cli.exits import Exit
from kappamq.cli.options import DEFAULT_NAMESERVER, NameServerOption, OutputOption, fail, spoken
from kappamq.cli.output import Format, Output


@spoken
def bench(
    topic: Annotated[str, typer.Option(help="Made if it does not exist.")] = "kappamq_bench",
    messages: Annotated[int, typer.Option(min=1, max=100_000_000, help="How many to send.")] = 20_000,
    size: Annotated[int, typer.Option(min=1, max=4 << 20, help="Bytes in a body.")] = 100,
    connections: Annotated[int, typer.Option(min=1, max=1000)] = 4,
    inflight: Annotated[int, typer.Option(min=1, max=10_000, help="Requests under way per connection.")] = 16,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Messages in a request.")] = 1,
    consume: Annotated[bool, typer.Option(help="Read them back as well.")] = True,
    nameserver: NameServerOption = DEFAULT_NAMESERVER,
    output: OutputOption = Format.TEXT,
) -> None:
    """Send messages as fast as they are taken, then read them back."""
    from kappamq.cli.load import Work, send_and_receive
    from kappamq.event_loop import run

    out = Output(output)
    if size * batch > 4 << 20:
        fail(out, f"{batch} messages of {size} bytes do not fit into one request of 4 MiB", Exit.USAGE)
    work = Work(topic, messages, size, connections, inflight, batch)
    failed = run(send_and_receive(work, consume, nameserver, out))
    if failed:
        raise typer.Exit(int(Exit.FAILED))
