"""`kappamq doctor`: runs the checks and prints findings and advice."""

from __future__ import annotations

from typing import Annotated

import typer

from kappamq.cli.shared.cluster import Cluster, clustered
from kappamq.cli.shared.exits import Exit
from kappamq.cli.shared.options import DataOption, OutputOption, data_directory, spoken, why_this_directory
from kappamq.cli.shared.output import Format, Output, literal

_MARKS = {"ok": "[green]ok  [/]", "note": "[yellow]note[/]", "bad": "[bold red]bad [/]"}


@spoken
@clustered
def doctor(
    cluster: Cluster,
    data: DataOption = None,
    timeout: Annotated[float, typer.Option(min=0.01, max=60, help="Seconds to wait for each connection.")] = 2.0,
    offline: Annotated[bool, typer.Option("--offline", help="Only this machine and the data directory.")] = False,
    spark: Annotated[
        bool, typer.Option("--spark", help="Also check what Spark needs; default: only if part of it is installed.")
    ] = False,
    master: Annotated[
        str | None, typer.Option(help="Start Spark there and check its executors, too.", show_default=False)
    ] = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Check this machine, the data directory, and every address that clients would connect to."""
    from kappamq.cli.doctor import checks, spark_checks

    out = Output(output)
    found = [checks.kernel(), checks.event_loop(), checks.open_files(), checks.clock()]
    found += checks.data_directory(data_directory(data), why_this_directory(data))
    if spark or master is not None or spark_checks.wanted():
        here = spark_checks.this_machine()
        found += here
        if master is not None and all(finding.health is not checks.Health.BAD for finding in here):
            found += spark_checks.executors(master)
    if not offline:
        from kappamq.cli.doctor import reach
        from kappamq.event_loop import run

        found += run(reach.check(cluster.nameservers, timeout, cluster.context()))
    for finding in found:
        if out.json:
            out.raw(finding)
            continue
        out.console().print(f"{_MARKS[finding.health]} {literal(finding.what)}: {literal(finding.text)}")
        if finding.advice:
            out.console().print(f"       [dim]{literal(finding.advice)}[/]")
    if any(finding.health is checks.Health.BAD for finding in found):
        raise typer.Exit(int(Exit.FAILED))
