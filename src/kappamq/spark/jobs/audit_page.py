"""The page of an audit: one HTML file including its plots, without external resources or scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kappamq.spark.jobs import audit_charts as charts
from kappamq.spark.jobs.audit_charts import COLOURS, clipped, duration, moment, short, shown, size
from kappamq.spark.jobs.audit_report import Report
from kappamq.spark.jobs.audit_rules import RULES, Kind, Rule

SERIES: Final = len(COLOURS) - 1
"""The number of topics with their own area in the plot of rates; the others share one."""
ROWS: Final = 20
_EXAMPLES: Final = 10
_TITLES: Final = {
    "stored": "From the producer to the log",
    "delivered": "Delayed and timed messages: after their time",
    "read": "From the log to a consumer, by the trace",
}

_STYLE: Final = """
:root { --ink: #1f2937; --soft: #6b7280; --line: #e5e7eb; --bad: #b91c1c; --good: #047857; --warn: #b45309; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; color: var(--ink); background: #f3f4f6; margin: 0; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 18px; margin: 0 0 10px; } h3 { font-size: 15px; margin: 18px 0 4px; }
p { margin: 4px 0; } .soft { color: var(--soft); } code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 13px; }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 18px 22px; margin-top: 18px; }
.cards { display: grid; grid-template-columns: repeat(4, 1fr); gap: 14px; margin-top: 18px; }
.card { background: #fff; border: 1px solid var(--line); border-top: 4px solid var(--good); border-radius: 10px; padding: 12px 18px; }
.card.fault { border-top-color: var(--bad); } .card.note { border-top-color: var(--warn); }
.card b { display: block; font-size: 30px; line-height: 1.25; } .card.fault b { color: var(--bad); } .card.note b { color: var(--warn); }
.verdict { font-size: 17px; font-weight: 600; color: var(--good); }
.verdict.fault { color: var(--bad); } .verdict.none { color: var(--warn); }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { text-align: left; color: var(--soft); font-weight: 600; border-bottom: 1px solid var(--line); white-space: nowrap; }
th, td { padding: 5px 10px 5px 0; }
td { border-bottom: 1px solid #f3f4f6; overflow-wrap: anywhere; vertical-align: top; }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th.n + th:not(.n), td.n + td:not(.n) { padding-left: 14px; }
.tag { font-size: 12px; font-weight: 600; border-radius: 9px; padding: 1px 9px; color: #fff; background: var(--warn); }
.tag.fault { background: var(--bad); } .scroll { overflow-x: auto; }
svg { width: 100%; height: auto; display: block; } svg text { font-family: inherit; }
.tick { font-size: 11.5px; fill: #6b7280; } .label { font-size: 13px; fill: #1f2937; } .value { font-size: 12.5px; fill: #374151; }
.grid { stroke: #e5e7eb; stroke-width: 1; }
@media (max-width: 700px) { .cards { grid-template-columns: repeat(2, 1fr); } }
"""

Cell = Callable[[Any], str]
Columns = Sequence[tuple[str, str, Cell | None]]
"""(key, heading, how a number is written; None for text)"""


def render(report: Report) -> str:
    parts = [
        _head(report),
        _cards(report),
        _findings(report),
        _rates(report),
        _topics(report),
        _groups(report),
        _times(report),
        _heavy(report),
        _remarks(report),
    ]
    body = "\n".join(filter(None, parts))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Audit of {shown(str(report.store))}</title><style>{_STYLE}</style></head>\n<body><main>"
        f"{body}</main></body></html>\n"
    )


def _head(report: Report) -> str:
    if not report.ok:
        word = "finding says" if report.found.faults == 1 else "findings say"
        words = {Kind.LOST: "lost", Kind.DUPLICATED: "duplicated", Kind.REORDERED: "out of order"}
        told = " or ".join(words[kind] for kind in words if report.found.has_faults(kind))
        verdict = f'<p class="verdict fault">{report.found.faults:,} {word} that messages are {told}.</p>'
    elif report.messages:
        verdict = '<p class="verdict">Nothing is lost, duplicated or out of order.</p>'
    else:
        verdict = '<p class="verdict none">There were no messages to look at: this says nothing about the store.</p>'
    limit = f"<p><b>{shown(report.limit[0].upper() + report.limit[1:])}</b></p>" if report.limit else ""
    return (
        f'<h1>Audit of <code style="font-size: 22px">{shown(str(report.store))}</code></h1>{verdict}{limit}'
        f'<p class="soft">{report.messages:,} messages ({size(report.message_bytes)}) of {report.records:,} records, stored from '
        f"{moment(report.first_ms)} to {moment(report.last_ms)}. Log offsets {report.log_min:,} to {report.log_end:,}; "
        f"{report.trace_events:,} trace events. Made {moment(report.made_ms)}. All times are UTC.</p>"
    )


def _cards(report: Report) -> str:
    said = []
    for kind in Kind:
        faults, everything = report.found.count(kind, faults_only=True), report.found.count(kind)
        # Lateness is never a fault, but this card shows it all the same.
        number = everything if kind is Kind.LATE else faults
        told = [rule for rule in RULES.values() if rule.kind is kind and report.found.tallies[rule.name].findings]
        state = "fault" if any(rule.fault for rule in told) else "note" if told else ""
        notes = everything - number
        extra = f"and {short(notes)} in notes" if notes else "messages" if number != 1 else "message"
        said.append(
            f'<div class="card {state}">{kind.value.capitalize()}<b>{short(number)}</b><span class="soft">{extra}</span></div>'
        )
    return f'<div class="cards">{"".join(said)}</div>'


def _findings(report: Report) -> str:
    rows = report.found.rows()
    parts = []
    for rule in RULES.values():
        tally = report.found.tallies[rule.name]
        if tally.findings:
            parts.append(_rule(rule, tally.findings, tally.messages, [row for row in rows if row["rule"] == rule.name]))
    clean = ", ".join(rule.name for rule in RULES.values() if not report.found.tallies[rule.name].findings)
    clean = f'<p class="soft">Rules that found nothing: {clean}.</p>' if clean else ""
    return f"<section><h2>Findings</h2>{''.join(parts)}{clean}</section>"


def _rule(rule: Rule, findings: int, messages: int, rows: Sequence[Mapping[str, Any]]) -> str:
    state = "fault" if rule.fault else "note"
    about = f"{findings:,} findings" if findings != 1 else "1 finding"
    if messages not in (0, findings):
        about += f" about {messages:,} messages"
    columns: Columns = [
        ("topic", "topic", None), ("queue", "queue", str), ("offset", "offset", str), ("last_offset", "to", str),
        ("log_offset", "log offset", str), ("group", "group", None), ("message_id", "message", None), ("messages", "messages", short),
        ("ms", "by", duration), ("text", "", None),
    ]  # fmt: skip
    used = [column for column in columns if any(row.get(column[0]) not in (None, "") for row in rows)]
    if all(row.get("offset") == row.get("last_offset") for row in rows):
        used = [column for column in used if column[0] != "last_offset"]
    if all(row["messages"] <= 1 for row in rows):
        used = [column for column in used if column[0] != "messages"]
    more = ""
    if findings > _EXAMPLES:
        more = f'<p class="soft">The first {_EXAMPLES} of them; more in <code>tables/findings.parquet</code>.</p>'
    return (
        f'<h3><span class="tag {state}">{state}</span> {rule.kind.value}: {rule.name} <span class="soft">- {about}</span></h3>'
        f'<p class="soft">{shown(rule.meaning)}</p>{_table(used, rows[:_EXAMPLES])}{more}'
    )


def _rates(report: Report) -> str:
    rows = report.tables["rates"]
    if not rows:
        return ""
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["topic"]] = totals.get(row["topic"], 0) + row["messages"]
    ranked = sorted(totals, key=lambda topic: (-totals[topic], topic))
    named = ranked if len(ranked) <= SERIES else ranked[:SERIES]
    first, last, width = rows[0]["at_ms"], rows[-1]["at_ms"], report.width_ms
    times = list(range(first, last + 1, width))
    counts: dict[str, list[float]] = {topic: [0.0] * len(times) for topic in named}
    rest = [0.0] * len(times)
    for row in rows:
        counts.get(row["topic"], rest)[(row["at_ms"] - first) // width] += row["messages"]
    series: list[tuple[str, Sequence[float]]] = list(counts.items())
    if len(ranked) > SERIES:
        series.append((f"{len(ranked) - SERIES} others", rest))
    plot = charts.stacked("Messages over time", times, series, width, f"per {duration(width)}")
    return f"<section><h2>Messages over time, by topic</h2>{plot}</section>"


def _topics(report: Report) -> str:
    rows = [row for row in report.tables["topics"] if row["kind"] != "system"][:ROWS]
    if not rows:
        return ""
    plot = charts.bars(
        "Bytes by topic",
        [(row["topic"], row["bytes"], f"{size(row['bytes'])}, {short(row['messages'])} messages") for row in rows],
    )
    system = [row for row in report.tables["topics"] if row["kind"] == "system"]
    more = (
        f'<p class="soft">The broker\'s own topics take {size(sum(row["bytes"] for row in system))} more.</p>'
        if system
        else ""
    )
    return f"<section><h2>Heavy topics</h2>{plot}{more}</section>"


def _groups(report: Report) -> str:
    rows = report.tables["groups"]
    if not rows:
        return ""
    behind = [row for row in rows if row["lag"]][:ROWS]
    plot = charts.bars(
        "Lag by group",
        [(f"{clipped(row['group'], 20)} / {clipped(row['topic'], 16)}", row["lag"], f"{short(row['lag'])} messages") for row in behind],
        COLOURS[1],
    )  # fmt: skip
    columns: Columns = [
        ("group", "group", None), ("topic", "topic", None), ("lag", "lag", short), ("lag_bytes", "bytes", size),
        ("lag_ms", "behind by", duration), ("retries", "retries", short), ("dead_letters", "dead letters", short),
    ]  # fmt: skip
    head = "<section><h2>Consumer groups: lag</h2>" + (plot if behind else '<p class="soft">No group is behind.</p>')
    return f"{head}{_table(columns, rows[:ROWS])}</section>"


def _times(report: Report) -> str:
    parts = []
    columns: Columns = [
        ("name", "", None), ("messages", "messages", short), ("p50_ms", "p50", duration), ("p95_ms", "p95", duration),
        ("p99_ms", "p99", duration), ("max_ms", "longest", duration),
    ]  # fmt: skip
    for what, title in _TITLES.items():
        rows = [row for row in report.tables["times"] if row["what"] == what]
        bins = [row for row in report.tables["histograms"] if row["what"] == what]
        if not rows:
            continue
        labels = [f"< {duration(row['below_ms'])}" if row["below_ms"] is not None else "more" for row in bins]
        plot = charts.columns(title, labels, [row["messages"] for row in bins], "messages", COLOURS[2])
        named = [(key, rows[0]["by"] if key == "name" else heading, cell) for key, heading, cell in columns]
        parts.append(f"<h3>{title}</h3>{plot}{_table(named, rows[:ROWS])}")
    if not parts:
        return ""
    return (
        f'<section><h2>How long it took</h2><p class="soft">More than {duration(report.late_ms)} counts as late. '
        f"Times of producers, brokers and consumers are those of their own clocks.</p>{''.join(parts)}</section>"
    )


def _heavy(report: Report) -> str:
    tail: Columns = [("messages", "messages", short), ("bytes", "bytes", size)]
    parts = []
    for name, title, head in (
        ("keys", "Heavy keys", [("key", "key", None), ("topic", "topic", None)]),
        ("tags", "Heavy tags", [("tags", "tag", None), ("topic", "topic", None)]),
        ("producers", "Heavy producers", [("client", "address", None), ("topic", "topic", None)]),
    ):
        rows = report.tables[name]
        if rows:
            parts.append(f"<h3>{title}</h3>{_table([*head, *tail], rows[:ROWS])}")
    return f"<section><h2>Keys, tags and producers</h2>{''.join(parts)}</section>" if parts else ""


def _remarks(report: Report) -> str:
    if not report.remarks:
        return ""
    items = "".join(f"<li>{shown(remark)}</li>" for remark in report.remarks)
    return f"<section><h2>What could not be looked at</h2><ul>{items}</ul></section>"


def _table(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th{_side(cell)}>{shown(heading)}</th>" for _key, heading, cell in columns)
    body = []
    for row in rows:
        cells = []
        for key, _heading, cell in columns:
            value = row.get(key)
            text = "" if value is None else cell(value) if cell else str(value)
            cells.append(f"<td{_side(cell)}>{shown(text)}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _side(cell: Cell | None) -> str:
    """Numbers are right-aligned."""
    return ' class="n"' if cell else ""
