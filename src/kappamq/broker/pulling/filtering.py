"""Compiled filters of subscriptions, tags or an SQL condition: parsed once and cached as long as they are used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from kappamq.broker.pulling.sql_pull import Get, Sieve
from kappamq.broker.pulling.text_cache import TextCache
from kappamq.broker.requests.request import Handler, Request
from kappamq.config.broker import BrokerConfig
from kappamq.errors import BrokerError, SubscriptionInvalid
from kappamq.filters import LENGTH_MAX
from kappamq.net.serving.connection import Connection
from kappamq.protocol.bodies.clients import CheckClientBody, SubscriptionData
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.client import CheckClientConfig
from kappamq.protocol.names import is_retry_topic
from kappamq.protocol.records.properties import RETRY_TOPIC
from kappamq.protocol.records.tags import TAGS_CHARACTERS_MAX, Subscription

if TYPE_CHECKING:
    from kappamq.filters.sql import Sql

TAG: Final = "TAG"
SQL92: Final = "SQL92"
KEPT_CHARACTERS_MAX: Final = 1 << 20
"""Of all expressions that are kept compiled, which takes about 60 bytes for each character."""
_AT_ONCE_CHARACTERS: Final = {SQL92: 512, TAG: 4096}
"""An expression this short is read between two requests; a longer one beside the loop, and the request waits for it."""


class Filtering:
    def __init__(self, config: BrokerConfig, beside: Callable[..., Awaitable[Any]]) -> None:
        self._config = config
        self._beside = beside  # runs (connection, function, arguments, size=bytes) on a thread
        self._compiled: TextCache[Sql | SubscriptionInvalid] = TextCache(KEPT_CHARACTERS_MAX)  # errors, too
        self._tags: TextCache[Subscription] = TextCache(KEPT_CHARACTERS_MAX)
        self._under_way: dict[tuple[bool, str], asyncio.Future[None]] = {}

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.CHECK_CLIENT_CONFIG: self.check_client}

    def is_sql(self, expression_type: str | None) -> bool:
        """Return whether a subscription of this type uses SQL and not tags. Raises BrokerError for unsupported types."""
        if expression_type in (None, "", TAG):
            return False
        if expression_type == SQL92 and self._config.sql_filters:
            return True
        why = "enablePropertyFilter is off" if expression_type == SQL92 else f"it knows {TAG} and {SQL92}"
        raise BrokerError(f"The broker does not support consumer to filter message by {expression_type}: {why}")

    def is_for_kernel(self, subscription: SubscriptionData) -> bool:
        """Whether the kernel alone may serve pulls of this subscription."""
        if subscription.expression_type not in ("", TAG):
            return False
        # Redelivered messages may be judged by the conditions of other subscriptions, which may follow this one.
        return not (self._config.sql_filters_retries and is_retry_topic(subscription.topic))

    def check_client(self, request: Request[CheckClientConfig]) -> Frame | Awaitable[Frame]:
        """A consumer checks its subscription before it begins."""
        subscription = request.parse(CheckClientBody).subscription
        if subscription is None or not self.is_sql(subscription.expression_type):
            return request.reply()
        if self.takes_long(subscription):
            return self._check_later(request, subscription)
        self.sql(subscription.expression)
        return request.reply()

    async def _check_later(self, request: Request[CheckClientConfig], subscription: SubscriptionData) -> Frame:
        await self.prepare(request.connection, subscription)
        self.sql(subscription.expression)
        return request.reply()

    def takes_long(self, subscription: SubscriptionData) -> bool:
        """Whether `prepare` should be awaited before the expression is used."""
        text = subscription.expression
        if subscription.expression_type == SQL92:
            return _AT_ONCE_CHARACTERS[SQL92] < len(text) <= LENGTH_MAX and text not in self._compiled
        return _AT_ONCE_CHARACTERS[TAG] < len(text) <= TAGS_CHARACTERS_MAX and text not in self._tags

    async def prepare(self, connection: Connection, subscription: SubscriptionData) -> None:
        """Parse a long expression in a thread. An error in it is reported when it is used."""
        text, is_sql = subscription.expression, subscription.expression_type == SQL92
        while (same := self._under_way.get((is_sql, text))) is not None:
            # A consumer pulls all its queues at once, with one expression. The pull that had it read may be gone before it was.
            await asyncio.wait([same])
        if not self.takes_long(subscription):
            return  # another pull has had it read meanwhile
        done = self._under_way[is_sql, text] = asyncio.get_running_loop().create_future()
        try:
            if is_sql:
                self._compiled.put(text, await self._beside(connection, _compile, text, size=len(text)))
            else:
                self._tags.put(text, await self._beside(connection, Subscription.parse, text, size=len(text)))
        finally:
            del self._under_way[is_sql, text]
            done.set_result(None)

    def tag_codes(self, subscription: SubscriptionData) -> frozenset[int] | None:
        """The hashes of the tags a subscription asks for; None for all messages. Raises SubscriptionInvalid."""
        # Not from its codeSet: C++ clients send zeros there.
        text = subscription.expression
        if len(text) > TAGS_CHARACTERS_MAX:
            raise SubscriptionInvalid(
                f"a list of tags may have {TAGS_CHARACTERS_MAX} characters, not {len(text)}: subscribe to fewer tags"
            )
        wanted = self._tags.get(text)
        if wanted is None:
            wanted = Subscription.parse(text)
            self._tags.put(text, wanted)
        return None if wanted.everything else wanted.codes

    def sql(self, expression: str) -> Sql:
        """The compiled expression. Raises SubscriptionInvalid, which says where and why."""
        known = self._compiled.get(expression)
        if known is None:
            known = _compile(expression)
            if len(expression) <= LENGTH_MAX:
                self._compiled.put(expression, known)
        if isinstance(known, SubscriptionInvalid):
            raise SubscriptionInvalid(str(known))
        return known

    def sieve(self, expression: str) -> Sieve:
        return Sieve.of(self.sql(expression))

    def retry_sieve(self, subscriptions: dict[str, SubscriptionData]) -> Sieve | None:
        """For a group's retry topic: each message by the condition on the topic it comes from. None: no topic has one."""
        if not self._config.sql_filters_retries:
            return None
        conditions: dict[str, Sql] = {}
        for topic, each in subscriptions.items():
            if each.expression_type == SQL92 and self._config.sql_filters:
                if self.takes_long(each):
                    continue  # there are so many of them that it was forgotten again
                try:
                    conditions[topic] = self.sql(each.expression)
                except SubscriptionInvalid:
                    pass  # a pull of that topic is answered with the error
        if not conditions:
            return None

        def wanted(get: Get) -> bool:
            sql = conditions.get(get(RETRY_TOPIC) or "")
            return sql is None or sql.matches(get)

        names = {RETRY_TOPIC}.union(*(sql.names for sql in conditions.values()))
        return Sieve(wanted, names, max(sql.size for sql in conditions.values()))


def _compile(expression: str) -> Sql | SubscriptionInvalid:
    from kappamq.filters.sql import Sql  # here: most brokers never need it

    try:
        return Sql(expression)
    except SubscriptionInvalid as error:
        return error
