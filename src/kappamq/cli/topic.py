"""`kappamq topic ...`: what topics there are, where their queues lie, and how much is in them."""

from __future__ import annotations

import enum
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kappamq.cli.exits import Exit
from kappamq.cli.options import DEFAULT_NAMESERVER, NameServerOption, OutputOption, TimeoutOption, fail, spoken
from kappamq.cli.output import Format, Output, counted, when

if TYPE_CHECKING:
    from kappamq.client.admin import AsyncAdmin

T = TypeVar("T")

app = typer.Typer(help="List, make, change, delete and look at topics.", no_args_is_help=True, rich_markup_mode=None)

TopicArgument = Annotated[str, typer.Argument(help="The topic's name.", show_default=False)]
QueuesOption = Annotated[int | None, typer.Option("--queues", "-q", min=1, max=65_536, help="Queues per broker.")]
ReadQueuesOption = Annotated[
    int | None, typer.Option(min=1, max=65_536, help="If another number than is written to.", show_default=False)
]


class Permission(enum.StrEnum):
    READ = "r"
    WRITE = "w"
    BOTH = "rw"

    @property
    def bits(self) -> int:
        return {"r": 4, "w": 2, "rw": 6}[self.value]


PermissionOption = Annotated[Permission | None, typer.Option("--permission", "-p", help="Read, write or both.")]


def ask(nameserver: str, timeout: float, work: Callable[[AsyncAdmin], Awaitable[T]]) -> T:
    """Run `work` with an admin of its own."""
    from kappamq.client.admin import AsyncAdmin
    from kappamq.event_loop import run

    async def main() -> T:
        milliseconds = max(1, int(timeout * 1000))
        async with AsyncAdmin(nameserver, request_timeout_ms=milliseconds) as admin:
            return await work(admin)

    return run(main())


def letters(bits: int) -> str:
    return ("r" if bits & 4 else "-") + ("w" if bits & 2 else "-")


@app.command("list")
@spoken
def list_(
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also the system's, retry and dead-letter topics.")] = False,
    timeout: TimeoutOption = 5.0,
    nameserver: NameServerOption = DEFAULT_NAMESERVER,
    output: OutputOption = Format.TEXT,
) -> None:
    """List the topics that the name server knows."""
    out = Output(output)
    topics = ask(nameserver, timeout, lambda admin: admin.topics(system=all_))
    for topic in topics:
        out.line(_escaped(topic), topic=topic)
    if not topics:
        out.note("no topics yet; the first message sent to one makes it")


@app.command()
@spoken
def create(
    topic: TopicArgument,
    queues: Annotated[int, typer.Option("--queues", "-q", min=1, max=65_536, help="Queues per broker.")] = 8,
    read_queues: ReadQueuesOption = None,
    permission: Annotated[Permission, typer.Option("--permission", "-p")] = Permission.BOTH,
    order: Annotated[bool, typer.Option("--order", help="Mark it as an ordered topic.")] = False,
    cluster: Annotated[str | None, typer.Option(help="Only on this cluster's brokers.", show_default=False)] = None,
    timeout: TimeoutOption = 5.0,
    nameserver: NameServerOption = DEFAULT_NAMESERVER,
    output: OutputOption = Format.TEXT,
) -> None:
    """Make a topic on every broker; one that exists gets these settings."""

    async def work(admin: AsyncAdmin) -> None:
        await admin.create_topic(
            topic, queues, read_queues=read_queues, permission=permission.bits, order=order, cluster=cluster
        )

    ask(nameserver, timeout, work)
    Output(output).line(f"made [bold]{_escaped(topic)}[/] with {counted(queues, 'queue')}", topic=topic, queues=queues)


