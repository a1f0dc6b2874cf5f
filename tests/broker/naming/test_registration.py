"""Telling the name servers: real name servers that come, go and come back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.events import MasterFound
from kappamq.broker.naming import registration
from kappamq.broker.naming.address import Address
from kappamq.clock import SystemClock
from kappamq.config.nameserver import NameServerConfig
from kappamq.errors import ConfigError, NotSupported
from kappamq.events import Events
from kappamq.nameserver.nameserver import NameServer
from kappamq.net.serving.server import bind
from kappamq.protocol.bodies.topics import RegisterBrokerBody, TopicConfig, TopicRouteData
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from tests.broker.operating import make_topic
from tests.broker.running import run, running, speaking
from tests.waiting import eventually_async as eventually


@asynccontextmanager
async def name_server(port: int = 0, host: str = "127.0.0.1", **config: Any) -> AsyncIterator[NameServer]:
    server = NameServer(NameServerConfig(listen_host=host, port=port, **config), SystemClock())
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def free_port() -> int:
    with bind("127.0.0.1", 0, 1) as listener:
        return int(listener.getsockname()[1])


def route(server: NameServer, topic: str) -> TopicRouteData | None:
    return server.service.routes.route(topic)


def queues(server: NameServer, topic: str) -> int:
    found = route(server, topic)
    return found.queues[0].write_queues if found is not None else 0


def places(server: NameServer, name: str = "twin") -> dict[int, str]:
    return server.service.routes.members("DefaultCluster", name).addresses


@dataclass
class Role:
    """One that a test can change."""

    broker_id: int
    version: int

    @property
    def is_master(self) -> bool:
        return self.broker_id == 0


class Member:
    """One of several nodes of a group, as name servers see it: it registers the topics of a running broker as its own."""

    def __init__(self, broker: Broker, port: int, broker_id: int, *nameservers: NameServer, version: int = 0) -> None:
        self.role = Role(broker_id, version)
        self.found: list[MasterFound] = []
        self.address = f"127.0.0.1:{port}"
        events = Events()
        events.on(MasterFound, self.found.append)
        config = replace(broker.config, name="twin", nameservers=tuple(server.address for server in nameservers))
        self.registration = registration.Registration(
            config, broker.topics, Address(None, port), port + 1, broker.workers.read, None, self.role, events
        )  # fmt: skip

    def becomes(self, broker_id: int, version: int) -> None:
        self.role.broker_id, self.role.version = broker_id, version
        self.registration.role_changed()

    async def __aenter__(self) -> Self:
        await self.registration.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.registration.stop()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that is down is tried again sooner than in real life."""
    monkeypatch.setattr(registration, "_RETRY_S", 0.05)


def test_everything_is_known_when_the_broker_has_started(tmp_path: Path) -> None:
    async def test() -> None:
        async with name_server() as server:
            async with running(tmp_path, nameservers=(server.address,)) as broker, speaking(broker) as client:
                found = route(server, "TBW102")
                assert found is not None
                assert [data.addresses for data in found.brokers] == [{0: f"127.0.0.1:{broker.port}"}]
                assert broker.address == f"127.0.0.1:{broker.port}"
                await make_topic(client, "early", 3)
                await eventually(lambda: queues(server, "early") == 3)
            async with running(tmp_path, nameservers=(server.address,)):
                assert queues(server, "early") == 3, "after a restart, too"

    run(test())


def test_who_made_a_topic_by_sending_finds_its_route_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            name_server() as one,
            name_server() as two,
            running(tmp_path, nameservers=(one.address, two.address)) as broker,
            speaking(broker) as client,
        ):
            for number in range(10):
                assert (await client.send(f"fresh{number}", b"x")).code == 0
                assert [queues(server, f"fresh{number}") for server in (one, two)] == [4, 4], "before it is answered"
            await make_topic(client, "fresh0", 7)
            await eventually(lambda: queues(one, "fresh0") == queues(two, "fresh0") == 7)

    run(test())


