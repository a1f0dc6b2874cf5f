"""`kappamq topic ...`: what topics there are, where their queues lie, and how much is in them."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappamq.cli.cluster import Cluster, clustered
from kappamq.cli.options import OutputOption, TimeoutOption, TopicArgument, spoken
from kappamq.cli.output import Format, Output, counted, when
from kappamq.cli.usage import Family, wrong

if TYPE_CHECKING:
    from kappamq.client.admin import AsyncAdmin

app = typer.Typer(
    cls=Family, help="List, make, change, delete and look at topics.", no_args_is_help=True, rich_markup_mode=None
)

ClusterNameOption = Annotated[
    str | None, typer.Option("--cluster", help="Only on this cluster's brokers.", show_default=False)
]
QueuesOption = Annotated[int | None, typer.Option("--queues", "-q", min=1, max=65_536, help="Queues per broker.")]
ReadQueuesOption = Annotated[
    int | None, typer.Option(min=1, max=65_536, help="If another number than is written to.", show_default=False)
]


SETTINGS = ["broker", "write_queues", "read_queues", "permission", "order"]


class Permission(enum.StrEnum):
    READ = "r"
    WRITE = "w"
    BOTH = "rw"

    @property
    def bits(self) -> int:
        return {"r": 4, "w": 2, "rw": 6}[self.value]


PermissionOption = Annotated[Permission | None, typer.Option("--permission", "-p", help="Read, write or both.")]


def letters(bits: int) -> str:
    return ("r" if bits & 4 else "-") + ("w" if bits & 2 else "-")


@app.command("list")
@spoken
@clustered
def list_(
    cluster: Cluster,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also the system's, retry and dead-letter topics.")] = False,
    timeout: TimeoutOption = 5.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """List the topics that the name server knows."""
    out = Output(output)
    topics = cluster.ask(timeout, lambda admin: admin.topics(system=all_))
    for topic in topics:
        out.line(_escaped(topic), topic=topic)
    if not topics:
        out.note("no topics yet; the first message sent to one makes it")


@app.command()
@spoken
@clustered
def create(
    cluster: Cluster,
    topic: TopicArgument,
    queues: Annotated[int, typer.Option("--queues", "-q", min=1, max=65_536, help="Queues per broker.")] = 8,
    read_queues: ReadQueuesOption = None,
    permission: Annotated[Permission, typer.Option("--permission", "-p")] = Permission.BOTH,
    order: Annotated[bool, typer.Option("--order", help="Mark it as an ordered topic.")] = False,
    only_cluster: ClusterNameOption = None,
    timeout: TimeoutOption = 5.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Make a topic on every broker; one that exists gets these settings."""
    out = Output(output)

    async def work(admin: AsyncAdmin) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        before = await _settings_if_any(admin, topic)
        await admin.create_topic(
            topic, queues, read_queues=read_queues, permission=permission.bits, order=order, cluster=only_cluster
        )
        return before, await _settings(admin, topic)

    before, rows = cluster.ask(timeout, work)
    _tell_out_of_reach(out, before, rows)
    if out.json:
        out.table(topic, SETTINGS, rows)
    else:
        where = ", ".join(row["broker"] for row in rows)
        done, to = ("changed", "to") if before else ("made", "with")
        out.line(f"{done} [bold]{_escaped(topic)}[/] {to} {counted(queues, 'queue')} on {_escaped(where)}")


