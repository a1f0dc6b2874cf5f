"""docs/CONFIG.md tells what the tables hold. `python -m tests.config.test_docs` writes it anew."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

from kappamq.config import apache
from kappamq.config.apache_names import BROKER_SETTINGS, FIXED, NAMESERVER_SETTINGS, Setting
from kappamq.config.client import ClientConfig

DOCUMENT = Path(__file__).parents[2] / "docs" / "CONFIG.md"
HEAD = """# Configuration

A broker reads RocketMQ's `broker.conf` (`kappamq broker -c broker.conf`), and `--set name=value` wins over the file. A name
is RocketMQ's, or ours as `part.field` (`store.flush_interval_ms`), which reaches every field below. The file is in the
format of `java.util.Properties`, in UTF-8.

- A value that cannot be read, or that asks for something KappaMQ does not do, is an error: nothing is started. All
  problems of a file are told at once, each with its line.
- A name of RocketMQ 5.3 that has no effect here (thread pools, memory mappings ...) is listed as a warning.
- A name that nobody knows is listed as a warning with a guess what was meant; with `--strict`, and in `--set`, it is an
  error.

`live` names can be changed while the broker runs (`mqadmin updateBrokerConfig`); others are refused with code 16, unknown
names and bad values with code 29, and then nothing of that request is applied.

This page is made from the code by `python -m tests.config.test_docs`; a test keeps it so.
"""

CLIENT_HEAD = """## Client

Every option can be given to any client by name, `Producer("127.0.0.1:9876", send_timeout_ms=500)`, or kept in a
`ClientConfig` (`kappamq.config.client`) that several share, `Consumer(config=mine, group=..., topics=...)`; names given to a client win
over it. A name that does not exist is an error with a guess what was meant.
"""


def comments(config: type[Any]) -> dict[str, str]:
    """The comment behind each field says what a larger or smaller value costs."""
    found = {}
    for line in inspect.getsource(config).splitlines():
        match = re.match(r"    (\w+): [^#]*(?:#\s*(.*))?$", line)
        if match:
            found[match[1]] = match[2] or ""
    return found


def default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{field.default}`" if field.default not in ("", None, ()) else "-"
    return "-"


def table(part: str, settings: dict[str, Setting]) -> str:
    config = apache.PARTS[part]
    by_field = {setting.field: setting for setting in settings.values() if setting.part == part}
    said = comments(config)
    lines = ["| field | RocketMQ's name | default | what it does |", "|---|---|---|---|"]
    for field in dataclasses.fields(config):
        if field.name == "properties":
            continue
        setting = by_field.get(field.name)
        name = f"`{setting.name}`{' (live)' if setting.live else ''}" if setting else ""
        text = said.get(field.name, "").replace("|", "\\|")
        lines.append(f"| `{part}.{field.name}` | {name} | {default(field)} | {text} |")
    return "\n".join(lines)


def client_table() -> str:
    said = comments(ClientConfig)
    lines = ["| option | default | what it does |", "|---|---|---|"]
    for field in dataclasses.fields(ClientConfig):
        shown = "`$NAMESRV_ADDR`, else `127.0.0.1:9876`" if field.name == "nameservers" else default(field)
        lines.append(f"| `{field.name}` | {shown} | {said[field.name]} |")
    return "\n".join(lines)


def document() -> str:
    parts = [HEAD]
    for title, part, settings in (
        ("Broker", "broker", BROKER_SETTINGS),
        ("Store", "store", BROKER_SETTINGS),
        ("Network and TLS (broker and name server)", "net", BROKER_SETTINGS),
        ("Name server", "nameserver", NAMESERVER_SETTINGS),
    ):
        parts.append(f"## {title}\n\n{table(part, settings)}\n")
    rows = [
        f"| `{name}` | {' or '.join(f'`{v}`' if v else 'empty' for v in ok)} | {why} |"
        for name, (ok, why) in FIXED.items()
    ]
    parts.append(
        "## Values that are refused\n\n| name | may only be | because |\n|---|---|---|\n"
        + "\n".join(sorted(rows))
        + "\n"
    )
    parts.append(CLIENT_HEAD + "\n" + client_table() + "\n")
    return "\n".join(parts)


def test_every_client_option_says_what_it_does() -> None:
    assert [name for name, text in comments(ClientConfig).items() if not text] == []


def test_the_page_tells_what_the_code_does() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "run: python -m tests.config.test_docs"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
