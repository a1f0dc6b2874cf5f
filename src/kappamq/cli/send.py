"""`kappamq send`: sends messages from the command line, a file or a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappamq.cli.shared.cluster import Cluster, clustered
from kappamq.cli.shared.options import OutputOption, TimeoutOption, spoken
from kappamq.cli.shared.output import Format, Output, literal
from kappamq.cli.shared.usage import topic_name, wrong
from kappamq.errors import ConfigError

if TYPE_CHECKING:
    from kappamq.message import Message, SendResult

COUNT_MAX = 1_000_000
_STORED_ONLY = {
    "flush timeout": "but not on the disk within the broker's time limit (flush timeout)",
    "slave timeout": "on the master only: no slave has it within the broker's time limit (slave timeout)",
    "slave not available": "on the master only: no slave is connected, so it is not copied (slave not available)",
}


@spoken
@clustered
def send(
    cluster: Cluster,
    topic: Annotated[
        str, typer.Option("--topic", "-t", help="Created by the broker if it does not exist yet.", callback=topic_name)
    ],
    body: Annotated[str | None, typer.Option("--body", "-b", help="The text to send.", show_default=False)] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Send a file; - for standard input.", show_default=False),
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="One message for every line of the file that is not empty.")
    ] = False,
    tags: Annotated[str, typer.Option(help="A tag that consumers can filter by.")] = "",
    key: Annotated[list[str] | None, typer.Option(help="A key to find it by; may be repeated.")] = None,
    property_: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="May be repeated.")
    ] = None,
    order_key: Annotated[
        str | None, typer.Option(help="Messages with the same order key keep their order.", show_default=False)
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=COUNT_MAX, help="Send it this many times.")] = 1,
    timeout: TimeoutOption = 3.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Send one message, a file, or every line of a file."""
    out = Output(output)
    if (body is None) == (file is None):
        raise wrong("--body", "give the message with --body TEXT, or with --file PATH (- for standard input)")
    if lines and file is None:
        raise wrong("--lines", "requires --file PATH (- for standard input)")
    keys, properties = tuple(key or ()), _pairs(property_)
    from kappamq.message import Message

    for option, values in (
        ("--tags", {"tags": tags}),
        ("--key", {"keys": keys}),
        ("--property", {"properties": properties}),
    ):
        try:
            Message(topic, b"", **values)
        except (TypeError, ValueError) as error:
            raise wrong(option, error) from None

    def messages() -> Iterator[Message]:
        for content in _bodies(body, file, lines):
            message = Message(topic, content, tags, keys, properties)
            for _ in range(count):
                yield message

    from kappamq.event_loop import run

    run(_send_all(messages(), order_key, timeout, cluster, out))


async def _send_all(
    messages: Iterator[Message], order_key: str | None, timeout: float, cluster: Cluster, out: Output
) -> None:
    from kappamq.client.producer.producer import AsyncProducer

    sent = 0
    began = time.perf_counter()
    async with AsyncProducer(**cluster.options) as producer:
        with out.progress("sending", None, unit="messages") as at:
            for message in messages:
                start = time.perf_counter()
                result = await producer.send(message, key=order_key, timeout=timeout)
                _tell(out, result, (time.perf_counter() - start) * 1000)
                sent += 1
                at(sent)
    seconds = time.perf_counter() - began
    if sent > 1:
        out.note(f"{sent} messages in {seconds:.1f} s")
    if not sent:
        out.note("nothing to send: the input was empty")


def _tell(out: Output, result: SendResult, ms: float) -> None:
    warning = "" if result.ok else f", [yellow]{_STORED_ONLY.get(str(result.status), result.status)}[/]"
    out.line(
        f"sent  {literal(result.queue.topic)}/{result.queue.queue_id}  offset {result.queue_offset}  "
        f"id {literal(result.message_id)}  stored in {ms:.1f} ms{warning}",
        status=str(result.status),
        topic=result.queue.topic,
        broker=result.queue.broker,
        queue=result.queue.queue_id,
        offset=result.queue_offset,
        id=result.message_id,
        offset_id=result.offset_id,
        ms=round(ms, 3),
    )


def _bodies(body: str | None, file: Path | None, lines: bool) -> Iterator[bytes]:
    if body is not None:
        # Arguments may contain bytes that are not UTF-8; they are sent as typed.
        yield body.encode("utf-8", "surrogateescape")
        return
    assert file is not None
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as source:
            if lines:
                yield from filter(None, (line.rstrip(b"\r\n") for line in source))
            else:
                yield source.read()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from error


def _pairs(given: list[str] | None) -> dict[str, Any]:
    found = {}
    for text in given or []:
        name, separator, value = text.partition("=")
        if not separator or not name or not value:
            raise wrong("--property", f"{text}: write it as name=value, neither of them empty")
        found[name] = value
    return found
