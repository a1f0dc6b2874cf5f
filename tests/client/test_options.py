"""What type checkers know of options: every one, with its type, at every client."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any, Required, Unpack, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from mypy import api

from kappamq import client
from kappamq.client import options
from kappamq.config.client import ClientConfig, ClientOptions

ROOT = Path(__file__).parents[2]
CLIENTS = [name for name in client.__all__ if isinstance(getattr(client, name), type) and name != "DeadLetter"]
KINDS = {
    "ProducerOptions": "Producer",
    "TransactionProducerOptions": "TransactionProducer",
    "PullConsumerOptions": "PullConsumer",
    "ConsumerOptions": "Consumer",
    "LitePullConsumerOptions": "LitePullConsumer",
}


def test_options_are_the_fields_of_the_configuration() -> None:
    declared = get_type_hints(ClientConfig)
    assert get_type_hints(ClientOptions) == {item.name: declared[item.name] for item in fields(ClientConfig)}
    assert ClientOptions.__required_keys__ == frozenset()


@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_declares_its_options(name: str) -> None:
    kind = getattr(client, name)
    hints = get_type_hints(kind.__init__)
    assert get_origin(hints["options"]) is Unpack
    assert get_args(hints["options"]) == (ClientOptions,)
    if not name.startswith("Async"):
        plain, asynchronous = (inspect.signature(each).parameters for each in (kind, getattr(client, f"Async{name}")))
        assert {key: item.kind for key, item in plain.items()} == {key: item.kind for key, item in asynchronous.items()}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_handed_on_is_what_the_client_takes(name: str) -> None:
    kind: Any = getattr(options, name)
    assert is_typeddict(kind)
    taken = inspect.signature(getattr(client, KINDS[name])).parameters.values()
    named = {item.name: item for item in taken if item.kind is item.KEYWORD_ONLY and item.name != "config"}
    assert kind.__annotations__.keys() == named.keys() | ClientOptions.__annotations__.keys()
    required = {key for key, hint in get_type_hints(kind, include_extras=True).items() if get_origin(hint) is Required}
    assert required == {key for key, item in named.items() if item.default is item.empty}
    hints = get_type_hints(getattr(client, KINDS[name]).__init__)
    assert {key: hint for key, hint in get_type_hints(kind).items() if key in named} == {
        key: hints[key] for key in named
    }


GOOD = """
from kappamq import Admin, AsyncConsumer, Consumer, LitePullConsumer, Message, Producer, PullConsumer, TransactionProducer
from kappamq.testing import BrokerKit

Producer("a:1", group="g", send_timeout_ms=5, compress_kind="lz4")
Consumer("a:1", group="g", topics="t", consume_threads=5)
AsyncConsumer("a:1", group="g", topics={"t": "a || b"}, commit_ms=100)
LitePullConsumer(group="g", pull_batch=5).commit({})
Message("t", bytearray(b"x"), keys="a b")
Message("t", b"x", keys=["a", "b"])


def kit(broker: BrokerKit) -> None:
    broker.consumer(group="g", topics="t", consume_from="first", reconsume_max=3)
    broker.producer(group="g", send_retries=1)
"""
WRONG = [
    'Producer("a:1", send_timeout=5)',
    'Producer("a:1", send_timeout_ms="5")',
    'Producer("a:1", compress_kind="gzip")',
    'Consumer("a:1", group="g", topics="t", consume_thread=5)',
    'Consumer("a:1", group="g", topics="t", trace="yes")',
    'AsyncConsumer("a:1", group="g", topics="t", commit_ms=0.5)',
    'LitePullConsumer("a:1", group="g", auto_comit=False)',
    'PullConsumer("a:1", group="g", pull_bach=1)',
    'Admin("a:1", request_timeout=1)',
    'TransactionProducer("a:1", group="g", check=lambda message: True, check_thread=1)',
    'Message("t", {"cups": 42})',
    'BrokerKit().consumer(group="g", topics="t", consume_form="first")',
    'BrokerKit().consumer(topics="t")',
    "BrokerKit().producer(send_retry=1)",
]


@pytest.mark.slow
def test_mypy_finds_options_that_are_misspelt_or_of_the_wrong_type(tmp_path: Path) -> None:
    snippet = tmp_path / "snippet.py"
    snippet.write_text(GOOD + "\n".join(WRONG) + "\n")
    report, trouble, _ = api.run(["--strict", "--config-file", str(ROOT / "pyproject.toml"), str(snippet)])
    assert not trouble
    first = len(GOOD.splitlines()) + 1
    found = {int(line.split(":")[1]) for line in report.splitlines() if ": error:" in line}
    assert found == set(range(first, first + len(WRONG))), report
