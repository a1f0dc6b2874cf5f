"""`kappamq store ...`: inspects a data directory, ours or a Java broker's, running or not. Only `cut` writes, and only if nobody runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappamq.cli.shared.exits import Exit
from kappamq.cli.shared.options import DataOption, OutputOption, SetOption, properties, spoken, store_directory
from kappamq.cli.shared.output import Format, Output, counted, literal, size, when
from kappamq.cli.shared.usage import Family, topic_name

if TYPE_CHECKING:
    from kappamq.config.store import StoreConfig
    from kappamq.store.reader import QueueRange, StoreReader
    from kappamq.store.verify.report import Report

_LOOKED_AT_MAX = 100_000
"""How many undispatched records `inspect` counts: it must be fast, `verify` counts them all."""

app = typer.Typer(
    cls=Family, help="Inspect and verify a data directory, or cut its log.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
@spoken
def inspect(
    data: DataOption = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Only this one.", show_default=False, callback=topic_name)
    ] = None,
    queues: Annotated[bool, typer.Option("--queues", "-q", help="Each queue, not only each topic.")] = False,
    log: Annotated[int, typer.Option(min=0, max=1_000_000, help="Also show this many records of the log.")] = 0,
    at: Annotated[
        int | None, typer.Option(min=0, help="From this log offset on; default: the start.", show_default=False)
    ] = None,
    set_: SetOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Show the files, topics and queues of a store, and optionally records of its log."""
    from kappamq.store.reader import StoreReader

    out = Output(output)
    config = _config(data, set_)
    with StoreReader(config.root, index_slots=config.index_slots, index_entries=config.index_entries) as reader:
        summary = {**_summary(reader), "not_in_queues": _not_in_queues(reader)}
        by_queue = _by_queue(reader, topic)
        shown: dict[str, Any] = {"topics": _by_topic(by_queue)}
        if queues or topic is not None:
            shown["by_queue"] = by_queue
        if out.json:
            out.raw({**summary, **shown})
        else:
            _print_summary(out, summary)
            if "by_queue" in shown:
                out.table("", ["topic", "queue", "min_offset", "max_offset", "messages"], by_queue)
            else:
                out.table("", ["topic", "queues", "messages"], shown["topics"])
            total = sum(row["messages"] for row in by_queue)
            out.note(f"{counted(total, 'message')} in {counted(len(by_queue), 'queue')}")
            if missing := summary["not_in_queues"]:
                least = "at least " if missing >= _LOOKED_AT_MAX else ""
                who = "the broker is about to add" if summary["state"] == "running" else "the next start adds"
                out.note(f"not in their queues yet: {least}{counted(missing, 'record')} of the log; {who} them")
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
    from kappamq.store.verify.verify import verify as check

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


