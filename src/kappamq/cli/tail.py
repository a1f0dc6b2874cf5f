"""`kappamq tail`: see the messages of a topic as they come. Joins no group, so nobody misses one because of it."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from kappamq.cli.options import DEFAULT_NAMESERVER, NameServerOption, OutputOption, spoken
from kappamq.cli.output import Format, Output
from kappamq.cli.times import parse_time


@spoken
def tail(
    topic: Annotated[str, typer.Argument(help="The topic's name.", show_default=False)],
    from_: Annotated[str, typer.Option("--from", help="end, start, or a time such as '10:00' or '15m' (ago).")] = "end",
    tags: Annotated[str, typer.Option(help="Only these tags, as in 'paid || new'.")] = "*",
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="End after this many.")] = None,
    follow: Annotated[bool, typer.Option(help="Wait for more; --no-follow ends at what is the end now.")] = True,
    nameserver: NameServerOption = DEFAULT_NAMESERVER,
    output: OutputOption = Format.TEXT,
) -> None:
    """Print the messages of a topic as they come; Ctrl-C ends."""
    from kappamq.cli.tailing import Tail
    from kappamq.event_loop import run

    out = Output(output)
    start = from_ if from_ in ("end", "start") else parse_time(from_, int(time.time() * 1000))
    try:
        run(Tail(topic, start, tags, count, follow, nameserver, out).run())
    except KeyboardInterrupt:
        out.note("stopped")  # the usual end of it
