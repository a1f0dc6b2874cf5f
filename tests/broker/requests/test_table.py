"""The table of requests fits the broker, and docs/REQUESTS.md says what is in it.

`python -m tests.broker.requests.test_table` writes the page anew.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from kappamq.broker.admin.queries import Queries
from kappamq.broker.broker import Broker
from kappamq.broker.requests.declaration import Declaration, Right
from kappamq.broker.requests.request import Handler
from kappamq.broker.requests.table import REQUESTS, SECTIONS
from kappamq.config.net import NetConfig
from kappamq.net.requests.sizes import RequestLimit
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.headers.client import SendMessage, SendMessageV2
from kappamq.protocol.headers.header import Header, TopicHeader
from kappamq.protocol.later import complete
from tests.broker.operating import on_broker
from tests.broker.running import Speaker, running

DOCUMENT = Path(__file__).parents[3] / "docs" / "REQUESTS.md"
HEAD = """# Requests

Every request code that a broker knows: those it serves, and those it refuses with a reason. A code that is not here is answered
with 3 (REQUEST_CODE_NOT_SUPPORTED).

- **Header fields** have the names they have on the wire. Those in brackets may be left out. Any request may also carry `ns`, `nsd`,
  `bname`, `oway` and `lo`, which clients of RocketMQ 5 add and a single broker ignores. A field that is missing or cannot be read is
  answered with 1 (SYSTEM_ERROR), and the remark names it. One-letter fields stand for: {letters}.
- **Rights** say what the sender must be allowed to do, with which topic or group, and which field names it. `publish`,
  `subscribe`, `change` and `delete` include `read`. They are declared only: this version of the broker enforces none of them.
- **Sizes** are settings ([CONFIG.md](CONFIG.md)). Without a word about it, a header may have `net.request_header_bytes_max` bytes
  ({header} KiB) and a body `net.request_bytes_max` ({body} KiB). What is larger is answered with 29 (INVALID_PARAMETER) before it is read.

The kernel answers plain sends (10, 310, 320) and pulls (11, 361) alone where it can, with the same result.

This page covers requests to a broker, not their answers, nor requests to a name server. It is made from
`src/kappamq/broker/requests/table.py` by `python -m tests.broker.requests.test_table`; a test keeps it so.
"""
RPC_FIELDS = frozenset(TopicHeader.wire_names)


# -- the page ----------------------------------------------------------------------------------------------------------


def name_of(code: int) -> str:
    return f"`{RequestCode(code).name}`" if code in RequestCode._value2member_map_ else "-"


def fields_of(header: type[Header]) -> str:
    complete(header)
    shown = []
    for field in dataclasses.fields(header):  # type: ignore[arg-type]
        if field.name not in RPC_FIELDS:
            name = f"`{header.wire_names[field.name]}`"
            shown.append(name if field.default is dataclasses.MISSING else f"[{name}]")
    return " ".join(shown) or "-"


def right_of(declared: Declaration, right: Right) -> str:
    text = f"{right.action.value} {right.resource.value}"
    if right.field:
        assert declared.header is not None
        return f"{text} `{declared.header.wire_names[right.field]}`"
    return f"{text} ({right.named_by})" if right.named_by else text


def size_of(limit: RequestLimit) -> str:
    usual, said = RequestLimit(), []
    if limit.kind is not None:
        said.append(f"`{limit.kind.__name__}` as JSON")
    if limit.body != usual.body:
        said.append(f"body `net.{limit.body}`")
    if limit.header != usual.header:
        said.append(f"header `net.{limit.header}`")
    if limit.answer_bytes:
        said.append(f"an answer counts as {limit.answer_bytes >> 20} MiB until it is sent")
    return ", ".join(said) or "-"


def served(section: tuple[Declaration, ...]) -> Iterator[str]:
    yield "| code | name | header fields | rights | body and sizes | what it does |"
    yield "|---|---|---|---|---|---|"
    for each in section:
        assert each.header is not None
        rights = ", ".join(right_of(each, right) for right in each.rights)
        cells = (each.code, name_of(each.code), fields_of(each.header), rights, size_of(each.size), each.does)
        yield f"| {' | '.join(str(cell) for cell in cells)} |"


def refused(section: tuple[Declaration, ...]) -> Iterator[str]:
    yield "The remark is ` request type <code> not supported: ` and the reason."
    yield ""
    yield "| code | name | what it would do | reason |"
    yield "|---|---|---|---|"
    for (name, does, refusal), same in groupby(section, lambda each: (name_of(each.code), each.does, each.refusal)):
        codes = [each.code for each in same]
        shown = f"{codes[0]} to {codes[-1]}" if len(codes) > 1 else codes[0]
        yield f"| {shown} | {name} | {does} | {refusal} |"


def document() -> str:
    net = NetConfig()
    short, long = SendMessageV2.wire_names, SendMessage.wire_names
    letters = ", ".join(f"`{short[name]}` {long[name]}" for name in short if len(short[name]) == 1)
    parts = [HEAD.format(header=net.request_header_bytes_max >> 10, body=net.request_bytes_max >> 10, letters=letters)]
    for title, section in SECTIONS.items():
        rows = refused(section) if section[0].refusal else served(section)
        parts.append("\n".join([f"## {title}", "", *rows, ""]))
    return "\n".join(parts)


def test_the_page_tells_what_the_table_holds() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "run: python -m tests.broker.requests.test_table"


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_declaration_is_complete() -> None:
    for code, declared in REQUESTS.items():
        assert declared.does.endswith("."), code
        assert "|" not in declared.does + declared.refusal, code
        if not declared.refusal:
            assert declared.header is not None, code
            assert declared.rights, code
        for right in declared.rights:
            assert right.field == "" or right.field in declared.header.wire_names, code  # type: ignore[union-attr]
            assert bool(right.field or right.named_by) == (right.resource.value != "cluster"), code


def test_every_header_of_a_request_to_a_broker_is_used() -> None:
    """A header whose code the table knows is the one that the table decodes."""
    for code, header in Header.requests.items():
        if code in REQUESTS:
            assert REQUESTS[code].header is header, code


@on_broker()
async def test_every_handler_takes_the_header_that_is_declared(broker: Broker, client: Speaker) -> None:
    for code, handler in broker.bursts.handlers.items():
        declared = REQUESTS[code]
        (taken,) = get_args(get_type_hints(handler)["request"])
        given = get_type_hints(declared.normalise)["return"] if declared.normalise else declared.header
        assert taken is given, f"code {code}: the handler takes {taken}, the table gives {given}"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda codes: {12: codes[12]}, "request code 33 is declared as served but has no handler"),
        (lambda codes: {**codes, 40: codes[12]}, "request code 40 has a handler but is not declared as served"),
        (lambda codes: {**codes, 200050: codes[12]}, "request code 200050 has a handler but is not declared as served"),
        (lambda codes: {**codes, 10: codes[12]}, "request code 10 has two handlers"),
    ],
    ids=["no handler", "not declared", "refused", "two handlers"],
)
def test_a_broker_starts_only_if_handlers_and_table_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, problem: str
) -> None:
    original = Queries.handlers

    def handlers(self: Queries) -> dict[int, Handler]:
        return dict(change(original(self)))

    monkeypatch.setattr(Queries, "handlers", handlers)

    async def test() -> None:
        async with running(tmp_path):
            pytest.fail("it started")

    with pytest.raises(RuntimeError, match=problem):
        asyncio.run(asyncio.wait_for(test(), 60))


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
