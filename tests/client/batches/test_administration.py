"""Listing and resetting scopes on all brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.client import AsyncAdmin, AsyncProducer
from kappamq.errors import InvalidParameter
from kappamq.message import Message
from tests.broker.running import run
from tests.client.batches.test_batch_transaction import bodies, topic_on_all
from tests.client.real import real_cluster


def test_a_scope_is_listed_and_given_to_another_owner(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            real_cluster(tmp_path, 2) as cluster,
            AsyncProducer(cluster.nameserver) as producer,
            AsyncAdmin(cluster.nameserver) as admin,
        ):
            await topic_on_all(cluster, "t")
            assert await admin.scopes() == {}
            with pytest.raises(InvalidParameter, match="no broker knows the scope s"):
                await admin.reset_scope("s")
            async with producer.batch_transaction("s", 4, owner="query 1") as batch:
                await batch.send(Message("t", b"a"))
            found = (await admin.scopes())["s"]
            assert set(found) == {"broker-0", "broker-1"}
            main = found[found["broker-0"].coordinator]
            assert (main.owner, main.last, main.publishing) == ("query 1", 4, 0)
            assert await admin.reset_scope("s") == ["broker-0", "broker-1"]
            async with producer.batch_transaction("s", 0, owner="query 2") as batch:
                await batch.send(Message("t", b"b"))
            assert sorted(await bodies(cluster, "t")) == [b"a", b"b"]

    run(test())
