"""`kappamq pipeline replay` and `dedup`: copies of messages in a topic, each one once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from kappamq.cli.pipeline_project import show_batch
from kappamq.cli.shared.cluster import Cluster, clustered
from kappamq.cli.shared.options import OutputOption, spoken
from kappamq.cli.shared.output import Format, Output, counted
from kappamq.cli.shared.spark import ConfOption, MasterOption, asked_to_stop, spark_session
from kappamq.cli.shared.times import parse_time
from kappamq.cli.shared.usage import one_of, topic_name, wrong

ON_DATA_LOSS = ("fail", "skip")

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The name of this job: a run with the same one goes on where the last one ended."
    ),
]
TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="The topic to write; must exist.", callback=topic_name)
]
StateOption = Annotated[
    Path | None,
    typer.Option(
        help="The directory that keeps what jobs have to know; default: ~/.kappamq/copies.", show_default=False
    ),
]
LossOption = Annotated[str, typer.Option(help="Messages deleted before they were read: fail, or skip.")]


@spoken
@clustered
def replay(
    cluster: Cluster,
    name: NameArgument,
    target: TargetArgument,
    archive: Annotated[
        Path | None, typer.Option(help="An archive made by `pipeline archive`.", show_default=False)
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", help="A topic to read; may be repeated. With --archive: only these.", show_default=False
        ),
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", help="Messages stored from this time on (of topics).", show_default=False)
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="Messages stored before this time (of topics).", show_default=False)
    ] = None,
    starting_offsets: Annotated[
        str | None,
        typer.Option(help='In place of --from: JSON, as in {"orders": {"broker-a/0": 42}}.', show_default=False),
    ] = None,
    ending_offsets: Annotated[str | None, typer.Option(help="In place of --to: the same.", show_default=False)] = None,
    tags: Annotated[
        str | None, typer.Option(help="Only messages with these tags (of topics).", show_default=False)
    ] = None,
    filter_: Annotated[
        str | None,
        typer.Option("--filter", help="Only messages that this SQL92 matches (of topics).", show_default=False),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(help="Only messages that this condition of Spark SQL on the columns matches.", show_default=False),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, max=1e9, help="Messages per second; default: as fast as possible.", show_default=False),
    ] = None,
    on_data_loss: LossOption = "fail",
    round_: Annotated[
        int, typer.Option("--round", min=1, max=10_000_000, help="Messages per round, which become visible together.")
    ] = 100_000,
    state: StateOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Copy an archive, or a range of topics, into a topic: each message once, in order per queue. Safe to interrupt and re-run."""
    if archive is None and not topic:
        raise wrong("--archive", "give --archive, or --topic (one or more), or both to replay a part of an archive")
    one_of("--on-data-loss", on_data_loss.lower(), ON_DATA_LOSS)
    if from_ is not None and starting_offsets is not None:
        raise wrong("--starting-offsets", "it is in place of --from: give one of the two")
    if to is not None and ending_offsets is not None:
        raise wrong("--ending-offsets", "it is in place of --to: give one of the two")
    now = int(time.time() * 1000)
    read: dict[str, str] = {} if on_data_loss == "fail" else {"onDataLoss": on_data_loss}
    said: dict[str, str] = {}
    for option, text, field in (("--from", from_, "startingTimestamp"), ("--to", to, "endingTimestamp")):
        if text is not None:
            read[field], said[field] = str(parse_time(option, text, now)), text
    given = {"startingOffsets": starting_offsets, "endingOffsets": ending_offsets, "tags": tags, "filter": filter_}
    read |= {field: text for field, text in given.items() if text is not None}
    from kappamq.spark.engine import check_installed

    check_installed()
    from kappamq.spark.jobs import Replay
    from kappamq.spark.jobs import replay as run

    wanted = Replay(
        name=name,
        target=target,
        nameservers=cluster.nameserver,
        archive=archive,
        topics=tuple(topic or ()),
        read=read,
        said=said,
        where=where,
        per_second=rate,
        round_rows=round_,
        state=state,
        tls=cluster.spark_options,
    )
    wanted.check()  # starting Spark takes seconds
    out = Output(output)
    began = time.perf_counter()
    with (
        spark_session(out, master, conf, "kappamq replay") as spark,
        out.progress("replaying", None, unit="messages") as bar,
    ):
        done = run(spark, wanted, progress=lambda rows, total: bar(rows, total=total))
    seconds = time.perf_counter() - began
    if out.json:
        out.raw(
            {
                "job": done.name,
                "topic": target,
                "messages": done.written,
                "read": done.read,
                "planned": done.planned,
                "rounds": done.rounds,
                "rounds_before": done.rounds_before,
                "seconds": round(seconds, 2),
            }
        )
    elif done.rounds:
        rounds = counted(done.rounds, "round")
        if done.rounds_before:
            rounds += f" after {done.rounds_before} of earlier runs"
        out.line(f"{counted(done.written, 'message')} in {target}, of {done.read} read, in {rounds}, {seconds:.1f} s")
    else:
        out.line(f"nothing to do: {done.name} has been replayed ({counted(done.planned, 'message')})")


@spoken
@clustered
def dedup(
    cluster: Cluster,
    name: NameArgument,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The topic to read.", callback=topic_name)],
    target: TargetArgument,
    by: Annotated[str, typer.Option(help="What duplicates have in common: id (of the producer), key, or body.")] = "id",
    within: Annotated[
        float, typer.Option(min=1, max=366 * 86400, help="Seconds for which an id, key or body is remembered.")
    ] = 3600.0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    group: Annotated[
        str | None, typer.Option(help="Show the progress as this consumer group's lag.", show_default=False)
    ] = None,
    on_data_loss: LossOption = "fail",
    round_: Annotated[
        int, typer.Option("--round", min=1, max=10_000_000, help="Messages per batch, which become visible together.")
    ] = 100_000,
    state: StateOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Copy a topic without its duplicates into another topic: what is new, or until Ctrl-C. Safe to interrupt and re-run."""
    one_of("--by", by, ("id", "key", "body"))
    one_of("--on-data-loss", on_data_loss.lower(), ON_DATA_LOSS)
    from kappamq.spark.engine import check_installed

    check_installed()
    from kappamq.spark.jobs import Dedup
    from kappamq.spark.jobs import dedup as run

    wanted = Dedup(
        name=name,
        source=source,
        target=target,
        nameservers=cluster.nameserver,
        by=by,
        within_s=within,
        batch_rows=round_,
        on_data_loss=on_data_loss,
        group=group,
        state=state,
        tls=cluster.spark_options,
    )
    wanted.check()  # starting Spark takes seconds
    out = Output(output)
    began = time.perf_counter()
    with spark_session(out, master, conf, "kappamq dedup") as spark, asked_to_stop() as asked:
        done = run(spark, wanted, follow=follow, reported=lambda batch: show_batch(out, batch), until=asked)
        if asked() and not follow:
            raise KeyboardInterrupt
    seconds = time.perf_counter() - began
    if out.json:
        out.raw(
            {
                "job": done.name,
                "topic": target,
                "messages": done.written,
                "read": done.read,
                "seconds": round(seconds, 2),
            }
        )
    else:
        out.line(f"{counted(done.written, 'message')} in {target}, of {done.read} read, {seconds:.1f} s")