def test_a_broker_hears_that_another_one_has_its_name(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with (
            name_server() as server,
            running(tmp_path / "a", name="twin", nameservers=(server.address,)) as one,
            running(tmp_path / "b", name="twin", nameservers=(server.address,)) as two,
        ):
            said = [record.getMessage() for record in caplog.records if record.name == registration.__name__]
            (line,) = [line for line in said if "twin has a master already" in line]
            for word in (f"name server {server.address} failed", one.address, two.address, "--name"):
                assert word in line
            assert places(server) == {0: one.address}
            await one.stop()
            await eventually(lambda: places(server) == {0: two.address}, text="the second takes the free place")

    with caplog.at_level(logging.WARNING, "kappamq.broker.naming.registration"):
        run(test())


def test_one_name_server_is_down_and_comes_back(tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        port = free_port()
        async with (
            name_server() as up,
            running(tmp_path, nameservers=(f"127.0.0.1:{port}", up.address)) as broker,
            speaking(broker) as client,
        ):
            assert (await client.send("first", b"x")).code == 0
            assert queues(up, "first") == 4, "the other one is not waited for"
            async with name_server(port) as back:
                await eventually(lambda: queues(back, "first") == 4)
                assert (await client.send("second", b"x")).code == 0
                assert [queues(server, "second") for server in (up, back)] == [4, 4]
            assert (await client.send("third", b"x")).code == 0
            assert queues(up, "third") == 4
            async with name_server(port) as again:  # one that knows nothing any more
                await eventually(lambda: queues(again, "third") == 4)
                assert queues(again, "first") == 4, "a newcomer is told everything, not only what is new"

    with caplog.at_level(logging.WARNING, "kappamq.broker.naming.registration"):
        run(test())
    tries = [record.message for record in caplog.records if "retrying" in record.message]
    assert 1 <= len(tries) <= 3, "told when it breaks, not at every try"


def test_all_name_servers_are_down(tmp_path: Path, quick: None) -> None:
    async def test() -> None:
        port = free_port()
        async with running(tmp_path, nameservers=(f"127.0.0.1:{port}",)) as broker, speaking(broker) as client:
            assert (await client.send("t", b"x")).code == 0, "it serves whoever knows it"
            assert broker.address == f"127.0.0.1:{broker.port}"
            async with name_server(port) as server:
                await eventually(lambda: queues(server, "t") == 4)

    run(test())


def test_a_stop_signs_off_everywhere(tmp_path: Path) -> None:
    async def test() -> None:
        async with name_server() as one, name_server() as two:
            unregistered: list[str] = []
            for server in (one, two):
                routes = server.service.routes
                original = routes.unregister

                def unregister(cluster: str, address: str, owner: Any, original: Any = original) -> bool:
                    unregistered.append(address)
                    return bool(original(cluster, address, owner))

                routes.unregister = unregister  # type: ignore[method-assign]
            async with running(tmp_path, nameservers=(one.address, two.address)) as broker:
                assert unregistered == []
                ours = broker.address
            assert unregistered == [ours, ours], "said, and not only noticed when the connection broke"
            assert [server.service.routes.topics() for server in (one, two)] == [[], []]

    run(test())


def test_a_name_server_that_hangs_does_not_hold_up_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "_UNREGISTER_S", 0.1)

    async def test() -> None:
        async with name_server() as server:
            broker: Broker
            async with running(tmp_path, nameservers=(server.address,)) as broker:
                server.service.handle = lambda connection, frame: None  # type: ignore[method-assign]
                await asyncio.wait_for(broker.stop(), 10)

    run(test())


def test_other_name_servers_while_it_runs(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            name_server() as left,
            name_server() as kept,
            name_server() as new,
            running(tmp_path, nameservers=(left.address, kept.address)) as broker,
        ):
            kept_before = broker.registration._servers[1].channel
            broker.registration.set_nameservers([kept.address, new.address, new.address])
            await eventually(lambda: queues(new, "TBW102") > 0)
            await eventually(lambda: left.service.routes.topics() == [])
            assert queues(kept, "TBW102") > 0
            assert [server.address for server in broker.registration._servers] == [kept.address, new.address]
            assert broker.registration._servers[0].channel is kept_before, "a connection that is still wanted stays"

    run(test())


def test_what_the_broker_does_not_permit_no_topic_does(tmp_path: Path) -> None:
    async def test() -> None:
        async with name_server() as server, running(tmp_path, nameservers=(server.address,), permission=4) as broker:
            found = route(server, "TBW102")
            assert found is not None
            assert found.queues[0].permission & 2 == 0
            assert broker.topics.table["TBW102"].permission & 2 == 2, "its own settings are not changed"

    run(test())


def test_topics_that_must_keep_their_order_are_learnt_from_the_name_server(tmp_path: Path, quick: None) -> None:
    async def test() -> None:
        async with name_server() as server:
            await server.service.kv.put("ORDER_TOPIC_CONFIG", "ordered", "b:4")
            async with (
                running(tmp_path, nameservers=(server.address,), register_period_ms=100) as broker,
                speaking(broker) as client,
            ):
                await make_topic(client, "ordered")
                await make_topic(client, "plain")
                await eventually(lambda: broker.topics.table["ordered"].order)
                assert not broker.topics.table["plain"].order

    run(test())


def test_an_advertised_address_is_what_clients_hear(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            name_server() as server,
            running(tmp_path, nameservers=(server.address,), advertise="10.1.2.3") as broker,
            speaking(broker) as client,
        ):
            found = route(server, "TBW102")
            assert found is not None
            assert [data.addresses for data in found.brokers] == [{0: f"10.1.2.3:{broker.port}"}]
            assert (await client.send("t", b"x")).ext["msgId"].startswith("0A010203")

    run(test())


def test_a_name_server_on_ipv6(tmp_path: Path) -> None:
    async def test() -> None:
        try:
            bind("::1", 0, 1).close()
        except ConfigError:
            pytest.skip("no IPv6 loopback here")
        async with (
            name_server(host="::1") as server,
            running(tmp_path, nameservers=(server.address,), listen_host="::1") as broker,
        ):
            found = route(server, "TBW102")
            assert found is not None
            assert [data.addresses for data in found.brokers] == [{0: f"[::1]:{broker.port}"}]
        assert server.service.routes.topics() == []

    run(test())


# -- name servers that hang ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def hanging() -> AsyncIterator[str]:
    """Somebody who takes connections and never says a word."""
    ends: list[asyncio.StreamWriter] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(writer)
        await reader.read()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in ends:
            writer.close()


def test_a_name_server_that_never_answers_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "_START_S", 600.0)  # whoever waits for the silent one is not done in time
    monkeypatch.setattr(registration, "_TOLD_S", 600.0)
    monkeypatch.setattr(registration, "_UNREGISTER_S", 0.1)

    async def test() -> None:
        async with (
            name_server() as server,
            hanging() as silent,
            running(tmp_path, nameservers=(silent, server.address)) as broker,
            speaking(broker) as client,
        ):
            assert queues(server, "TBW102") > 0
            for number in range(3):
                assert (await client.send(f"fresh{number}", b"x")).code == 0
                await make_topic(client, f"made{number}")
                assert queues(server, f"fresh{number}") == queues(server, f"made{number}") == 4

    run(asyncio.wait_for(test(), 60))


