"""What a pull wants, by its own word or its group's heartbeat, and what is said if neither will do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kappamq.broker.pulling.pull_subscriptions import expressions_of, subscription_of
from kappamq.config.broker import BrokerConfig
from kappamq.errors import KappaError, NoPermission, SubscriptionOutdated, SubscriptionUnknown
from kappamq.native.layout import PULL_SUBSCRIPTION
from kappamq.protocol.bodies.clients import MessageModel, SubscriptionData
from kappamq.protocol.headers.client import PullMessage


def header(**changed: Any) -> PullMessage:
    fields = {
        "consumer_group": "g", "topic": "t", "queue_id": 0, "queue_offset": 0, "count_max": 1, "sys_flag": 0, "commit_offset": 0,
        "hold_ms": 0, "subscription_version": 5,
    }  # fmt: skip
    return PullMessage(**(fields | changed))


def clients(model: MessageModel = MessageModel.CLUSTERING, version: int = 5) -> Any:
    subscriptions = {"t": SubscriptionData(topic="t", expression="a", version=version)}
    return SimpleNamespace(consumers={"g": SimpleNamespace(message_model=model, subscriptions=subscriptions)})


def test_it_says_so_itself_or_its_group_has() -> None:
    own = subscription_of(header(sys_flag=PULL_SUBSCRIPTION, subscription="x", topic="other"), clients(), False)
    assert (own.expression, own.expression_type) == ("x", "TAG")
    assert subscription_of(header(), clients(), False).expression == "a"
    assert subscription_of(header(), clients(MessageModel.BROADCASTING), True).expression == "a"


@pytest.mark.parametrize(
    ("asked", "known", "error"),
    [
        (header(consumer_group="nobody"), clients(), SubscriptionUnknown),
        (header(topic="other"), clients(), SubscriptionUnknown),
        (header(), clients(version=4), SubscriptionOutdated),
        (header(), clients(MessageModel.BROADCASTING), NoPermission),
    ],
)
def test_what_is_wrong_with_it_is_told(asked: PullMessage, known: Any, error: type[KappaError]) -> None:
    with pytest.raises(error):
        subscription_of(asked, known, False)


def test_retries_are_selected_by_the_topics_they_come_from() -> None:
    own = SubscriptionData(topic="%RETRY%g", expression="*")
    config = BrokerConfig(sql_filters_retries=True)
    assert expressions_of(header(), own, clients(), config) == [own]
    assert len(expressions_of(header(topic="%RETRY%g"), own, clients(), config)) == 2
    assert expressions_of(header(topic="%RETRY%g"), own, clients(), BrokerConfig(sql_filters_retries=False)) == [own]
