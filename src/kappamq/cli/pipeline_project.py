"""`kappamq pipeline init` and `run`: projects of datasets that are made of topics and of each other."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kappamq.cli.shared.cluster import Cluster, clustered
from kappamq.cli.shared.options import OutputOption, spoken
from kappamq.cli.shared.output import Format, Output, counted
from kappamq.cli.shared.spark import ConfOption, MasterOption, asked_to_stop, properties_given, spark_session
from kappamq.cli.shared.usage import topic_name, wrong

if TYPE_CHECKING:
    from kappamq.spark.pipelines.progress import Batch
    from kappamq.spark.pipelines.project import Project


@spoken
def init(
    target: Annotated[
        Path, typer.Argument(metavar="NAME", help="The directory of the project; its name is the last part.")
    ],
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic to read.", callback=topic_name)] = "orders",
    sink: Annotated[
        str | None,
        typer.Option(help="The topic for what was read and checked; default: TOPIC_checked.", show_default=False),
    ] = None,
    quarantine: Annotated[
        str | None,
        typer.Option(
            help="The topic for messages that cannot be parsed; default: TOPIC_quarantine.", show_default=False
        ),
    ] = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Create a pipeline project that derives tables and topics from one topic, with a test and a README. Nothing is started."""
    from kappamq.errors import ConfigError
    from kappamq.spark.pipelines.init import checked_project
    from kappamq.spark.pipelines.init import init as make

    try:
        checked_project(target)
    except ConfigError as error:
        raise wrong("NAME", error) from None
    out = Output(output)
    files = make(target, topic, sink, quarantine)
    root = target.absolute()
    if out.json:
        out.raw({"project": root, "files": [str(file.relative_to(root)) for file in files]})
        return
    for file in sorted(files):
        out.line(str(file.relative_to(root.parent)))
    names = (topic, sink or f"{topic}_checked", quarantine or f"{topic}_quarantine")
    creating = " && ".join(f"kappamq topic create {name}" for name in names)
    out.note(f"see {root / 'README.md'}. Its topics must exist: {creating}\nThen: cd {target} && kappamq pipeline run")


@spoken
@clustered
def run(
    cluster: Cluster,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The project.")] = Path(),
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C, with a batch every second or so.")
    ] = False,
    full_refresh: Annotated[
        bool,
        typer.Option(
            "--full-refresh",
            help="Empty the tables and read everything again. Topics are written again, too (see README: `scope reset`).",
        ),
    ] = False,
    trigger: Annotated[
        float, typer.Option(min=0.001, max=86_400, help="With --follow: seconds between the starts of batches.")
    ] = 1.0,
    views_every: Annotated[
        float,
        typer.Option(min=0, max=86_400, help="With --follow: at least so many seconds between refreshes of views."),
    ] = 10.0,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Run a pipeline project once, through Spark Declarative Pipelines, or until Ctrl-C. Safe to interrupt and re-run."""
    if follow and full_refresh:
        raise wrong("--full-refresh", "cannot be combined with --follow: run once with --full-refresh first")
    given = properties_given(conf)
    from kappamq.spark.engine import check_installed

    check_installed()
    from kappamq.spark.pipelines import declared, project

    declared.check_installed()
    found = project.find(folder)
    use(cluster)
    out = Output(output)
    began = time.perf_counter()
    properties = found.spark_properties(master) | ({} if follow else declared.properties()) | given
    name = f"kappamq pipeline {found.name}"
    if follow:
        _follow(out, master, found, properties, name, trigger, views_every)
        return
    with found.held(), spark_session(out, master, None, name, properties) as spark:
        rows = declared.run(
            spark, found, full_refresh=full_refresh, told=out.note, reported=lambda batch: show_batch(out, batch)
        )
    seconds = time.perf_counter() - began
    if out.json:
        out.raw({"project": found.root, "rows": rows, "seconds": round(seconds, 2)})
        return
    read = ", ".join(f"{dataset} {counted(count, 'row')}" for dataset, count in sorted(rows.items()))
    out.line(f"read: {read or 'no streams'}, in {seconds:.1f} s")


def _follow(
    out: Output,
    master: str | None,
    project: Project,
    properties: dict[str, str],
    name: str,
    trigger_s: float,
    views_every_s: float,
) -> None:
    from kappamq.spark.pipelines.resident import Resident

    with project.held(), spark_session(out, master, None, name, properties) as spark:
        resident = Resident(spark, project, trigger_s, views_every_s)
        with asked_to_stop() as asked:
            resident.start()
            out.note("running; Ctrl-C ends it")
            resident.follow(lambda batch: show_batch(out, batch), asked)
    out.note("stopped; the next run goes on from here")


def show_batch(out: Output, batch: Batch) -> None:
    """Print a batch that brought something, or that leaves something to read."""
    if not batch.rows and not batch.lag:
        return
    lag = "" if batch.lag is None else f", lag {batch.lag}"
    # Rows are those that were read: a topic for what is wrong may read all, and get none.
    written = "" if batch.written is None else f", {batch.written} written,"
    out.line(
        f"{batch.dataset}: batch {batch.batch}, {counted(batch.rows, 'row')}{written} in {batch.batch_ms} ms, "
        f"{batch.rows_per_s:,.0f} rows/s{lag}",
        dataset=batch.dataset,
        batch=batch.batch,
        rows=batch.rows,
        rows_per_s=batch.rows_per_s,
        batch_ms=batch.batch_ms,
        lag=batch.lag,
        total_rows=batch.total_rows,
        written=batch.written,
    )


def use(cluster: Cluster) -> None:
    """Set the environment by which sources and sinks know the cluster where a definition does not name one."""
    from kappamq.spark.tls import ENVIRONMENT as TLS
    from kappamq.spark.topic.options import ENVIRONMENT

    for option, name in TLS.items():
        os.environ.pop(name, None)
        value = cluster.spark_options.get(option)
        if value is not None:
            os.environ[name] = value
    os.environ[ENVIRONMENT] = cluster.nameserver
