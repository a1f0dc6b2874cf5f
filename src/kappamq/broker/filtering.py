"""What a subscription asks for: tags, or an SQL condition, compiled once and kept as long as somebody uses it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from kappamq.broker.sieve import Properties, Sieve
from kappamq.config.broker import BrokerConfig
from kappamq.errors import BrokerError, SubscriptionInvalid
from kappamq.protocol.bodies_clients import SubscriptionData
from kappamq.protocol.properties import RETRY_TOPIC

if TYPE_CHECKING:
    from kappamq.filters.sql import Sql

TAG: Final = "TAG"
SQL92: Final = "SQL92"
COMPILED_MAX: Final = 4096
_AT_ONCE_CHARACTERS: Final = 512
"""An expression this short is compiled between two requests; a longer one by a worker, and the request waits for it."""


class Filtering:
    def __init__(self, config: BrokerConfig, worker: Callable[..., Awaitable[Any]]) -> None:
        self._config = config
        self._worker = worker
        self._compiled: OrderedDict[str, Sql | SubscriptionInvalid] = OrderedDict()

    def is_sql(self, expression_type: str | None) -> bool:
        """Whether a subscription of this type goes by SQL and not by tags. Raises BrokerError for what is not served."""
        if expression_type in (None, "", TAG):
            return False
        if expression_type == SQL92 and self._config.sql_filters:
            return True
        why = "enablePropertyFilter is off" if expression_type == SQL92 else f"it knows {TAG} and {SQL92}"
        raise BrokerError(f"The broker does not support consumer to filter message by {expression_type}: {why}")

    def needs_worker(self, expression: str) -> bool:
        return len(expression) > _AT_ONCE_CHARACTERS and expression not in self._compiled

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
        conditions = {
            topic: self.sql(each.expression)
            for topic, each in subscriptions.items()
            if each.expression_type == SQL92 and self._config.sql_filters
        }
        if not conditions:
            return None

        def wanted(properties: Properties) -> bool:
            sql = conditions.get(properties.get(RETRY_TOPIC) or "")
            return sql is None or sql.matches(properties.get)

        return Sieve(wanted, max(sql.size for sql in conditions.values()))

    def _keep(self, expression: str, compiled: Sql | SubscriptionInvalid) -> None:
        self._compiled[expression] = compiled
        while len(self._compiled) > COMPILED_MAX:
            self._compiled.popitem(last=False)


def _compile(expression: str) -> Sql | SubscriptionInvalid:
    from kappamq.filters.sql import Sql  # most brokers never need it  # noqa: PLC0415

    try:
        return Sql(expression)
    except SubscriptionInvalid as error:
        return error
