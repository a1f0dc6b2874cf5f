"""`kappamq scope ...`: lists and resets the scopes of batch transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappamq.cli.shared.cluster import Cluster, clustered
from kappamq.cli.shared.options import OutputOption, TimeoutOption, spoken
from kappamq.cli.shared.output import Format, Output, counted, literal, when
from kappamq.cli.shared.usage import Family, wrong
from kappamq.cli.topic import on_a_terminal

if TYPE_CHECKING:
    from kappamq.client.admin.admin import AsyncAdmin

app = typer.Typer(
    cls=Family,
    help="List and reset the scopes of batch transactions (exactly-once writes).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ScopeArgument = Annotated[str, typer.Argument(metavar="SCOPE", help="The name of the scope.", show_default=False)]


@app.command("list")
@spoken
@clustered
def list_(cluster: Cluster, timeout: TimeoutOption = 5.0, output: OutputOption = Format.TEXT) -> None:
    """List all scopes: who owns each, its last decided batch, and what is staged for it on all brokers."""
    out = Output(output)

    async def work(admin: AsyncAdmin) -> list[dict[str, Any]]:
        rows = []
        for name, by_broker in (await admin.scopes()).items():
            any_broker = next(iter(by_broker.values()))
            main = by_broker.get(any_broker.coordinator, any_broker)
            rows.append(
                {
                    "scope": name,
                    "owner": main.owner,
                    "coordinator": main.coordinator,
                    "last_batch": None if main.last < 0 else main.last,
                    "open_since": main.open_since or None,
                    "publishing": main.publishing,
                    "staged_bytes": sum(scope.staged_bytes for scope in by_broker.values()),
                }
            )
        return rows

    for row in cluster.ask(timeout, work) or [{}]:
        if not row:
            out.note("no scopes: nobody has written with exactly-once delivery yet")
            continue
        last = "no batch yet" if row["last_batch"] is None else f"last batch {row['last_batch']}"
        parts = [last, f"owner {row['owner']}", f"coordinator {row['coordinator']}"]
        if row["open_since"]:
            parts.append(f"open since {when(row['open_since'])}")
        if row["publishing"]:
            parts.append(f"{row['publishing']} being published")
        parts.append(f"{row['staged_bytes']} bytes staged")
        out.line(f"[bold]{literal(row['scope'])}[/]: {literal(', '.join(parts))}", **row)


@app.command()
@spoken
@clustered
def reset(
    cluster: Cluster,
    scope: ScopeArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Reset even if its coordinator does not answer or still waits for a broker. "
            "Decided batches that are not published yet may be lost.",
        ),
    ] = False,
    timeout: TimeoutOption = 5.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Forget a scope, so that another owner can use its name. Batches it wrote stay; they could be written again."""
    if not yes:
        if not on_a_terminal():
            raise wrong(
                "--yes", f"standard input is not a terminal, so this cannot be confirmed: use --yes to reset {scope}"
            )
        typer.confirm(f"Forget {scope} and which of its batches were written?", abort=True, err=True)
    brokers = cluster.ask(timeout, lambda admin: admin.reset_scope(scope, force=force))
    Output(output).line(
        f"reset [bold]{literal(scope)}[/] on {counted(len(brokers), 'broker')}",
        scope=scope,
        reset=True,
        brokers=brokers,
    )
