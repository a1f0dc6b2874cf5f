"""`kappamq tail`: see the messages of a topic as they come. Joins no group, so nobody misses one because of it."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from kappamq.cli.shared.cluster import Cluster, clustered
from kappamq.cli.shared.exits import Exit
from kappamq.cli.shared.options import OutputOption, TopicArgument, fail, spoken
from kappamq.cli.shared.output import Format, Output, counted
from kappamq.cli.shared.times import parse_time


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
    from kappamq.errors import UnknownTopic
    from kappamq.event_loop import run

    out = Output(output)
    start = from_ if from_ in ("end", "start") else parse_time("--from", from_, int(time.time() * 1000))
    tail = Tail(topic, start, tags, count, follow, cluster, out)
    try:
        run(tail.run())
    except UnknownTopic as error:
        raise cluster.with_hint(error, topic) from None
    except KeyboardInterrupt:
        out.note("stopped")  # the usual end of it
    unreadable = [
        f"{counted(number, 'message')} {why}"
        for number, why in (
            (tail.damaged, "damaged"),
            (tail.missing, "left out by the broker, which could not read them"),
        )
        if number
    ]
    if unreadable:
        fail(
            out,
            f"not everything could be shown: {', '.join(unreadable)}; run `kappamq store verify` there",
            Exit.FAILED,
        )
