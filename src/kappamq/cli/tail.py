"""`kappamq tail`: see the messages of a topic as they come. Joins no group, so nobody misses one because of it."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from kappamq.cli.cluster import Cluster, clustered
from kappamq.cli.options import OutputOption, TopicArgument, spoken
from kappamq.cli.output import Format, Output
from kappamq.cli.times import parse_time


@spoken
@clustered
def tail(
    cluster: Cluster,
    topic: TopicArgument,
    from_: Annotated[str, typer.Option("--from", help="end, start, or a time such as '10:00' or '15m' (ago).")] = "end",
    tags: Annotated[str, typer.Option(help="Only these tags, as in 'paid || new'.")] = "*",
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="End after this many.")] = None,
    follow: Annotated[bool, typer.Option(help="Wait for more; --no-follow ends at what is the end now.")] = True,
    output: OutputOption = Format.TEXT,
) -> None:
    """Print the messages of a topic as they come, in the order in which they were stored; Ctrl-C ends."""
    from kappamq.cli.tailing import Tail
    from kappamq.event_loop import run

    out = Output(output)
    start = from_ if from_ in ("end", "start") else parse_time("--from", from_, int(time.time() * 1000))
    try:
        run(Tail(topic, start, tags, count, follow, cluster, out).run())
    except KeyboardInterrupt:
        out.note("stopped")  # the usual end of it
