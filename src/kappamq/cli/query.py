"""`kappamq query ...`: finds stored messages by key, id or time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from kappamq.cli.shared import messages
from kappamq.cli.shared.cluster import Cluster, clustered
from kappamq.cli.shared.exits import Exit
from kappamq.cli.shared.options import OutputOption, TimeoutOption, TopicArgument, fail, spoken
from kappamq.cli.shared.output import Format, Output, counted
from kappamq.cli.shared.times import parse_time
from kappamq.cli.shared.usage import Family, topic_name, wrong

if TYPE_CHECKING:
    from kappamq.message import ReceivedMessage

app = typer.Typer(
    cls=Family, help="Find stored messages by key, id or time.", no_args_is_help=True, rich_markup_mode=None
)

FROM_HELP = "A time, e.g. '2026-11-15 10:00', '10:00', '15m' (ago) or milliseconds since 1970."
FromOption = Annotated[str, typer.Option("--from", help=FROM_HELP)]
ToOption = Annotated[str, typer.Option("--to", help="A time like --from.")]
LongOption = Annotated[bool, typer.Option("--long", "-l", help="Show all fields of each message, not one line.")]


@app.command()
@spoken
@clustered
def key(
    cluster: Cluster,
    topic: TopicArgument,
    key: Annotated[str, typer.Argument(help="The key it was sent with.", show_default=False)],
    count: Annotated[int, typer.Option(min=1, max=64, help="At most this many.")] = 32,
    from_: FromOption = "0",
    to: ToOption = "now",
    long: LongOption = False,
    timeout: TimeoutOption = 5.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Find messages by a key they were sent with."""
    begin, end = _span(from_, to)
    found = cluster.ask(timeout, lambda admin: admin.query_by_key(topic, key, count=count, begin=begin, end=end), topic)
    _show(Output(output), found, f"no message in {topic} has the key {key}", long)


@app.command("id")
@spoken
@clustered
def id_(
    cluster: Cluster,
    message_id: Annotated[str, typer.Argument(help="A message id or an offset id.", show_default=False)],
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", "-t", help="Required for ids assigned by a producer.", show_default=False, callback=topic_name
        ),
    ] = None,
    timeout: TimeoutOption = 5.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Find one message by its id."""
    if topic is None:
        _check_place(message_id)
    messages.details(Output(output), cluster.ask(timeout, lambda admin: admin.query_by_id(message_id, topic), topic))


@app.command("time")
@spoken
@clustered
def time_(
    cluster: Cluster,
    topic: TopicArgument,
    from_: FromOption,
    to: ToOption = "now",
    tags: Annotated[str, typer.Option(help="Only these tags, as in 'paid || new'.")] = "*",
    count: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many.")] = 100,
    long: LongOption = False,
    timeout: TimeoutOption = 5.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Find messages by their store time, oldest first."""
    begin, end = _span(from_, to)
    found = cluster.ask(timeout, lambda admin: admin.query_by_time(topic, begin, end, count=count, tags=tags), topic)
    _show(Output(output), found, f"{topic} has no messages from that time", long)


def _check_place(message_id: str) -> None:
    """Without a topic only an offset id can be found; report other ids as usage errors."""
    from kappamq.errors import ProtocolError
    from kappamq.protocol.records.ids import ID_CHARACTERS, could_be_id, parse_offset_id

    try:
        parse_offset_id(message_id)
    except ProtocolError:
        if could_be_id(message_id):
            raise wrong("--topic", "this id was assigned by a producer: add --topic TOPIC") from None
        form = " or ".join(map(str, ID_CHARACTERS))
        raise wrong(
            "ID", f"{message_id} is not an id: ids have {form} hexadecimal digits; use `query key` to find a key"
        ) from None


def _span(begin: str, end: str) -> tuple[int, int]:
    now_ms = int(time.time() * 1000)
    # "now" includes what is stored during the query; a broker's clock may be a little ahead of ours.
    begin_ms = parse_time("--from", begin, now_ms)
    end_ms = now_ms + 60_000 if end == "now" else parse_time("--to", end, now_ms)
    if begin_ms > end_ms:
        raise wrong("--from", f"{begin} is after --to {end}")
    return begin_ms, end_ms


def _show(out: Output, found: list[ReceivedMessage], nothing: str, long: bool) -> None:
    if not found:
        fail(out, nothing, Exit.NOT_FOUND)
    for message in found:
        (messages.details if long else messages.line)(out, message)
    out.note(counted(len(found), "message"))
