"""`kappamq topic ...`: lists, creates, changes and deletes topics, and shows their routes and offsets."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappamq.cli.shared.cluster import Cluster, clustered
from kappamq.cli.shared.exits import Exit
from kappamq.cli.shared.options import OutputOption, TimeoutOption, TopicArgument, fail, spoken
from kappamq.cli.shared.output import Format, Output, counted, literal, when
from kappamq.cli.shared.usage import Family, wrong

if TYPE_CHECKING:
    from kappamq.client.admin.admin import AsyncAdmin

app = typer.Typer(
    cls=Family, help="List, create, change, delete and inspect topics.", no_args_is_help=True, rich_markup_mode=None
)

ClusterNameOption = Annotated[
    str | None, typer.Option("--cluster", help="Only on this cluster's brokers.", show_default=False)
]
QueuesOption = Annotated[int | None, typer.Option("--queues", "-q", min=1, max=65_536, help="Queues per broker.")]
ReadQueuesOption = Annotated[
    int | None,
    typer.Option(min=1, max=65_536, help="Number of read queues, if it differs from --queues.", show_default=False),
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
    all_: Annotated[bool, typer.Option("--all", "-a", help="Include system, retry and dead-letter topics.")] = False,
    timeout: TimeoutOption = 5.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """List the topics that are registered with the name server."""
    out = Output(output)

    async def work(admin: AsyncAdmin) -> list[str]:
        topics = await admin.topics(system=all_)
        if not topics:
            await admin.masters()  # without a broker there are no topics, but that is another matter
        return topics

    topics = cluster.ask(timeout, work)
    for topic in topics:
        out.line(literal(topic), topic=topic)
    if not topics:
        out.note("no topics yet; the first message sent to a topic creates it")


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
    """Create a topic on every broker; an existing topic is not changed: use `topic update`."""
    out = Output(output)
    wanted = {
        "write_queues": queues,
        "read_queues": read_queues or queues,
        "permission": letters(permission.bits),
        "order": order,
    }

    async def work(admin: AsyncAdmin) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        asked = await admin.masters(only_cluster)
        before = [row for row in await _settings_if_any(admin, topic) if row["broker"] in asked]
        if any(row[name] != value for row in before for name, value in wanted.items()):
            return before, []
        # Also where it exists: another broker may lack it, and equal settings change nothing.
        await admin.create_topic(
            topic, queues, read_queues=read_queues, permission=permission.bits, order=order, cluster=only_cluster
        )
        return before, await _settings(admin, topic)

    before, rows = cluster.ask(timeout, work)
    if not rows:
        fail(
            out,
            f"{topic} already exists with {_told_settings(before, wanted)}: nothing changed; `kappamq topic update {topic}` changes it",
            Exit.REFUSED,
        )
    if out.json:
        out.table(topic, SETTINGS, rows)
        return
    where = ", ".join(row["broker"] for row in rows)
    if len(before) == len(rows):
        out.line(f"[bold]{literal(topic)}[/] already exists with {counted(queues, 'queue')} on {literal(where)}")
    else:
        out.line(f"created [bold]{literal(topic)}[/] with {counted(queues, 'queue')} on {literal(where)}")


@app.command()
@spoken
@clustered
def update(
    cluster: Cluster,
    topic: TopicArgument,
    queues: QueuesOption = None,
    read_queues: ReadQueuesOption = None,
    permission: PermissionOption = None,
    order: Annotated[
        bool | None,
        typer.Option("--order/--no-order", help="Mark it as an ordered topic, or not.", show_default=False),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="On a terminal: do not ask when queues with messages are removed.")
    ] = False,
    timeout: TimeoutOption = 5.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Change the named settings of an existing topic; messages in removed queues become unreadable."""

    out = Output(output)
    left = queues if read_queues is None else read_queues
    if left is not None and not yes and on_a_terminal():
        stats = cluster.ask(timeout, lambda admin: admin.topic_stats(topic), topic)
        gone = sum(of.max_offset - of.min_offset for queue, of in stats.items() if queue.queue_id >= left)
        if gone:
            typer.confirm(
                f"{counted(gone, 'message')} of {topic} in the queues from {left} on will not be readable any more. Go on?",
                abort=True,
                err=True,
            )

    async def work(admin: AsyncAdmin) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        before = await _settings(admin, topic)
        bits = None if permission is None else permission.bits
        await admin.update_topic(topic, queues=queues, read_queues=read_queues, permission=bits, order=order)
        return before, await _settings(admin, topic)

    before, rows = cluster.ask(timeout, work, topic)
    _tell_out_of_reach(out, before, rows)
    out.table(topic, SETTINGS, rows)


