"""Scopes of this process: opened once, checked at the start, opened again when they were reset."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from kappamq.broker.batches.batch_requests import BATCH_CODES
from kappamq.errors import IllegalOperation, NotConnected, NotSupported
from kappamq.spark.sink import scopes
from kappamq.spark.sink.options import ExactlyOnce, WriteOptions
from kappamq.testing import BrokerKit
from tests.client.announcing import announced
from tests.interop.process import free_port


def options(broker: BrokerKit, scope: str = "copy") -> WriteOptions:
    return WriteOptions(nameservers=broker.nameserver, topic="tea", exactly_once=ExactlyOnce(scope))


def test_a_scope_is_opened_once(kappamq_broker: BrokerKit) -> None:
    mine = options(kappamq_broker)
    scopes.check_start(mine, None)
    assert scopes.opened(mine, "me") is scopes.opened(mine, "me")
    with pytest.raises(IllegalOperation, match="belongs to me, not to you"):
        scopes.opened(mine, "you")


def test_a_scope_that_was_reset_is_opened_again(kappamq_broker: BrokerKit) -> None:
    mine = options(kappamq_broker)
    scope = scopes.opened(mine, "me")
    scope.decide(scope.begin(5), [], wait_s=0)
    assert scopes.begin(mine, "me", 5, "a").transaction is None
    with kappamq_broker.admin() as admin:
        admin.reset_scope("copy")
    assert scopes.begin(mine, "me", 5, "a").transaction is not None
    assert scopes.opened(mine, "me") is not scope


def test_a_master_that_is_away_is_named_at_the_start(kappamq_broker: BrokerKit) -> None:
    gone = f"127.0.0.1:{free_port()}"

    async def test() -> None:
        async with announced(kappamq_broker.nameserver, "gone", gone):
            for owner in (None, "me"):
                with pytest.raises(NotConnected, match=f"broker gone at {gone} cannot be reached, and might know more"):
                    await asyncio.to_thread(scopes.check_start, options(kappamq_broker), owner)

    asyncio.run(test())


def test_a_master_that_does_not_answer_is_named_soon(kappamq_broker: BrokerKit) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = f"127.0.0.1:{server.getsockname()[1]}"

        async def test() -> float:
            async with announced(kappamq_broker.nameserver, "silent", silent):
                began = time.monotonic()
                with pytest.raises(NotConnected, match=f"broker silent at {silent} cannot be reached"):
                    await asyncio.to_thread(scopes.check_start, options(kappamq_broker), "me")
                return time.monotonic() - began

        assert asyncio.run(test()) < 5


def test_another_makers_broker_is_refused_at_the_start(kappamq_broker: BrokerKit) -> None:
    def as_rocketmq_answers(_request: object) -> None:
        raise NotSupported("request type 710010 not supported")

    kappamq_broker.call(lambda broker: broker.bursts.replace_handlers(dict.fromkeys(BATCH_CODES, as_rocketmq_answers)))
    for owner in (None, "me"):
        with pytest.raises(NotSupported, match="does not know batch transactions, only KappaMQ brokers do"):
            scopes.check_start(options(kappamq_broker), owner)
