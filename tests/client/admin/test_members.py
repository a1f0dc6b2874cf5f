"""Who is in which group and how far behind: from brokers that tell all about copies, some, or nothing."""

from __future__ import annotations

from pathlib import Path

from kappamq.broker.broker import Broker
from kappamq.broker.naming.role_now import FixedRole
from kappamq.client.admin.admin import AsyncAdmin
from kappamq.client.admin.members import Member
from kappamq.clock import SystemClock
from kappamq.config.broker import BrokerConfig
from kappamq.config.net import NetConfig
from kappamq.config.store import StoreConfig
from kappamq.protocol.bodies.body import Body
from kappamq.protocol.bodies.replicas import Epoch, EpochCache, HaClient, HaConnection, HaStatus
from kappamq.protocol.bodies.topics import KVTable
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame, reply
from tests.client.fake import FakeBroker, Handler, Peer, fake_cluster
from tests.client.loop import on_loop
from tests.client.real import SMALL, real_cluster
from tests.waiting import eventually_async

RUNTIME, HA, EPOCHS = (
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.GET_BROKER_EPOCH_CACHE,
)


def says(body: Body) -> Handler:
    def answer(peer: Peer, frame: Frame) -> Frame:
        return reply(frame, body=body.encode())

    return answer


def tells(broker: FakeBroker, end: int, status: HaStatus | None = None, term: int | None = None) -> None:
    """What the next question about this broker is answered with."""
    broker.script(RUNTIME, says(KVTable({"commitLogMaxOffset": str(end), "brokerVersionDesc": "V5"})))
    if status is not None:
        broker.script(HA, says(status))
    if term is not None:
        broker.script(EPOCHS, says(EpochCache(epochs=[Epoch(1, 0, 10), Epoch(term, 10, end)])))


def shown(members: list[Member]) -> list[tuple[object, ...]]:
    return [(one.broker_id, one.role, one.term, one.log_end, one.behind, one.in_sync) for one in members]


@on_loop
async def test_a_master_names_its_only_slave_on_a_host() -> None:
    async with fake_cluster(members=2, tea=1) as cluster, AsyncAdmin(cluster.address) as admin:
        master, slave = cluster.brokers
        connection = HaConnection("/127.0.0.1:40022", behind=30, in_sync=True)
        tells(master, 130, HaStatus(master=True, connections=[connection]), term=7)
        tells(slave, 90, term=7)
        assert shown(await admin.members()) == [(0, "master", 7, 130, None, None), (1, "slave", 7, 90, 30, True)]


@on_loop
async def test_slaves_on_one_host_are_asked_themselves() -> None:
    async with fake_cluster(members=3, tea=1) as cluster, AsyncAdmin(cluster.address) as admin:
        master, one, two = cluster.brokers
        both = [HaConnection("/127.0.0.1:1", behind=5), HaConnection("/127.0.0.1:2", behind=6)]
        tells(master, 130, HaStatus(master=True, connections=both))
        tells(one, 90, HaStatus(client=HaClient(master_flushed=120, max_offset=90)))
        tells(two, 100)
        assert shown(await admin.members()) == [
            (0, "master", None, 130, None, None),
            (1, "slave", None, 90, 30, None),
            (2, "slave", None, 100, 30, None),
        ], "of the last one it is only known where its log ends"


@on_loop
async def test_a_leader_names_its_followers_as_clients_do() -> None:
    async with fake_cluster(members=3, tea=1) as cluster, AsyncAdmin(cluster.address) as admin:
        leader, one, two = cluster.brokers
        connections = [
            HaConnection(two.address, behind=6, in_sync=False),
            HaConnection(one.address, behind=5, in_sync=True),
        ]
        tells(leader, 130, HaStatus(master=True, connections=connections), term=7)
        tells(one, 125, term=7)
        tells(two, 124, term=7)
        assert shown(await admin.members()) == [
            (0, "master", 7, 130, None, None),
            (1, "slave", 7, 125, 5, True),
            (2, "slave", 7, 124, 6, False),
        ]


@on_loop
async def test_who_does_not_answer_is_listed_and_a_group_may_have_no_master() -> None:
    async with fake_cluster(members=3, tea=1) as cluster, AsyncAdmin(cluster.address) as admin:
        master, silent, slave = cluster.brokers
        master.broker_id = None
        await silent.stop()
        tells(slave, 100)
        gone, alone = await admin.members()
        assert gone.problem is not None
        assert "does not answer" in gone.problem
        assert (gone.version, gone.log_end) == (None, None)
        assert (alone.version, alone.log_end, alone.behind, alone.problem) == ("V5", 100, None, None)


async def both(admin: AsyncAdmin) -> list[Member]:
    found = await admin.members()
    return found if len(found) == 2 else []


@on_loop
async def test_real_brokers_that_know_of_no_copies(tmp_path: Path) -> None:
    async with real_cluster(tmp_path) as cluster, AsyncAdmin(cluster.nameserver) as admin:
        config = BrokerConfig(port=0, listen_host="127.0.0.1", name="broker-0", nameservers=(cluster.nameserver,))
        second = await Broker.open(config, StoreConfig(root=tmp_path / "second", **SMALL), NetConfig(), SystemClock())
        await second.start()
        try:
            second.registration._role = FixedRole(1)
            second.registration.role_changed()
            master, slave = await eventually_async(lambda: both(admin))
        finally:
            await second.stop()
        assert (master.group, master.role, master.address) == ("broker-0", "master", cluster.broker.address)
        assert (slave.group, slave.role, slave.address) == ("broker-0", "slave", second.address)
        assert master.version is not None
        assert slave.version == master.version
        assert master.log_end is not None
        assert slave.behind is not None
        assert (slave.in_sync, slave.term, slave.problem) == (None, None, None)