@app.command()
@spoken
def update(
    topic: TopicArgument,
    queues: QueuesOption = None,
    read_queues: ReadQueuesOption = None,
    permission: PermissionOption = None,
    order: Annotated[bool | None, typer.Option("--order/--no-order", show_default=False)] = None,
    timeout: TimeoutOption = 5.0,
    nameserver: NameServerOption = DEFAULT_NAMESERVER,
    output: OutputOption = Format.TEXT,
) -> None:
    """Change what is named of a topic that exists; messages in queues taken away are out of reach."""

    async def work(admin: AsyncAdmin) -> list[dict[str, Any]]:
        bits = None if permission is None else permission.bits
        await admin.update_topic(topic, queues=queues, read_queues=read_queues, permission=bits, order=order)
        return await _settings(admin, topic)

    out = Output(output)
    out.table(topic, ["broker", "write queues", "read queues", "permission", "order"], ask(nameserver, timeout, work))


@app.command()
@spoken
def delete(
    topic: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    cluster: Annotated[str | None, typer.Option(help="Only on this cluster's brokers.", show_default=False)] = None,
    timeout: TimeoutOption = 5.0,
    nameserver: NameServerOption = DEFAULT_NAMESERVER,
    output: OutputOption = Format.TEXT,
) -> None:
    """Delete a topic and with it every message in it."""
    if not yes:
        ask(nameserver, timeout, lambda admin: admin.route(topic))  # nobody need be asked about one that is not there
        if not on_a_terminal():
            fail(Output(output), f"nobody is there to ask whether to delete {topic}: use --yes", Exit.USAGE)
        typer.confirm(f"Delete {topic} and every message in it?", abort=True, err=True)
    ask(nameserver, timeout, lambda admin: admin.delete_topic(topic, cluster=cluster))
    Output(output).line(f"deleted [bold]{_escaped(topic)}[/]", topic=topic, deleted=True)


@app.command()
@spoken
def route(
    topic: TopicArgument,
    timeout: TimeoutOption = 5.0,
    nameserver: NameServerOption = DEFAULT_NAMESERVER,
    output: OutputOption = Format.TEXT,
) -> None:
    """Show which brokers hold the topic's queues, under which addresses."""

    async def work(admin: AsyncAdmin) -> list[dict[str, Any]]:
        found = await admin.route(topic)
        return [
            {
                "broker": broker,
                "role": "master" if number == 0 else f"slave {number}",
                "address": address,
                "write queues": sum(queue.broker == broker for queue in found.publish) if number == 0 else 0,
                "read queues": sum(queue.broker == broker for queue in found.subscribe),
            }
            for broker, addresses in sorted(found.addresses.items())
            for number, address in sorted(addresses.items())
        ]

    columns = ["broker", "role", "address", "write queues", "read queues"]
    Output(output).table(topic, columns, ask(nameserver, timeout, work))


@app.command()
@spoken
def status(
    topic: TopicArgument,
    timeout: TimeoutOption = 5.0,
    nameserver: NameServerOption = DEFAULT_NAMESERVER,
    output: OutputOption = Format.TEXT,
) -> None:
    """Show for each queue where it starts and ends, and when it got its last message."""
    out = Output(output)
    found = ask(nameserver, timeout, lambda admin: admin.topic_stats(topic))
    rows: list[dict[str, Any]] = [
        {
            "broker": queue.broker,
            "queue": queue.queue_id,
            "first": offset.min_offset,
            "next": offset.max_offset,
            "messages": offset.max_offset - offset.min_offset,
            "last stored": offset.last_update_ms if out.json else when(offset.last_update_ms),
        }
        for queue, offset in found.items()
    ]
    out.table(topic, ["broker", "queue", "first", "next", "messages", "last stored"], rows)
    total = sum(row["messages"] for row in rows)
    out.note(f"{counted(total, 'message')} in {counted(len(rows), 'queue')}")


async def _settings(admin: AsyncAdmin, topic: str) -> list[dict[str, Any]]:
    return [
        {
            "broker": broker,
            "write queues": config.write_queues,
            "read queues": config.read_queues,
            "permission": letters(config.permission),
            "order": config.order,
        }
        for broker, config in (await admin.topic_config(topic)).items()
    ]


def on_a_terminal() -> bool:
    return sys.stdin.isatty()


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")