def test_a_start_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "_START_S", 0.1)

    async def test() -> None:
        async with hanging() as silent, running(tmp_path, nameservers=(silent,)) as broker, speaking(broker) as client:
            assert (await client.send("t", b"x")).code == 0

    run(asyncio.wait_for(test(), 15))


def test_one_that_has_stopped_answering_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "_UNREGISTER_S", 0.1)
    monkeypatch.setattr(registration, "_TOLD_S", 2.0)
    waited: list[float] = []

    async def test() -> None:
        loop = asyncio.get_running_loop()
        async with name_server() as server:
            nameservers = (server.address,)
            async with running(tmp_path, nameservers=nameservers) as broker, speaking(broker) as client:
                server.service.handle = lambda connection, frame: None  # type: ignore[method-assign]
                for number in range(4):
                    before = loop.time()
                    assert (await client.send(f"t{number}", b"x")).code == 0
                    waited.append(loop.time() - before)

    run(asyncio.wait_for(test(), 30))
    assert waited[0] > 1.5, "its silence might be a short one"
    assert sum(waited[1:]) < 4


def test_only_this_change_is_waited_for(tmp_path: Path) -> None:
    """One after the other, not all that came meanwhile."""

    async def test() -> None:
        async with name_server() as server, running(tmp_path, nameservers=(server.address,)) as broker:
            registering = broker.registration
            registering.topic_changed(broker.topics.table["TBW102"])
            waits = asyncio.create_task(registering.announced())
            await asyncio.sleep(0)
            while not waits.done():
                registering.topic_changed(broker.topics.table["TBW102"])  # there is always something new
                await asyncio.sleep(0)
            assert not registering._servers[0].late

    run(asyncio.wait_for(test(), 15))


# -- what is told ----------------------------------------------------------------------------------------------------------


