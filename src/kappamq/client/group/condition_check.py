"""Has SQL filters validated by the brokers before a consumer starts; they report where an expression is wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kappamq.client.core.core import ClientCore
from kappamq.client.pulling.pulling import TAG, Interest
from kappamq.errors import ClientError, NoRoute, NotSupported
from kappamq.protocol.bodies.clients import CheckClientBody
from kappamq.protocol.headers.client import CheckClientConfig

log = logging.getLogger(__name__)


async def check_conditions(core: ClientCore, group: str, interests: Iterable[Interest]) -> None:
    """Raise SubscriptionInvalid if a broker cannot parse an expression, BrokerError if it does not support SQL filters.

    A broker that cannot be reached now reports the error on the first pull."""
    for interest in interests:
        if interest.expression_type == TAG:
            continue
        try:
            route = await core.routes.find(interest.topic)
        except NoRoute:
            continue  # the topic may be created later
        body = CheckClientBody(client_id=core.client_id, group=group, subscription=interest.to_body()).encode()
        for broker in sorted(broker for broker, addresses in route.addresses.items() if addresses):
            try:
                await core.ask(route.reader(broker), CheckClientConfig(), body)
            except NotSupported:
                pass  # an older broker without this request
            except ClientError as error:
                log.warning(
                    "group %s: could not validate the filter %r at broker %s: %s",
                    group,
                    interest.expression,
                    broker,
                    error,
                )
