"""The subscription of a pull: from its header, or from its group's last heartbeat."""

from __future__ import annotations

from kappamq.broker.clients.registry import Clients
from kappamq.broker.pulling.filtering import TAG
from kappamq.config.broker import BrokerConfig
from kappamq.errors import NoPermission, SubscriptionOutdated, SubscriptionUnknown
from kappamq.native.layout import PULL_SUBSCRIPTION
from kappamq.protocol.bodies.clients import MessageModel, SubscriptionData
from kappamq.protocol.headers.client import PullMessage
from kappamq.protocol.names import is_retry_topic


def subscription_of(header: PullMessage, clients: Clients, broadcast_allowed: bool) -> SubscriptionData:
    """Return the subscription by which a pull is answered. Raises the error if it is invalid."""
    if header.sys_flag & PULL_SUBSCRIPTION:
        return SubscriptionData(
            topic=header.topic, expression=header.subscription or "", expression_type=header.expression_type or TAG
        )
    group = clients.consumers.get(header.consumer_group)
    if group is None:
        raise SubscriptionUnknown(
            f"the consumer's group info not exist: send a heartbeat for group {header.consumer_group} first"
        )
    if group.message_model is MessageModel.BROADCASTING and not broadcast_allowed:
        raise NoPermission(f"the consumer group[{header.consumer_group}] can not consume by broadcast way")
    subscription = group.subscriptions.get(header.topic)
    if subscription is None:
        raise SubscriptionUnknown(
            f"the consumer's subscription not exist: group {header.consumer_group} has not subscribed to {header.topic}"
        )
    if subscription.version < header.subscription_version:
        raise SubscriptionOutdated(
            f"the consumer's subscription not latest: {subscription.version} < {header.subscription_version}"
        )
    return subscription


def expressions_of(
    header: PullMessage, subscription: SubscriptionData, clients: Clients, config: BrokerConfig
) -> list[SubscriptionData]:
    """Those that say which messages a pull gets: its own and, in a retry topic, those of the topics they come from."""
    group = clients.consumers.get(header.consumer_group)
    if group is None or not is_retry_topic(header.topic) or not config.sql_filters_retries:
        return [subscription]
    return [subscription, *group.subscriptions.values()]