@app.command()
@spoken
def cut(
    to: Annotated[
        int, typer.Option("--to", min=0, help="The log offset at which the log is to end.", show_default=False)
    ],
    data: DataOption = None,
    set_: SetOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Cut the end off the log of a store that no broker has open.

    For a copy that holds what its master has lost, once you have decided that it must go. The bytes are kept in a file in the data
    directory; queues, index, timers and tables are then as the rest of the log says."""
    from dataclasses import replace

    from kappamq import native
    from kappamq.broker.machine import boot_id, new_kernel
    from kappamq.config import apache
    from kappamq.errors import StoreError
    from kappamq.store.cutting import OfflineCut
    from kappamq.store.files import Files
    from kappamq.store.lock import StoreLock
    from kappamq.store.log.commit_log import CommitLog
    from kappamq.store.log.log_reader import LogReader
    from kappamq.store.message_store import MessageStore
    from kappamq.store.rebuilding import Sizes

    out = Output(output)
    root, files = store_directory(data), Files()
    settings = apache.broker_settings(properties(set_), overrides={"store": {"root": root}})[0]
    module = native.load()
    with StoreLock(root):
        log = LogReader(root / "commitlog", files)
        try:
            if not log.starts:
                raise StoreError(f"{root} has no log files: there is nothing to cut")
            sizes = Sizes(
                queue_file_entries=settings.store.queue_file_entries,
                index_slots=settings.store.index_slots,
                index_entries=settings.store.index_entries,
            ).checked(root, files)
            config = replace(
                settings.store, segment_bytes=log.segment_bytes, queue_file_entries=sizes.queue_file_entries
            )
            offline = OfflineCut(root, log, module, files)
            done = offline.plan(to)
            kernel = new_kernel(module, settings.broker, config, settings.net)
            offline.carry_out(done, CommitLog(root / "commitlog", config.segment_bytes, files, kernel))
        finally:
            log.close()
    store = MessageStore(config, module, new_kernel(module, settings.broker, config, settings.net))
    store.open(boot_id())
    while store.catching_up():
        store.catch_up()
        store.write_derived(store.collect())
    store.close()
    if out.json:
        out.raw(
            {
                "data": str(root),
                "log_max_offset": to,
                "log_max_offset_before": done.log_end,
                "records": done.records,
                "kept": None if done.kept is None else str(done.kept),
                "notes": done.notes,
            }
        )
        return
    out.note(f"the log ended at {done.log_end} and ends at {to} now: {counted(done.records, 'record')} cut off")
    if done.kept is not None:
        out.note(f"the bytes are in {done.kept}")
    for note in done.notes:
        out.note(note)


def _config(data: Path | None, set_: list[str] | None) -> StoreConfig:
    """Index file sizes are not stored anywhere: `--set` gives them where they are not the defaults."""
    from kappamq.config import apache

    root = store_directory(data)
    return apache.broker_settings(properties(set_), overrides={"store": {"root": root}})[0].store


def _summary(reader: StoreReader) -> dict[str, Any]:
    from dataclasses import asdict

    from kappamq.store.checkpoint import Checkpoint
    from kappamq.store.lock import AbortFile, StoreLock

    log = reader.log
    index = [asdict(found) for found in reader.index_infos()]
    abort = AbortFile(reader.root)
    process = StoreLock.holder(reader.root)
    state = "running" if process is not None else "crashed" if abort.exists() else "stopped"
    return {
        "data": str(reader.root),
        "state": state,
        "process": process or abort.pid(),  # of the running broker, or of the one that crashed and left the file
        "log_min_offset": log.min,
        "log_max_offset": log.end(),
        "log_files": len(log.starts),
        "log_file_bytes": log.segment_bytes,
        "checkpoint": asdict(Checkpoint.load(reader.root / "checkpoint")),
        "index_files": len(index),
        "index_entries": sum(found["entries"] for found in index),
        "index": [
            {
                **{name: found[name] for name in ("name", "begin_ms", "end_ms", "entries", "used_slots")},
                "begin_log_offset": found["begin_offset"],
                "end_log_offset": found["end_offset"],
            }
            for found in index
        ],
    }


def _print_summary(out: Output, summary: dict[str, Any]) -> None:
    used = summary["log_max_offset"] - summary["log_min_offset"]
    checkpoint = summary["checkpoint"]
    process = f"process {summary['process']}" if summary["process"] else "unknown process"
    state = {
        "stopped": "stopped cleanly",
        "running": f"a broker has it open ({process}); this is a snapshot",
        "crashed": f"the last broker ({process}) did not stop cleanly; the next start recovers",
    }[summary["state"]]
    out.console().print(
        f"data        {literal(summary['data'])}\n"
        f"state       {literal(state)}\n"
        f"log         {size(used)}, offsets {summary['log_min_offset']} to {summary['log_max_offset']}, in "
        f"{counted(summary['log_files'], 'file')} of {size(summary['log_file_bytes'])}\n"
        f"checkpoint  log {when(checkpoint['physic_ms'])}, queues {when(checkpoint['logics_ms'])}, "
        f"index {when(checkpoint['index_ms'])}\n"
        f"index       {counted(summary['index_entries'], 'entry')} in {counted(summary['index_files'], 'file')} "
        f"(one for each key and id of a message)\n"
    )


def _not_in_queues(reader: StoreReader) -> int:
    """Count the records that a broker stored but did not add to their queues before it ended, up to a limit that is fast."""
    from itertools import islice

    from kappamq.store.files import Files
    from kappamq.store.lock import AbortFile
    from kappamq.store.log.log_reader import Found
    from kappamq.store.position import Position
    from kappamq.store.verify.verify import wants_entry

    position, _why = Position.load(reader.root / "kappamq.position", Files())
    if position is None and not AbortFile(reader.root).exists():
        return 0  # a Java broker that stopped cleanly has added everything
    queues = reader.queues()
    ends = {(queue.topic, queue.queue_id): queue.max for queue in queues}
    start = position.dispatched if position is not None else _newest_entry(reader, queues)
    count = 0
    for found in islice(reader.log.scan(start), _LOOKED_AT_MAX):
        if isinstance(found, Found) and wants_entry(found.record):
            key = (found.record.topic, found.record.queue_id)
            count += found.record.queue_offset >= ends.get(key, 0)
    return count


def _newest_entry(reader: StoreReader, queues: list[QueueRange]) -> int:
    """Return the newest log offset in any queue, else the start of the log."""
    lasts = [reader.entries(queue.topic, queue.queue_id, queue.max - 1, queue.max) for queue in queues if queue.count]
    known = [log_offset for entries in lasts for _number, log_offset, _size, _code in entries]
    return max((at for at in known if at < reader.log.limit), default=reader.log.min)


def _by_queue(reader: StoreReader, topic: str | None) -> list[dict[str, Any]]:
    from kappamq.errors import TopicNotFound

    found = reader.queues(topic)
    if topic is not None and not found:
        raise TopicNotFound(f"{reader.root} has no queue of topic {topic}")
    return [
        {
            "topic": queue.topic,
            "queue": queue.queue_id,
            "min_offset": queue.min,
            "max_offset": queue.max,
            "messages": queue.count,
        }
        for queue in found
    ]


def _by_topic(by_queue: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for queue in by_queue:
        row = found.setdefault(queue["topic"], {"topic": queue["topic"], "queues": 0, "messages": 0})
        row["queues"] += 1
        row["messages"] += queue["messages"]
    return list(found.values())


def _records(out: Output, reader: StoreReader, start: int | None, count: int) -> None:
    """Print records in log order; damage is shown in its place, and skipped."""
    from kappamq.cli.shared import messages
    from kappamq.store.log.log_reader import Damage

    for number, found in enumerate(reader.log.scan(start)):
        if number == count:
            break
        if isinstance(found, Damage):
            if found.tail:
                break
            out.warn(f"bytes {found.start} to {found.stop} are not records: {found.why}")
            continue
        messages.log_line(out, found.record, found.size)


def _tell(out: Output, report: Report) -> None:
    from dataclasses import asdict

    if out.json:
        found = asdict(report)
        named = {
            "data": found.pop("root"),
            "log_min_offset": found.pop("log_min"),
            "log_max_offset": found.pop("log_end"),
        }
        del found["problems_max"]
        for problem in found["problems"]:
            del problem["fix"]  # used by a running broker
        out.raw({**named, **found, "ok": report.ok})
        return
    from rich.text import Text

    console = out.console()
    times = f", stored {when(report.first_ms)} to {when(report.last_ms)}" if report.records else ""
    console.print(
        f"log     {counted(report.records, 'record')} ({size(report.record_bytes)}){times}\n"
        f"queues  {counted(report.queue_entries, 'entry')} in {counted(report.queues, 'queue')}\n"
        f"index   {counted(report.index_entries, 'entry')} in {counted(report.index_files, 'file')}"
    )
    if report.forgotten:
        console.print(f"{counted(report.forgotten, 'record')} of deleted topics")
    if report.torn_tail:
        console.print(f"after the last record, {literal(report.torn_tail)}: the next start truncates it")
    if report.undispatched or report.unindexed:
        console.print(
            f"not in their queues yet: {counted(report.undispatched, 'record')}; not in the index yet: "
            f"{counted(report.unindexed, 'record')}. A running broker is about to add them, otherwise the next start does"
        )
    for problem in report.problems:
        console.print(Text(str(problem), style="red"))
    hidden = report.problem_count - len(report.problems)
    if hidden:
        console.print(f"... and {hidden} more (--problems shows more)")
    console.print(
        "[bold green]no problems found[/]"
        if report.ok
        else f"[bold red]{counted(report.problem_count, 'problem')}[/]; nothing was changed"
    )
