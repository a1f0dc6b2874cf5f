from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest

from kappamq.cli.shared import messages
from kappamq.cli.shared.output import Format, Output
from kappamq.message import MessageQueue, ReceivedMessage


def message(body: bytes) -> ReceivedMessage:
    return ReceivedMessage(
        topic="tea",
        body=body,
        queue=MessageQueue("tea", "b", 2),
        queue_offset=7,
        log_offset=900,
        message_id="MID",
        offset_id="OID",
        tags="paid",
        keys=("k1", "k2"),
        properties={"a": "[b]"},
        stored_ms=1_700_000_000_000,
        store_host="10.0.0.1:10911",
    )


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    messages.line(Output(Format.JSON), message("größe".encode()))
    messages.details(Output(Format.JSON), message(b"\xff\x00"))
    first, second = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (first["body"], first["offset"], first["keys"], first["properties"]) == (
        "größe",
        7,
        ["k1", "k2"],
        {"a": "[b]"},
    )
    assert base64.b64decode(second["body_base64"]) == b"\xff\x00"
    assert "body" not in second


def test_a_line_cannot_be_broken_by_a_body(capsys: pytest.CaptureFixture[str]) -> None:
    messages.line(Output(), message(b"a\nb\x1b[31m[red]"))
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert "\x1b[31m" not in printed
    assert "a\\nb\\x1b[31m[red]" in printed
    assert "2/7" in printed
    assert "paid  k1,k2" in printed


def test_tags_keys_and_properties_are_no_commands_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]52;c;AAAA\x07"
    received = replace(message(b"x"), tags=evil, keys=(evil,), properties={evil: evil}, topic=evil)
    messages.line(Output(), received)
    messages.details(Output(), received)
    printed = capsys.readouterr().out
    assert "\x1b]" not in printed
    assert printed.count(r"\x1b]52;c;AAAA\x07") >= 6


def test_details_show_everything(capsys: pytest.CaptureFixture[str]) -> None:
    messages.details(Output(), message(b"x"))
    printed = capsys.readouterr().out
    for text in ("MID", "OID", "tea", "b/2, offset 7", "k1 k2", "a=[b]", "10.0.0.1:10911"):
        assert text in printed


def test_long_bodies_are_cut() -> None:
    assert messages.body_line(b"x" * 300) == "x" * 200 + "... (300 bytes)"
    assert messages.body_line(b"\xff" * 100_000).endswith("(100000 bytes)")
    assert messages.body_line("ä".encode() * 200) == "ä" * 200
