"""`kappamq pipeline ...`: jobs on Spark. Needs the extra `spark`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappamq.cli import pipeline_copies, pipeline_project
from kappamq.cli.shared.cluster import Cluster, clustered
from kappamq.cli.shared.exits import Exit
from kappamq.cli.shared.options import (
    DataOption,
    OutputOption,
    SetOption,
    data_directory,
    properties,
    spoken,
    store_directory,
)
from kappamq.cli.shared.output import Format, Output, counted, size
from kappamq.cli.shared.spark import ConfOption, MasterOption, spark_session
from kappamq.cli.shared.usage import Family, one_of, wrong

if TYPE_CHECKING:
    from kappamq.spark.jobs import Archived, Audited, Rebuilt

COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")

app = typer.Typer(
    cls=Family,
    help="Spark jobs: run declarative pipelines, archive, replay and deduplicate topics, rebuild queues, audit a store.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command()(pipeline_project.init)
app.command()(pipeline_project.run)
app.command()(pipeline_copies.replay)
app.command()(pipeline_copies.dedup)


@app.callback()
def pipeline() -> None:
    """Spark jobs: run declarative pipelines, archive, replay and deduplicate topics, rebuild queues, audit a store."""


@app.command()
@spoken
@clustered
def archive(
    cluster: Cluster,
    target: Annotated[Path, typer.Argument(help="The directory of the archive; created if it does not exist.")],
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="A topic; may be repeated.", show_default=False)
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(help="All topics that match this regular expression.", show_default=False)
    ] = None,
    on_data_loss: Annotated[
        str, typer.Option(help="Messages deleted before they were archived: fail, or skip (they are listed).")
    ] = "fail",
    group: Annotated[
        str | None, typer.Option(help="Show the progress as this consumer group's lag.", show_default=False)
    ] = None,
    round_: Annotated[
        int, typer.Option("--round", min=1, max=100_000_000, help="Messages per round, which become visible together.")
    ] = 2_000_000,
    max_bytes_per_second: Annotated[
        int | None, typer.Option(min=1, help="Read limit per task, in bytes per second.", show_default=False)
    ] = None,
    compression: Annotated[str, typer.Option(help="zstd, snappy, gzip, lz4 or none.")] = "zstd",
    staging: Annotated[
        Path | None,
        typer.Option(
            help="Directory for unfinished files, on the same disk; default: beside the archive.", show_default=False
        ),
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Copy topics to Parquet, by day and topic: only new messages, each one once. Safe to interrupt and re-run."""
    if bool(topic) == bool(pattern):
        raise wrong("--topic", "give --topic (one or more) or --pattern")
    one_of("--on-data-loss", on_data_loss.lower(), pipeline_copies.ON_DATA_LOSS)
    one_of("--compression", compression.lower(), COMPRESSIONS)
    from kappamq.spark.engine import check_installed

    check_installed()
    from kappamq.spark.jobs import archive as run
    from kappamq.spark.jobs import check_archive

    out = Output(output)
    began = time.perf_counter()
    # Starting Spark takes seconds.
    check_archive(
        target,
        nameservers=cluster.nameserver,
        topics=topic or (),
        topic_pattern=pattern,
        staging=staging,
        tls=cluster.spark_options,
    )
    with (
        spark_session(out, master, conf, "kappamq archive") as spark,
        out.progress("archiving", None, unit="messages") as bar,
    ):
        done = run(
            spark,
            target,
            nameservers=cluster.nameserver,
            topics=topic or (),
            topic_pattern=pattern,
            on_data_loss=on_data_loss,
            group=group,
            bytes_per_second=max_bytes_per_second,
            round_rows=round_,
            compression=compression,
            staging=staging,
            tls=cluster.spark_options,
            progress=lambda rows, total: bar(rows, total=total),
        )
    _archived(out, target, done, time.perf_counter() - began)


