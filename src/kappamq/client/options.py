"""The keyword arguments of each kind of client as types, for code that passes them on: the testing kit, your own factory.

    def my_consumer(**options: Unpack[ConsumerOptions]) -> Consumer:
        return Consumer("10.0.0.7:9876", **options)

mypy and pyright find misspelt options and values of the wrong type. The fields of ClientConfig are in `ClientOptions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Required

from kappamq.client.consumer.listening import Listener
from kappamq.client.group.balance import Strategy
from kappamq.client.group.offsets import ConsumeFrom
from kappamq.client.group.subscription import Topics
from kappamq.client.producer.checks import Check
from kappamq.client.producer.selection import Selection
from kappamq.client.producer.transaction import Listener as TransactionListener
from kappamq.config.client import ClientOptions


class ProducerOptions(ClientOptions, total=False):
    group: str
    selection: str | Selection


class TransactionProducerOptions(ClientOptions, total=False):
    group: Required[str]
    check: Check | None
    listener: TransactionListener | None
    topics: Sequence[str]
    selection: str | Selection


class PullConsumerOptions(ClientOptions, total=False):
    group: Required[str]


class ConsumerOptions(ClientOptions, total=False):
    group: Required[str]
    topics: Required[Topics]
    listener: Listener | None
    ordered: bool
    broadcasting: bool
    consume_from: ConsumeFrom
    balance: str | Strategy
    idle_timeout: float | None


class LitePullConsumerOptions(ClientOptions, total=False):
    group: Required[str]
    topics: Topics | None
    consume_from: ConsumeFrom
    balance: str | Strategy
    auto_commit: bool
    idle_timeout: float | None
