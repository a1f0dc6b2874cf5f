"""Formatting of messages: a line for people, all fields for programs."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from kappamq.cli.shared.logs import escaped
from kappamq.cli.shared.output import Output, when

if TYPE_CHECKING:
    from kappamq.message import ReceivedMessage
    from kappamq.protocol.records.record import Record

BODY_CHARACTERS_MAX = 200  # of a body on a line; JSON has all of it


def as_json(message: ReceivedMessage) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.queue.broker,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "log_offset": message.log_offset,
        "id": message.message_id,
        "offset_id": message.offset_id,
        "tags": message.tags,
        "keys": list(message.keys),
        "born_ms": message.born_ms,
        "stored_ms": message.stored_ms,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "properties": dict(message.properties),
    }
    try:
        shown["body"] = message.body.decode("utf-8")
    except UnicodeDecodeError:
        shown["body_base64"] = base64.b64encode(message.body).decode()
    return shown


def body_line(body: bytes) -> str:
    """Return a body as one line of text: control characters are made visible, long bodies truncated."""
    text = body[: BODY_CHARACTERS_MAX * 4].decode("utf-8", "backslashreplace")
    text = escaped(text)
    cut = len(text) > BODY_CHARACTERS_MAX or len(body) > BODY_CHARACTERS_MAX * 4
    return text[:BODY_CHARACTERS_MAX] + (f"... ({len(body)} bytes)" if cut else "")


def _marks(message: ReceivedMessage) -> str:
    return escaped(f"{message.tags or '-'}  {','.join(message.keys) or '-'}")


def line(out: Output, message: ReceivedMessage) -> None:
    """Print one message on one line."""
    if out.json:
        out.raw(as_json(message))
        return
    from rich.text import Text

    text = Text(when(message.stored_ms), style="dim")
    text.append(f"  {message.queue.queue_id}/{message.queue_offset}", style="cyan")
    text.append(f"  {_marks(message)}  ", style="green")
    text.append(body_line(message.body), style="default")
    out.console().print(text)


def log_line(out: Output, record: Record, size: int) -> None:
    """Print one record of the log."""
    message = record.to_message("")
    if out.json:
        out.raw({**as_json(message), "bytes": size})
        return
    from rich.text import Text

    text = Text(f"{message.log_offset}+{size}", style="dim")
    text.append(f"  {escaped(message.topic)}/{message.queue.queue_id}/{message.queue_offset}", style="cyan")
    text.append(f"  {when(message.stored_ms)}", style="dim")
    text.append(f"  {_marks(message)}  ", style="green")
    text.append(body_line(message.body), style="default")
    out.console().print(text)


def details(out: Output, message: ReceivedMessage) -> None:
    """Print one message with all its fields."""
    if out.json:
        out.raw(as_json(message))
        return
    from rich.text import Text

    rows = {
        "message id": message.message_id,
        "offset id": message.offset_id,
        "topic": message.topic,
        "queue": f"{message.queue.broker}/{message.queue.queue_id}, offset {message.queue_offset}",
        "log offset": f"{message.log_offset} ({message.stored_bytes} bytes)",
        "tags": message.tags or "-",
        "keys": " ".join(message.keys) or "-",
        "born": f"{when(message.born_ms)} at {message.born_host}",
        "stored": f"{when(message.stored_ms)} at {message.store_host}",
        "retries": str(message.reconsume_times),
        "properties": ", ".join(f"{name}={value}" for name, value in sorted(message.properties.items())) or "-",
        "body": body_line(message.body),
    }
    for name, value in rows.items():
        out.console().print(Text(f"{name:>12}  ", style="dim").append(escaped(value), style="default"))
    out.console().print()
