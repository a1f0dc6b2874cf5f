"""SQL filters are the brokers' to judge: they are asked before a consumer begins, and say where an expression is wrong."""

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
    """Raises SubscriptionInvalid if a broker cannot read an expression, BrokerError if it does not filter by SQL.

    Who cannot be asked now says so when it is pulled from."""
    for interest in interests:
        if interest.expression_type == TAG:
            continue
        try:
            route = await core.routes.find(interest.topic)
        except NoRoute:
            continue  # the topic may come
        body = CheckClientBody(client_id=core.client_id, group=group, subscription=interest.to_body()).encode()
        for broker in sorted(broker for broker, addresses in route.addresses.items() if addresses):
            try:
                await core.ask(route.reader(broker), CheckClientConfig(), body)
            except NotSupported:
                pass  # an old one
            except ClientError as error:
                log.warning("group %s could not have %r checked by %s: %s", group, interest.expression, broker, error)
