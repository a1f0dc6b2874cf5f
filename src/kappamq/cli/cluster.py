"""`kappamq cluster`: all brokers with their roles, and how far slaves are behind; once, or live."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappamq.cli.shared.cluster import Cluster, clustered
from kappamq.cli.shared.options import OutputOption, TimeoutOption, spoken
from kappamq.cli.shared.output import Format, Output, size

if TYPE_CHECKING:
    from kappamq.client.admin.admin import AsyncAdmin
    from kappamq.client.admin.members import Member

COLUMNS = ("group", "id", "role", "address", "version", "term", "log_end", "lag", "in_sync")


def _member_id(given: str | None) -> str | None:
    from kappamq.config.copies import MEMBER_ID

    if given is not None and not MEMBER_ID.fullmatch(given):
        raise typer.BadParameter(f"an id must be 1 to 64 letters, digits or any of _ . ; got {given!r}")
    return given


def _place_of_copies(given: str) -> str:
    from kappamq.errors import ProtocolError
    from kappamq.protocol.address import split

    try:
        split(given)
    except ProtocolError as error:
        raise typer.BadParameter(str(error)) from None
    return given


@spoken
@clustered
def cluster(
    cluster: Cluster,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Look again and again, until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600.0, help="With --follow: seconds between two looks.")
    ] = 1.0,
    count: Annotated[
        int | None,
        typer.Option("--count", "-c", min=1, help="With --follow: exit after so many looks.", show_default=False),
    ] = None,
    timeout: TimeoutOption = 5.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """List all brokers by group: which is the master, and how far its slaves are behind."""
    out = Output(output)
    if not follow:
        found = cluster.ask(timeout, lambda admin: admin.members())
        out.table("", COLUMNS, _rows(found, text=not out.json))
        _note_problems(out, found)
        return
    try:
        cluster.ask(timeout, lambda admin: _follow(admin, out, interval, count))
    except KeyboardInterrupt:
        out.note("stopped")  # the usual way to end it


@spoken
@clustered
def transfer_leader(
    cluster: Cluster,
    group: Annotated[
        str, typer.Argument(metavar="GROUP", help="The name of the brokers of a Raft group.", show_default=False)
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="MEMBER",
            help="Its id in dLegerPeers. Default: who has most of the log.",
            show_default=False,
            callback=_member_id,
        ),
    ] = None,
    timeout: TimeoutOption = 10.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Have another member of a Raft group lead, for example before a restart."""
    out = Output(output)
    cluster.ask(timeout, lambda admin: admin.transfer_leader(group, to, timeout))
    out.line(f"another member leads {group}", group=group)


member = typer.Typer(help="Change who belongs to a Raft group, one member at a time.", no_args_is_help=True)


_Group = Annotated[str, typer.Argument(metavar="GROUP", help="The name of the brokers of a Raft group.")]
_Name = Annotated[str, typer.Argument(metavar="MEMBER", help="Its id, as in dLegerSelfId.", callback=_member_id)]
_Place = Annotated[
    str,
    typer.Argument(
        metavar="HOST:PORT", help="Where its copies are reached, as in dLegerPeers.", callback=_place_of_copies
    ),
]


@member.command("add")
@spoken
@clustered
def add_member(
    cluster: Cluster,
    group: _Group,
    name: _Name,
    place: _Place,
    timeout: TimeoutOption = 10.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Add a member. It may be started before or after; it votes by itself once it has everything."""
    out = Output(output)
    cluster.ask(timeout, lambda admin: admin.change_members(group, "add", name, place, timeout))
    out.line(
        f"{name} is a member of {group}: it learns first, and votes once it has caught up", group=group, member=name
    )


@member.command("remove")
@spoken
@clustered
def remove_member(
    cluster: Cluster,
    group: _Group,
    name: _Name,
    timeout: TimeoutOption = 10.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Remove a member, and stop it afterwards. The leader is not removed: transfer the leadership first."""
    out = Output(output)
    cluster.ask(timeout, lambda admin: admin.change_members(group, "remove", name, None, timeout))
    out.line(f"{name} is no member of {group} any more: stop it if it still runs", group=group, member=name)


@member.command("replace")
@spoken
@clustered
def replace_member(
    cluster: Cluster,
    group: _Group,
    name: _Name,
    place: _Place,
    timeout: TimeoutOption = 10.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Say that a member is at another address: it was moved, or is lost and begins anew there with an empty directory."""
    out = Output(output)
    cluster.ask(timeout, lambda admin: admin.change_members(group, "replace", name, place, timeout))
    out.line(f"{name} of {group} is at {place} now", group=group, member=name, address=place)


async def _follow(admin: AsyncAdmin, out: Output, interval: float, count: int | None) -> None:
    from kappamq.errors import KappaError

    looks = 0
    with out.live() as show:
        while True:
            try:
                found, problem = await admin.members(), ""
            except KappaError as error:  # it may come back, and then this goes on
                found, problem = [], str(error)
            at = time.strftime("%H:%M:%S")
            show(f"{at}  {problem}", COLUMNS, [{"time": at, **row} for row in _rows(found, text=not out.json)])
            if problem and out.json:
                out.warn(problem)
            looks += 1
            if looks == count:
                return
            await asyncio.sleep(interval)


def _rows(members: list[Member], *, text: bool) -> list[dict[str, Any]]:
    several = len({member.cluster for member in members}) > 1
    rows = []
    for member in members:
        row: dict[str, Any] = {
            "cluster": member.cluster,
            "group": f"{member.cluster}/{member.group}" if text and several else member.group,
            "id": member.broker_id,
            "role": member.role,
            "address": member.address,
            "version": member.version,
            "term": member.term,
            "log_end": member.log_end,
            "lag": member.behind,
            "in_sync": member.in_sync,
            "problem": member.problem,
        }
        if text:
            row["version"] = "no answer" if member.problem else row["version"]
            row["lag"] = None if member.behind is None else size(member.behind)
        rows.append(row)
    return rows


def _note_problems(out: Output, members: list[Member]) -> None:
    groups: dict[str, list[Member]] = {}
    for member in members:
        groups.setdefault(member.group, []).append(member)
        if member.problem:
            out.warn(f"{member.group} {member.broker_id} at {member.address} does not answer: {member.problem}")
    for name, group in groups.items():
        if all(member.role != "master" for member in group):
            out.warn(f"{name} has no master at the moment: nothing can be sent to it, consumers go on from its slaves")
    if not members:
        out.note("no broker is registered with this name server")