def _archived(out: Output, target: Path, done: Archived, seconds: float) -> None:
    queues = [
        {
            "topic": rows.topic,
            "broker": rows.broker,
            "queue": rows.queue,
            "min_offset": rows.start,
            "max_offset": rows.stop,
            "messages": rows.rows,
        }
        for rows in done.queues.values()
    ]
    if out.json:
        out.raw(
            {
                "archive": target.absolute(),
                "messages": done.rows,
                "files": done.files,
                "bytes": done.bytes,
                "rounds": done.rounds,
                "queues": queues,
                "gaps": done.gaps,
                "away": [
                    {"topic": queue.topic, "broker": queue.broker, "queue": queue.queue_id} for queue in done.away
                ],
                "seconds": round(seconds, 2),
            }
        )
    else:
        for gap in done.gaps:
            out.warn(gap)
        if done.rows:
            out.table("", ["topic", "broker", "queue", "min_offset", "max_offset", "messages"], queues)
            out.line(
                f"{counted(done.rows, 'message')} in {counted(done.files, 'file')} ({size(done.bytes)}), verified, in {seconds:.1f} s; "
                f"retention may delete them"
            )
        elif done.away:
            out.line(f"nothing new on the available brokers; {target} is not complete")
        elif done.gaps:
            out.line(f"nothing new: the losses are recorded, and {target} has the rest of the topics")
        else:
            out.line(f"nothing new: {target} has everything in the topics")
    if done.away:
        brokers = sorted({queue.broker for queue in done.away})
        out.warn(
            f"{counted(len(done.away), 'queue')} of {', '.join(brokers)} could not be read: the broker is not available. "
            f"Messages stored there since the last run are not in {target}: make sure that retention does not delete them, "
            "and run this again when the broker is back"
        )
        raise typer.Exit(int(Exit.UNREACHABLE))


