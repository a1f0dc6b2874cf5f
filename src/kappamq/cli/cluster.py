"""`kappamq cluster`: all brokers with their roles, and how far slaves are behind; once, or live."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappamq.cli.shared.cluster import Cluster, clustered
from kappamq.cli.shared.options import OutputOption, TimeoutOption, spoken
from kappamq.cli.shared.output import Format, Output, literal, size
from kappamq.cli.shared.usage import Family

if TYPE_CHECKING:
    from kappamq.client.admin.admin import AsyncAdmin
    from kappamq.client.admin.members import Member

COLUMNS = ("group", "id", "member", "role", "address", "version", "term", "log_end", "lag", "in_sync")
_PROBE_S = 1.0


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
    except ProtocolError:
        raise typer.BadParameter(
            f"{given!r} is not an address like 10.0.0.4:10912, with the port of copies (that of the broker + 1)"
        ) from None
    return given


@spoken
@clustered
def cluster(
    cluster: Cluster,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600.0, help="With --follow: seconds between refreshes.")
    ] = 1.0,
    count: Annotated[
        int | None,
        typer.Option("--count", "-c", min=1, help="With --follow: exit after this many refreshes.", show_default=False),
    ] = None,
    timeout: TimeoutOption = 5.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """List all brokers by group: which is the master, and how far its slaves are behind."""
    out = Output(output)
    if not follow:
        found = cluster.ask(timeout, lambda admin: admin.members())
        rows = _rows(found, text=not out.json)
        out.table("", _columns(rows), rows)
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
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group's name (brokerName).", show_default=False)],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="MEMBER",
            help="The member that is to lead (n0, n1, ... as in dLegerPeers). Default: the one with the longest log.",
            show_default=False,
            callback=_member_id,
        ),
    ] = None,
    timeout: TimeoutOption = 10.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Have another member of a Raft group lead, for example before a restart."""
    out = Output(output)
    now = cluster.ask(timeout, lambda admin: admin.transfer_leader(group, to, timeout))
    if not now.member:  # a broker of an earlier version
        out.line(literal(f"another member leads {group}"), group=group)
        return
    where = f" ({now.address})" if now.address else ""
    out.line(
        literal(f"{now.member}{where} leads {group} now, in term {now.term}"),
        group=group,
        leader=now.member,
        address=now.address,
        term=now.term,
    )


member = typer.Typer(
    cls=Family,
    help="Change who belongs to a Raft group, one member at a time.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


_Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name (brokerName).")]
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
        literal(f"{name} is a member of {group}: it learns first, and votes once it has caught up"),
        group=group,
        member=name,
    )
    _warn_if_silent(out, place)


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
    """Remove a member. Stop its process afterwards. For the leader, transfer the leadership first."""
    out = Output(output)
    cluster.ask(timeout, lambda admin: admin.change_members(group, "remove", name, None, timeout))
    out.line(literal(f"{name} is no member of {group} any more: stop it if it still runs"), group=group, member=name)
    _warn_if_few_vote(out, cluster, group, timeout)


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
    """Change a member's address, after it was moved or is being rebuilt there from an empty directory."""
    out = Output(output)
    cluster.ask(timeout, lambda admin: admin.change_members(group, "replace", name, place, timeout))
    out.line(literal(f"{name} of {group} is at {place} now"), group=group, member=name, address=place)
    _warn_if_silent(out, place)


def _warn_if_silent(out: Output, place: str) -> None:
    """A wrong port would go unnoticed: the group waits for the member."""
    import socket

    from kappamq.protocol.address import split

    try:
        socket.create_connection(split(place), timeout=_PROBE_S).close()
    except OSError as error:
        out.warn(
            f"nobody answers at {place} yet, as seen from here ({error.strerror or error}): is it the port of copies (that of the "
            "broker + 1), and is the member to be started still?"
        )


def _warn_if_few_vote(out: Output, cluster: Cluster, group: str, timeout: float) -> None:
    """The member is removed by now: a broker that does not answer does not make this a failure."""
    from kappamq.client.admin.standing import caution
    from kappamq.errors import KappaError

    try:
        found = cluster.ask(timeout, lambda admin: admin.members())
    except KappaError as error:
        out.warn(f"how many of {group} vote now is not known: {error}")
        return
    voters = next((member.voters for member in found if member.group == group and member.voters), None)
    if voters is not None and (text := caution(voters)) is not None:
        out.warn(f"{group} has {text}. `kappamq member add` adds another")


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
            rows = [{"time": at, **row} for row in _rows(found, text=not out.json)]
            show(f"{at}  {problem}", _columns(rows), rows)
            if problem and out.json:
                out.warn(problem)
            looks += 1
            if looks == count:
                return
            await asyncio.sleep(interval)


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    """Members of Raft groups are identified by their names, since their ids change with the leadership. Others have only ids."""
    named = [row["member"] is not None for row in rows]
    hidden = "member" if not any(named) else "id" if all(named) else None
    return [name for name in COLUMNS if name != hidden]


def _rows(members: list[Member], *, text: bool) -> list[dict[str, Any]]:
    several = len({member.cluster for member in members}) > 1
    rows = []
    for member in members:
        row: dict[str, Any] = {
            "cluster": member.cluster,
            "group": f"{member.cluster}/{member.group}" if text and several else member.group,
            "id": member.broker_id,
            "member": member.member,
            "role": member.role,
            "standing": member.standing,
            "address": member.address,
            "version": member.version,
            "term": member.term,
            "log_end": member.log_end,
            "lag": member.behind,
            "in_sync": member.in_sync,
            "problem": member.problem,
        }
        if text:
            if member.standing in ("learner", "removed"):
                row["role"] = member.standing
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
