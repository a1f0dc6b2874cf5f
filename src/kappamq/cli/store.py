"""`kappamq store ...`: look into a data directory, ours or a Java broker's, running or not. Nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappamq.cli.exits import Exit
from kappamq.cli.options import DataOption, OutputOption, SetOption, data_directory, properties, spoken
from kappamq.cli.output import Format, Output, size, when

if TYPE_CHECKING:
    from kappamq.config.store import StoreConfig
    from kappamq.store.reader import StoreReader
    from kappamq.store.verify_report import Report

app = typer.Typer(help="Look into a data directory and check it.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
@spoken
def inspect(
    data: DataOption = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only this one.", show_default=False)] = None,
    queues: Annotated[bool, typer.Option("--queues", "-q", help="Each queue, not only each topic.")] = False,
    log: Annotated[int, typer.Option(min=0, max=1_000_000, help="Also show this many records of the log.")] = 0,
    at: Annotated[
        int | None, typer.Option(min=0, help="From this log offset on; default: the start.", show_default=False)
    ] = None,
    set_: SetOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Show the files, topics and queues of a store, and records of its log if asked to."""
    from kappamq.store.reader import StoreReader

    out = Output(output)
    config = _config(data, set_)
    with StoreReader(config.root, index_slots=config.index_slots, index_entries=config.index_entries) as reader:
        summary = _summary(reader)
        rows = _rows(reader, topic, queues or topic is not None)
        if out.json:
            out.raw({**summary, "topics" if not queues and topic is None else "queues": rows})
        else:
            _print_summary(out, summary)
            columns = ["topic", "queues", "first", "next", "messages"]
            out.table("", columns if not queues and topic is None else ["topic", "queue", *columns[2:]], rows)
        if log:
            _records(out, reader, at, log)


@app.command()
@spoken
def verify(
    data: DataOption = None,
    problems: Annotated[int, typer.Option(min=1, max=1_000_000, help="Show at most this many.")] = 20,
    set_: SetOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Check every record, queue entry and key of a store; exit code 1 if anything is wrong."""
    from kappamq.store.verify import verify as check

    out = Output(output)
    config = _config(data, set_)
    with out.progress("reading the log", None, unit="bytes") as at:
        report = check(
            config.root,
            index_slots=config.index_slots,
            index_entries=config.index_entries,
            problems_max=problems,
            progress=lambda done, total: at(done, total=total),
        )
    _tell(out, report)
    if not report.ok:
        raise typer.Exit(int(Exit.FAILED))


def _config(data: Path | None, set_: list[str] | None) -> StoreConfig:
    """The sizes of index files are not written anywhere: `--set` names them where they are not the usual ones."""
    from kappamq.config import apache

    root = data_directory(data)
    return apache.broker_settings(properties(set_), overrides={"store": {"root": root}})[0].store


def _summary(reader: StoreReader) -> dict[str, Any]:
    from dataclasses import asdict

    from kappamq.store.checkpoint import Checkpoint
    from kappamq.store.lock import AbortFile

    abort = AbortFile(reader.root)
    log = reader.log
    return {
        "data": str(reader.root),
        "log_min": log.min,
        "log_end": log.end(),
        "log_files": len(log.starts),
        "log_file_bytes": log.segment_bytes,
        # While a broker runs the file is there, too; after a crash it is left behind.
        "running_or_crashed": abort.exists(),
        "process": abort.pid() if abort.exists() else None,
        "checkpoint": asdict(Checkpoint.load(reader.root / "checkpoint")),
        "index": [asdict(found) for found in reader.index_infos()],
    }


def _print_summary(out: Output, summary: dict[str, Any]) -> None:
    from rich.markup import escape

    used = summary["log_end"] - summary["log_min"]
    checkpoint = summary["checkpoint"]
    state = "stopped in good order"
    if summary["running_or_crashed"]:
        state = f"a broker is running, or did not stop in good order (process {summary['process'] or 'unknown'})"
    keys = sum(found["entries"] for found in summary["index"])
    out.console().print(
        f"data        {escape(summary['data'])}\n"
        f"log         {summary['log_min']} to {summary['log_end']} ({size(used)}) in {summary['log_files']} file(s) of "
        f"{size(summary['log_file_bytes'])}\n"
        f"state       {escape(state)}\n"
        f"on disk     log {when(checkpoint['physic_ms'])}, queues {when(checkpoint['logics_ms'])}, "
        f"index {when(checkpoint['index_ms'])}\n"
        f"index       {len(summary['index'])} file(s), {keys} keys\n"
    )


def _rows(reader: StoreReader, topic: str | None, each_queue: bool) -> list[dict[str, Any]]:
    from kappamq.errors import TopicNotFound

    found = reader.queues(topic)
    if topic is not None and not found:
        raise TopicNotFound(f"{reader.root} has no queue of topic {topic}")
    if each_queue:
        return [
            {
                "topic": queue.topic,
                "queue": queue.queue_id,
                "first": queue.min,
                "next": queue.max,
                "messages": queue.count,
            }
            for queue in found
        ]
    by_topic: dict[str, dict[str, Any]] = {}
    for queue in found:
        row = by_topic.setdefault(
            queue.topic, {"topic": queue.topic, "queues": 0, "first": queue.min, "next": queue.max, "messages": 0}
        )
        row["queues"] += 1
        row["first"] = min(row["first"], queue.min)
        row["next"] = max(row["next"], queue.max)
        row["messages"] += queue.count
    return list(by_topic.values())


def _records(out: Output, reader: StoreReader, start: int | None, count: int) -> None:
    """Records in log order; damage is shown where it lies, and passed over."""
    from kappamq.cli import messages
    from kappamq.store.log_reader import Damage

    for number, found in enumerate(reader.log.scan(start)):
        if number == count:
            break
        if isinstance(found, Damage):
            if found.tail:
                break
            out.warn(f"bytes {found.start} to {found.stop} are no records: {found.why}")
            continue
        messages.log_line(out, found.record, found.size)


def _tell(out: Output, report: Report) -> None:
    from dataclasses import asdict

    if out.json:
        out.raw({**asdict(report), "ok": report.ok})
        return
    from rich.markup import escape
    from rich.text import Text

    console = out.console()
    console.print(
        f"{report.records} records ({size(report.record_bytes)}), {when(report.first_ms)} to {when(report.last_ms)}\n"
        f"{report.queue_entries} entries in {report.queues} queues, {report.index_entries} in {report.index_files} "
        "index file(s)"
    )
    if report.torn_tail:
        console.print(f"behind the last record, {escape(report.torn_tail)}: the next start cuts it off")
    if report.undispatched or report.unindexed:
        console.print(
            f"{report.undispatched} records are not in their queues yet, {report.unindexed} not in the index: "
            "the next start enters them"
        )
    for problem in report.problems:
        console.print(Text(str(problem), style="red"))
    hidden = report.problem_count - len(report.problems)
    if hidden:
        console.print(f"... and {hidden} more (--problems shows more)")
    console.print(
        "[bold green]everything is as it should be[/]"
        if report.ok
        else f"[bold red]{report.problem_count} problem(s)[/]; nothing was changed"
    )
