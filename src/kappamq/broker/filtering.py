"""What a subscription asks for: tags, or an SQL condition, compiled once and kept as long as somebody uses it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from kappamq.broker.burst import Handler
from kappamq.broker.sieve import Properties, Sieve
from kappamq.config.broker import BrokerConfig
from kappamq.errors import BrokerError, SubscriptionInvalid
from kappamq.filters import LENGTH_MAX
from kappamq.net.connection import Connection
from kappamq.protocol.bodies_clients import CheckClientBody, SubscriptionData
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame, reply
from kappamq.protocol.names import is_retry_topic
from kappamq.protocol.properties import RETRY_TOPIC

if TYPE_CHECKING:
    from kappamq.filters.sql import Sql

TAG: Final = "TAG"
SQL92: Final = "SQL92"
KEPT_CHARACTERS_MAX: Final = 1 << 20
"""Of all expressions that are kept compiled, which takes about 60 bytes for each character."""
_AT_ONCE_CHARACTERS: Final = 512
"""An expression this short is compiled between two requests; a longer one by a worker, and the request waits for it."""


class Filtering:
    def __init__(self, config: BrokerConfig, worker: Callable[..., Awaitable[Any]]) -> None:
        self._config = config
        self._worker = worker
        self._compiled: OrderedDict[str, Sql | SubscriptionInvalid] = OrderedDict()  # also what is wrong with bad ones
        self._kept_characters = 0

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.CHECK_CLIENT_CONFIG: self.check_client}

    def is_sql(self, expression_type: str | None) -> bool:
        """Whether a subscription of this type goes by SQL and not by tags. Raises BrokerError for what is not served."""
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
        # Messages that come again may be judged by the conditions of other subscriptions, which may follow this one.
        return not (self._config.sql_filters_retries and is_retry_topic(subscription.topic))

    def check_client(self, connection: Connection, frame: Frame) -> Frame | Awaitable[Frame]:
        """A consumer asks before it begins whether its subscription will do."""
        subscription = CheckClientBody.decode(frame.body).subscription
        if subscription is None or not self.is_sql(subscription.expression_type):
            return reply(frame)
        if self.needs_worker(subscription.expression):
            return self._check_later(frame, subscription.expression)
        self.sql(subscription.expression)
        return reply(frame)

    async def _check_later(self, frame: Frame, expression: str) -> Frame:
        await self.prepare(expression)
        self.sql(expression)
        return reply(frame)

    def needs_worker(self, expression: str) -> bool:
        return _AT_ONCE_CHARACTERS < len(expression) <= LENGTH_MAX and expression not in self._compiled

    async def prepare(self, expression: str) -> None:
        """Compile a long expression without keeping others waiting. What is wrong with it is told when it is used."""
        self._keep(expression, await self._worker(_compile, expression))

    def sql(self, expression: str) -> Sql:
        """The compiled expression. Raises SubscriptionInvalid, which says where and why."""
        known = self._compiled.get(expression)
        if known is None:
            known = _compile(expression)
            self._keep(expression, known)
        else:
            self._compiled.move_to_end(expression)
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
                try:
                    conditions[topic] = self.sql(each.expression)
                except SubscriptionInvalid:
                    pass  # whoever pulls that topic hears of it
        if not conditions:
            return None

        def wanted(properties: Properties) -> bool:
            sql = conditions.get(properties.get(RETRY_TOPIC) or "")
            return sql is None or sql.matches(properties.get)

        return Sieve(wanted, max(sql.size for sql in conditions.values()))

    def _keep(self, expression: str, compiled: Sql | SubscriptionInvalid) -> None:
        if expression in self._compiled or len(expression) > LENGTH_MAX:
            return
        self._compiled[expression] = compiled
        self._kept_characters += len(expression)
        while self._kept_characters > KEPT_CHARACTERS_MAX:
            oldest, _ = self._compiled.popitem(last=False)
            self._kept_characters -= len(oldest)


def _compile(expression: str) -> Sql | SubscriptionInvalid:
    from kappamq.filters.sql import Sql  # here: most brokers never need it

    try:
        return Sql(expression)
    except SubscriptionInvalid as error:
        return error