@app.command()
@spoken
@clustered
def update(
    cluster: Cluster,
    topic: TopicArgument,
    queues: QueuesOption = None,
    read_queues: ReadQueuesOption = None,
    permission: PermissionOption = None,
    order: Annotated[bool | None, typer.Option("--order/--no-order", show_default=False)] = None,
    timeout: TimeoutOption = 5.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Change what is named of a topic that exists; messages in queues taken away are out of reach."""

    out = Output(output)

    async def work(admin: AsyncAdmin) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        before = await _settings(admin, topic)
        bits = None if permission is None else permission.bits
        await admin.update_topic(topic, queues=queues, read_queues=read_queues, permission=bits, order=order)
        return before, await _settings(admin, topic)

    before, rows = cluster.ask(timeout, work)
    _tell_out_of_reach(out, before, rows)
    out.table(topic, SETTINGS, rows)


@app.command()
@spoken
@clustered
def delete(
    cluster: Cluster,
    topic: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    only_cluster: ClusterNameOption = None,
    timeout: TimeoutOption = 5.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Delete a topic and with it every message in it."""
    if not yes:
        cluster.ask(timeout, lambda admin: admin.route(topic))  # nobody need be asked about one that is not there
        if not on_a_terminal():
            raise wrong("--yes", f"nobody is there to ask whether to delete {topic}: use --yes")
        typer.confirm(f"Delete {topic} and every message in it?", abort=True, err=True)
    cluster.ask(timeout, lambda admin: admin.delete_topic(topic, cluster=only_cluster))
    Output(output).line(f"deleted [bold]{_escaped(topic)}[/]", topic=topic, deleted=True)


@app.command()
@spoken
@clustered
def route(
    cluster: Cluster,
    topic: TopicArgument,
    timeout: TimeoutOption = 5.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Show which brokers hold the topic's queues, under which addresses."""

    async def work(admin: AsyncAdmin) -> list[dict[str, Any]]:
        found = await admin.route(topic)
        return [
            {
                "topic": topic,
                "broker": broker,
                "role": "master" if number == 0 else f"slave {number}",
                "address": address,
                "write_queues": sum(queue.broker == broker for queue in found.publish) if number == 0 else 0,
                "read_queues": sum(queue.broker == broker for queue in found.subscribe),
            }
            for broker, addresses in sorted(found.addresses.items())
            for number, address in sorted(addresses.items())
        ]

    columns = ["broker", "role", "address", "write_queues", "read_queues"]
    Output(output).table(topic, columns, cluster.ask(timeout, work))


@app.command()
@spoken
@clustered
def status(
    cluster: Cluster,
    topic: TopicArgument,
    timeout: TimeoutOption = 5.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Show for each queue where it starts and ends, and when it got its last message."""
    out = Output(output)
    found = cluster.ask(timeout, lambda admin: admin.topic_stats(topic))
    rows: list[dict[str, Any]] = [
        {
            "topic": topic,
            "broker": queue.broker,
            "queue": queue.queue_id,
            "min_offset": offset.min_offset,
            "max_offset": offset.max_offset,
            "messages": offset.max_offset - offset.min_offset,
            "last_stored_ms": offset.last_update_ms,
        }
        for queue, offset in found.items()
    ]
    if not out.json:
        rows = [{**row, "last_stored": when(row["last_stored_ms"])} for row in rows]
    out.table(topic, ["broker", "queue", "min_offset", "max_offset", "messages", "last_stored"], rows)
    total = sum(row["messages"] for row in rows)
    out.note(f"{counted(total, 'message')} in {counted(len(rows), 'queue')}")


async def _settings(admin: AsyncAdmin, topic: str) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic,
            "broker": broker,
            "write_queues": config.write_queues,
            "read_queues": config.read_queues,
            "permission": letters(config.permission),
            "order": config.order,
        }
        for broker, config in (await admin.topic_config(topic)).items()
    ]


async def _settings_if_any(admin: AsyncAdmin, topic: str) -> list[dict[str, Any]]:
    from kappamq.errors import TopicNotFound

    try:
        return await _settings(admin, topic)
    except TopicNotFound:
        return []


def _tell_out_of_reach(out: Output, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """Fewer queues to read from: what is in the others is still there, but nobody will see it."""
    had = {row["broker"]: row["read_queues"] for row in before}
    lost = [row for row in after if row["read_queues"] < had.get(row["broker"], 0)]
    if lost:
        most = max(had[row["broker"]] for row in lost)
        out.warn(
            f"queues {min(row['read_queues'] for row in lost)} to {most - 1} are not read any more: what is in them is out of "
            f"reach until the topic has {most} queues again (--read-queues {most}). Admin.resize_topic empties them first"
        )


def on_a_terminal() -> bool:
    return sys.stdin.isatty()


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")