@app.command()
@spoken
@clustered
def delete(
    cluster: Cluster,
    topic: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    only_cluster: ClusterNameOption = None,
    timeout: TimeoutOption = 5.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Delete a topic with all its messages."""
    from kappamq.errors import TopicNotFound

    try:
        if not yes:
            cluster.ask(timeout, lambda admin: admin.route(topic))  # do not ask about a topic that does not exist
            if not on_a_terminal():
                raise wrong(
                    "--yes",
                    f"standard input is not a terminal, so this cannot be confirmed: use --yes to delete {topic}",
                )
            typer.confirm(f"Delete {topic} and every message in it?", abort=True, err=True)
        cluster.ask(timeout, lambda admin: admin.delete_topic(topic, cluster=only_cluster))
    except TopicNotFound:
        nothing = TopicNotFound(f"topic {topic!r} does not exist: nothing was deleted")
        raise cluster.with_hint(nothing, topic, timeout) from None
    Output(output).line(f"deleted [bold]{literal(topic)}[/]", topic=topic, deleted=True)


@app.command()
@spoken
@clustered
def route(
    cluster: Cluster,
    topic: TopicArgument,
    timeout: TimeoutOption = 5.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Show which brokers have the topic's queues, and their addresses."""

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
    Output(output).table(topic, columns, cluster.ask(timeout, work, topic))


@app.command()
@spoken
@clustered
def status(
    cluster: Cluster,
    topic: TopicArgument,
    timeout: TimeoutOption = 5.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Show the first and the next offset of each queue, and when its last message was stored."""
    out = Output(output)
    found = cluster.ask(timeout, lambda admin: admin.topic_stats(topic), topic)
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


def _told_settings(rows: list[dict[str, Any]], wanted: dict[str, Any]) -> str:
    """Return the number of queues, and which other settings differ from the requested ones, of the first broker that differs."""
    row = next(row for row in rows if any(row[name] != value for name, value in wanted.items()))
    told = [counted(row["write_queues"], "queue")]
    if row["read_queues"] not in (row["write_queues"], wanted["read_queues"]):
        told.append(counted(row["read_queues"], "read queue"))
    if row["permission"] != wanted["permission"]:
        told.append(f"permission {row['permission']}")
    if row["order"] != wanted["order"]:
        told.append("ordered" if row["order"] else "not ordered")
    return ", ".join(told)


async def _settings_if_any(admin: AsyncAdmin, topic: str) -> list[dict[str, Any]]:
    from kappamq.errors import TopicNotFound

    try:
        return await _settings(admin, topic)
    except TopicNotFound:
        return []


def _tell_out_of_reach(out: Output, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """Warn after the number of read queues shrank: messages in the others still exist, but consumers do not see them."""
    had = {row["broker"]: row["read_queues"] for row in before}
    lost = [row for row in after if row["read_queues"] < had.get(row["broker"], 0)]
    if lost:
        most = max(had[row["broker"]] for row in lost)
        out.warn(
            f"queues {min(row['read_queues'] for row in lost)} to {most - 1} are no longer read: their messages are not "
            f"readable until the topic has {most} queues again (--read-queues {most}). Admin.resize_topic empties them first"
        )


def on_a_terminal() -> bool:
    return sys.stdin.isatty()