def test_what_changes_while_the_table_is_on_its_way_is_told_as_well(tmp_path: Path) -> None:
    """A name server passes over topics it has if the version is one it has: table and version must belong together."""

    async def test() -> None:
        async with name_server() as server, running(tmp_path, nameservers=(server.address,)) as broker:
            worker, registering = broker.registration._worker, broker.registration

            async def slow(work: Any, *arguments: Any) -> Any:
                result = await worker(work, *arguments)
                broker.topics.update(TopicConfig("t", broker.topics.table["t"].read_queues + 1, 9))
                return result

            broker.topics.update(TopicConfig("t", 1, 8))
            await registering.announced()
            registering._worker = slow
            for expected in range(2, 6):
                broker.topics.update(TopicConfig("other", expected, 1))
                registering.all_changed()
                await registering.announced()

                def read_queues() -> int:
                    found = route(server, "t")
                    return found.queues[0].read_queues if found is not None else 0

                await eventually(lambda: read_queues() == broker.topics.table["t"].read_queues)
                assert read_queues() == expected

    run(asyncio.wait_for(test(), 30))


@pytest.mark.parametrize("count", [2, 5, 100])
def test_several_changes_at_once_are_not_taken_for_all_there_is(tmp_path: Path, count: int) -> None:
    async def test() -> None:
        async with (
            name_server(delete_topics_on_registration=True) as server,
            running(tmp_path, nameservers=(server.address,)) as broker,
        ):
            for queue_count in (3, 5):
                for number in range(count):
                    broker.topics.update(TopicConfig(f"t{number}", queue_count, queue_count))
                await broker.registration.announced()
                assert {queues(server, f"t{number}") for number in range(count)} == {queue_count}
                assert queues(server, "TBW102") > 0

    run(asyncio.wait_for(test(), 30))


def test_the_whole_table_is_encoded_once_for_all(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            name_server() as one,
            name_server() as two,
            running(tmp_path, nameservers=(one.address, two.address), register_period_ms=100) as broker,
        ):
            worker = broker.registration._worker
            encodings: list[Any] = []

            async def counting(work: Any, *arguments: Any) -> Any:
                encodings.append(work)
                return await worker(work, *arguments)

            heard: list[int] = []
            for server in (one, two):

                def handle(connection: Any, frame: Any, original: Any = server.service.handle) -> Any:
                    heard.append(frame.code)
                    return original(connection, frame)

                server.service.handle = handle  # type: ignore[method-assign]
            broker.registration._worker = counting
            broker.topics.update(TopicConfig("t", 4, 4))
            await eventually(lambda: len(heard) >= 6)
            assert len(encodings) == 1

    run(asyncio.wait_for(test(), 30))


