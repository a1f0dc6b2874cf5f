"""docs/CONFIG.md tells what the tables hold. `python -m tests.config.test_docs` writes it anew."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

from kappamq.config import apache
from kappamq.config.apache_features import BROKER_UNSET, NAMESERVER_UNSET, Unset
from kappamq.config.apache_names import BROKER_SETTINGS, NAMESERVER_SETTINGS, Setting
from kappamq.config.client import ClientConfig

DOCUMENT = Path(__file__).parents[2] / "docs" / "CONFIG.md"
COPIES_HEAD = """[COPIES.md](COPIES.md) says what these do together. A member of a Raft group has `enableDLegerCommitLog=true`;
without it the names that begin with `dLeger` have no effect. Peers are written `n0-host:port;n1-host:port`.
"""

HEAD = """# Configuration

A broker reads RocketMQ's `broker.conf` (`kappamq broker -c broker.conf`), and `--set name=value` wins over the file. A name
is RocketMQ's, or ours as `part.field` (`store.flush_interval_ms`), which reaches every field below. The file is in the
format of `java.util.Properties`, in UTF-8.

- A value that is invalid, or that requests something KappaMQ does not support, is an error: nothing is started. All
  problems of a file are reported at once, each with its line.
- A property of RocketMQ 5.3 that has no effect here (thread pools, memory mappings ...) is reported as a warning.
- An unknown property is reported as a warning with a guess what was meant; with `--strict`, and in `--set`, it is an
  error.

`live` properties can be changed at run time (`mqadmin updateBrokerConfig`); others are refused with code 16, unknown
names and invalid values with code 29, and then nothing of that request is applied.

This page is generated from the code by `python -m tests.config.test_docs`; a test keeps it current.
"""

REFUSED_HEAD = """## Values that are refused

Another value would start a broker that lacks something its operator counts on.

| name | may only be | because |
|---|---|---|"""

ABSENT_HEAD = """## What `getBrokerConfig` shows for features that are absent

Dashboards and migrations read RocketMQ's names. For a feature that is not here they find the value that switches it off;
another value in the file has no effect and is listed as a warning at the start. Names without such a value (thread counts,
intervals) are known and without effect, and are shown only if the file has them.

| because | shown as |
|---|---|"""

CLIENT_HEAD = """## Client

Every option can be given to any client by name, `Producer("127.0.0.1:9876", send_timeout_ms=500)`, or kept in a
`ClientConfig` (`kappamq.config.client`) that several share, `Consumer(config=mine, group=..., topics=...)`; names given to a client win
over it. A name that does not exist is an error with a guess what was meant.
"""


def comments(config: type[Any]) -> dict[str, str]:
    """The comment behind each field, or on the lines above it, says what a larger or smaller value costs."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(config).splitlines():
        if line.startswith("    # "):
            above.append(line.removeprefix("    # "))
            continue
        match = re.match(r"    (\w+): [^#]*(?:#\s*(.*))?$", line)
        if match:
            found[match[1]] = match[2] or " ".join(above)
        above = []
    return found


def default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{field.default}`" if field.default not in ("", None, ()) else "-"
    return "-"


def table(part: str, settings: dict[str, Setting]) -> str:
    config = apache.PARTS[part]
    by_field: dict[str, list[str]] = {}
    for setting in settings.values():
        if setting.part == part:
            by_field.setdefault(setting.field, []).append(f"`{setting.name}`{' (live)' if setting.live else ''}")
    said = comments(config)
    lines = ["| field | RocketMQ's name | default | what it does |", "|---|---|---|---|"]
    for field in dataclasses.fields(config):
        if field.name == "properties":
            continue
        name = ", ".join(by_field.get(field.name, []))
        text = said.get(field.name, "").replace("|", "\\|")
        lines.append(f"| `{part}.{field.name}` | {name} | {default(field)} | {text} |")
    return "\n".join(lines)


def client_table() -> str:
    said = comments(ClientConfig)
    lines = ["| option | default | what it does |", "|---|---|---|"]
    for field in dataclasses.fields(ClientConfig):
        shown = (
            "`$KAPPAMQ_NAMESERVER`, else `$NAMESRV_ADDR`, else `127.0.0.1:9876`"
            if field.name == "nameservers"
            else default(field)
        )
        lines.append(f"| `{field.name}` | {shown} | {said[field.name]} |")
    return "\n".join(lines)


def document() -> str:
    parts = [HEAD]
    for title, part, settings in (
        ("Broker", "broker", BROKER_SETTINGS),
        ("Store", "store", BROKER_SETTINGS),
        ("Network and TLS (broker and name server)", "net", BROKER_SETTINGS),
        ("Copies", "copies", BROKER_SETTINGS),
        ("Name server", "nameserver", NAMESERVER_SETTINGS),
    ):
        parts.append(f"## {title}\n\n{COPIES_HEAD + chr(10) if part == 'copies' else ''}{table(part, settings)}\n")
    unset = {**NAMESERVER_UNSET, **BROKER_UNSET}
    parts.append("\n".join([REFUSED_HEAD, *sorted(_refused(each) for each in unset.values() if each.required), ""]))
    parts.append("\n".join([ABSENT_HEAD, *_absent(unset), ""]))
    parts.append(CLIENT_HEAD + "\n" + client_table() + "\n")
    return "\n".join(parts)


def _refused(unset: Unset) -> str:
    return f"| `{unset.name}` | {' or '.join(_value(value) for value in unset.required)} | {unset.because} |"


def _absent(table: dict[str, Unset]) -> list[str]:
    """A row for each feature, with the values that its switches show."""
    by_reason: dict[str, list[str]] = {}
    for unset in table.values():
        if unset.shown is not None:
            by_reason.setdefault(unset.because, []).append(f"`{unset.name}` {_value(unset.shown)}")
    return [f"| {because} | {', '.join(shown)} |" for because, shown in sorted(by_reason.items())]


def _value(value: str) -> str:
    return f"`{value}`" if value else "empty"


def test_every_client_option_says_what_it_does() -> None:
    assert [name for name, text in comments(ClientConfig).items() if not text] == []


def test_no_field_is_without_a_word() -> None:
    rows = [line for line in document().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if re.search(r"\|\s*\|$", row)] == []


@dataclasses.dataclass
class _Commented:
    behind: int = 1  # behind it
    # on lines
    # above it
    above: int = 2
    nothing: int = 3


def test_comments_stand_behind_or_above() -> None:
    assert comments(_Commented) == {"behind": "behind it", "above": "on lines above it", "nothing": ""}


def test_the_page_tells_what_the_code_does() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "run: python -m tests.config.test_docs"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