@app.command()
@spoken
def rebuild(
    data: Annotated[Path, typer.Argument(metavar="DIR", help="The data directory of a stopped broker.")],
    skip_damage: Annotated[
        bool, typer.Option("--skip-damage", help="Skip bytes of the log that are not records, and list them.")
    ] = False,
    set_: SetOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Rebuild the consume queues and key index from the log, as the broker would, but in parallel. Safe to interrupt and re-run."""
    from kappamq.config import apache
    from kappamq.spark.engine import check_installed

    check_installed()
    from kappamq.spark.jobs import rebuild as run
    from kappamq.spark.jobs.rebuild import check_stopped
    from kappamq.store.rebuilding import Sizes

    root = data_directory(data)
    settings = apache.broker_settings(properties(set_), overrides={"store": {"root": root}})[0]
    sizes = Sizes(
        queue_file_entries=settings.store.queue_file_entries,
        index_slots=settings.store.index_slots,
        index_entries=settings.store.index_entries,
    )
    check_stopped(root)  # starting Spark takes seconds
    out = Output(output)
    with (
        spark_session(out, master, conf, "kappamq rebuild") as spark,
        out.progress("rebuilding", None, unit="bytes") as bar,
    ):
        done = run(
            spark,
            root,
            skip_damage=skip_damage or settings.store.skip_damage,
            sizes=sizes,
            delays_ms=settings.broker.delays_ms,
            keys=settings.store.index_enabled,
            progress=lambda at, total: bar(at, total=total),
        )
    _rebuilt(out, done)


def _rebuilt(out: Output, done: Rebuilt) -> None:
    if out.json:
        out.raw(
            {
                "data": done.root,
                "log_min_offset": done.log_min,
                "log_max_offset": done.log_end,
                "records": done.records,
                "queues": done.queues,
                "queue_entries": done.queue_entries,
                "index_files": done.index_files,
                "index_entries": done.index_entries,
                "damage": [{"log_min_offset": start, "log_max_offset": stop} for start, stop in done.damage],
                "deleted_topics": done.deleted_topics,
                "kept_queues": [{"topic": topic, "queue": queue} for topic, queue in done.kept_queues],
                "left_out": done.left_out,
                "seconds": round(done.seconds, 2),
                "cpu_seconds": round(done.cpu_seconds, 2),
            }
        )
        return
    for start, stop in done.damage:
        out.warn(f"bytes {start} to {stop} of the log are not records: skipped")
    for topic in done.left_out:
        out.warn(f"messages of topic {topic!r} have no queue: its name cannot be a directory name")
    if done.kept_queues:
        out.note(f"{counted(len(done.kept_queues), 'queue')} without messages in the log: files left unchanged")
    if done.deleted_topics:
        out.note(f"{counted(len(done.deleted_topics), 'topic')} left out: deleted, though the log still has messages")
    out.line(
        f"{counted(done.records, 'record')} ({size(done.log_end - done.log_min)} of log): {counted(done.queue_entries, 'entry')} in "
        f"{counted(done.queues, 'queue')}, {counted(done.index_entries, 'entry')} in {counted(done.index_files, 'index file')}, in "
        f"{done.seconds:.1f} s; the broker may start"
    )


@app.command()
@spoken
def audit(
    report: Annotated[Path, typer.Argument(help="The directory of the report; an existing report is replaced.")],
    data: DataOption = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Only this topic; may be repeated.", show_default=False)
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(help="Only topics that match this regular expression.", show_default=False)
    ] = None,
    late: Annotated[
        float, typer.Option(min=0, max=1e9, help="Report anything that takes longer than this many seconds as late.")
    ] = 10.0,
    tolerance: Annotated[
        float, typer.Option(min=0, max=1e9, help="Seconds by which clocks may differ, and born times may go back.")
    ] = 1.0,
    trace_topic: Annotated[str, typer.Option(help="The topic of message traces.")] = "RMQ_SYS_TRACE_TOPIC",
    top: Annotated[int, typer.Option(min=1, max=100_000, help="Rows in the tables of keys, tags and producers.")] = 50,
    examples: Annotated[
        int, typer.Option(min=1, max=100_000, help="Maximum findings listed per rule and topic.")
    ] = 100,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Find lost, duplicated, reordered and late messages in a data directory, and hot spots; writes tables and a page."""
    if topic and pattern:
        raise wrong("--topic", "give --topic (one or more) or --pattern, or none for all")
    from kappamq.spark.engine import check_installed

    check_installed()
    from kappamq.spark.jobs import audit as run
    from kappamq.spark.jobs import check_audit

    out = Output(output)
    began = time.perf_counter()
    store = store_directory(data)
    check_audit(store, report, topic or (), pattern)  # starting Spark takes seconds
    with (
        spark_session(out, master, conf, "kappamq audit") as spark,
        out.progress("auditing", None, unit="steps") as bar,
    ):
        done = run(
            spark,
            store,
            report,
            topics=topic or (),
            topic_pattern=pattern,
            late_ms=round(late * 1000),
            tolerance_ms=round(tolerance * 1000),
            trace_topic=trace_topic,
            top=top,
            examples=examples,
            progress=lambda _what, steps, total: bar(steps, total=total),
        )
    _audited(out, report, done, time.perf_counter() - began)
    if not done.ok:
        raise typer.Exit(int(Exit.FINDINGS))


def _audited(out: Output, report: Path, done: Audited, seconds: float) -> None:
    told = done.summary()
    rows = done.found.rows()
    if not done.messages:
        out.warn("there were no messages to audit: this says nothing about the store")
    if out.json:
        first = {row["rule"]: row for row in reversed(rows)}
        rules = [rule | {"example": first.get(rule["rule"])} for rule in told["rules"]]
        out.raw(told | {"rules": rules, "report": report.absolute(), "seconds": round(seconds, 2)})
        return
    for remark in done.remarks:
        out.note(remark)
    found = [
        rule | {"example": _place(next(row for row in rows if row["rule"] == rule["rule"]))}
        for rule in told["rules"]
        if rule["findings"]
    ]
    if found:
        out.table("", ["kind", "rule", "severity", "findings", "messages", "example"], found)
    limit = f" ({done.limit})" if done.limit else ""
    out.line(
        f"{counted(done.messages, 'message')} ({size(done.message_bytes)}){limit} in {seconds:.1f} s: {told['lost']} lost, "
        f"{told['duplicated']} duplicated, {told['reordered']} reordered, {told['late']} late"
    )
    out.note(f"see {report.absolute() / 'index.html'}")


def _place(row: dict[str, Any]) -> str:
    """Return the place of a finding, in a few words."""
    queue = "" if row["queue"] is None else f"/{row['queue']}"
    parts = [
        f"{row['topic']}{queue}" if row["topic"] else "",
        "" if row["offset"] is None else f"offset {row['offset']}",
        "" if row["log_offset"] is None else f"log offset {row['log_offset']}",
        f"group {row['group']}" if row["group"] else "",
        row["text"],
    ]
    return ", ".join(filter(None, parts))
