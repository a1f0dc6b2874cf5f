"""`kappamq tail`: prints the messages of a topic as they arrive. Joins no group, so consumers are not affected."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from kappamq.cli.shared.cluster import Cluster, clustered
from kappamq.cli.shared.exits import Exit
from kappamq.cli.shared.options import OutputOption, TopicArgument, fail, spoken
from kappamq.cli.shared.output import Format, Output, counted
from kappamq.cli.shared.times import parse_time

_PLACES: Final = {"start": "start", "end": "end", "first": "start", "last": "end"}
"""The Python client calls them first and last."""


@spoken
@clustered
def tail(
    cluster: Cluster,
    topic: TopicArgument,
    from_: Annotated[str, typer.Option("--from", help="start, end, or a time such as '10:00' or '15m' (ago).")] = "end",
    tags: Annotated[str, typer.Option(help="Only these tags, as in 'paid || new'.")] = "*",
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="Exit after this many.")] = None,
    follow: Annotated[bool, typer.Option(help="Wait for more; --no-follow exits at the current end.")] = True,
    output: OutputOption = Format.TEXT,
) -> None:
    """Print the messages of a topic as they arrive, in the order in which they were stored; Ctrl-C exits."""
    from kappamq.cli.tailing import Tail
    from kappamq.errors import UnknownTopic
    from kappamq.event_loop import run

    out = Output(output)
    start = _PLACES.get(from_) or parse_time("--from", from_, int(time.time() * 1000), ("start", "end"))
    tail = Tail(topic, start, tags, count, follow, cluster, out)
    try:
        run(tail.run())
    except UnknownTopic as error:
        raise cluster.with_hint(error, topic) from None
    except KeyboardInterrupt:
        out.note("stopped")  # the usual way to end it
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
            f"some messages could not be shown: {', '.join(unreadable)}; run `kappamq store verify` on the broker's machine",
            Exit.FAILED,
        )