def test_ids_follow_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has got another address, or a name server told us late: new messages name the new one."""
    ip = ["10.0.0.1"]
    monkeypatch.setattr("kappamq.broker.naming.address.outward_ip", lambda: ip[0])

    async def test() -> None:
        async with (
            name_server() as server,
            running(tmp_path, nameservers=(server.address,), listen_host="0.0.0.0") as broker,
            speaking(broker) as client,
        ):
            assert (await client.send("t", b"x")).ext["msgId"].startswith("0A000001")
            found = route(server, "t")
            assert found is not None
            assert found.brokers[0].addresses == {0: f"127.0.0.1:{broker.port}"}, "the name server makes the best of it"
            ip[0] = "10.0.0.2"
            broker.registration.all_changed()
            await broker.registration.announced()
            assert (await client.send("t", b"x")).ext["msgId"].startswith("0A000002")
            assert [record.offset_id[:8] for record in await client.read("t")] == ["0A000001", "0A000002"]

    run(test())


def test_a_role_is_told_at_once_and_before_all_topics(tmp_path: Path) -> None:
    async def test() -> None:
        async with name_server() as server, running(tmp_path) as broker, speaking(broker) as client:
            await make_topic(client, "orders", 3)
            async with Member(broker, 7001, 0, server) as one, Member(broker, 7011, 1, server) as two:
                assert places(server) == {0: one.address, 1: two.address}
                heard: list[int] = []
                handle = server.service.handle

                def note(connection: Any, frame: Frame) -> Any:
                    if frame.code == RequestCode.REGISTER_BROKER and frame.ext["brokerAddr"] == two.address:
                        heard.append(
                            len(RegisterBrokerBody.decode_any(frame.body, compressed=False, version=479).topics.topics)
                        )
                    return handle(connection, frame)

                server.service.handle = note  # type: ignore[method-assign]
                two.becomes(0, 5)
                await eventually(lambda: places(server) == {0: two.address})
                await eventually(lambda: len(heard) == 2)
                assert heard == [0, len(broker.topics.table)], "the role alone, then everything"
                assert queues(server, "orders") == 3
                one.becomes(1, 5)
                await eventually(lambda: places(server) == {0: two.address, 1: one.address})
                await eventually(lambda: one.found == [MasterFound(two.address, "127.0.0.1:7012", 5)])

    run(test())


def test_a_replaced_master_is_refused_until_it_is_a_slave(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with (
            name_server() as server,
            running(tmp_path) as broker,
            Member(broker, 7001, 0, server) as one,
            Member(broker, 7011, 1, server) as two,
        ):
            two.becomes(0, 1)
            await eventually(lambda: places(server) == {0: two.address})
            # Nobody has told the old one, which was cut off: its next beat does.
            await eventually(
                lambda: f"{one.address} is not the master of twin any more: {two.address} is" in caplog.text
            )
            assert places(server) == {0: two.address}
            one.becomes(1, 1)
            await eventually(lambda: places(server) == {0: two.address, 1: one.address})

    run(test())


def test_a_slave_hears_of_a_new_master_with_a_beat(tmp_path: Path) -> None:
    async def test() -> None:
        async with name_server() as server, running(tmp_path) as broker, Member(broker, 7011, 1, server) as slave:
            assert slave.found == [], "there is none"
            async with Member(broker, 7001, 0, server) as master:
                await eventually(lambda: slave.found)
                assert slave.found == [MasterFound(master.address, "127.0.0.1:7002", 0)]
                await eventually(lambda: slave.registration._servers[0].registered)
            assert len(slave.found) == 1, "told once"

    run(test())


def test_a_name_server_that_lags_behind_does_not_lead_a_slave_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            name_server() as one,
            name_server() as two,
            running(tmp_path) as broker,
            Member(broker, 7001, 0, one, version=4),
            Member(broker, 7011, 0, two, version=5) as new,
            Member(broker, 7021, 2, one, two) as slave,
        ):
            await eventually(lambda: slave.found and slave.found[-1].address == new.address)
            beats: list[int] = []
            hear = slave.registration._hear_of_master
            slave.registration._hear_of_master = lambda answer: (beats.append(1), hear(answer))[1]  # type: ignore[method-assign, func-returns-value]
            await eventually(lambda: len(beats) >= 4)
            assert slave.found[-1].address == new.address
            assert [found.version for found in slave.found] in ([5], [4, 5])

    run(test())


def test_who_answers_no_beats_is_connected_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "BEAT_S", 0.05)

    async def test() -> None:
        async with name_server() as server, running(tmp_path) as broker, Member(broker, 7001, 0, server) as member:
            link = member.registration._servers[0]
            first, handle = link.channel, server.service.handle
            hung = True

            def deaf(connection: Any, frame: Frame) -> Any:
                return None if hung and frame.code == RequestCode.BROKER_HEARTBEAT else handle(connection, frame)

            server.service.handle = deaf  # type: ignore[method-assign]
            await eventually(lambda: link.channel is not first)
            hung = False
            await eventually(lambda: link.registered and link.missed == 0)
            assert places(server) == {0: member.address}

    run(test())


def test_an_older_name_server_gets_no_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "BEAT_S", 0.02)

    async def test() -> None:
        async with name_server() as server, running(tmp_path) as broker:
            heard, handle = [], server.service.handle

            def old(connection: Any, frame: Frame) -> Any:
                if frame.code == RequestCode.BROKER_HEARTBEAT:
                    heard.append(frame)
                    raise NotSupported(" request type 904 not supported")
                return handle(connection, frame)

            server.service.handle = old  # type: ignore[method-assign]
            async with Member(broker, 7001, 0, server) as member:
                await eventually(lambda: not member.registration._servers[0].takes_beats)
                member.registration.all_changed()
                await member.registration.announced()
                assert len(heard) == 1
                assert places(server) == {0: member.address}

    run(test())


def test_a_name_server_that_was_started_again_knows_us_soon(tmp_path: Path, quick: None) -> None:
    """Without waiting for the next period: the connection is lost, and that is noticed."""

    async def test() -> None:
        port = free_port()
        async with running(tmp_path) as broker:
            async with name_server(port) as server:
                member = Member(broker, 7001, 0, server)
                await member.registration.start()
            async with name_server(port) as again:
                await eventually(lambda: places(again) == {0: member.address}, timeout=10)
                await member.registration.stop()

    run(test())
