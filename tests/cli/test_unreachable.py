"""Every command that talks to a cluster, against everything that can be wrong with it: it says what, and what to do."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kappamq.clock import SystemClock
from kappamq.config.nameserver import NameServerConfig
from kappamq.local import Local, LocalThread
from kappamq.nameserver.nameserver import NameServer
from kappamq.net.channel import Channel
from kappamq.protocol.bodies.topics import RegisterBrokerBody, TopicConfig, TopicTable
from kappamq.protocol.headers.nameserver import RegisterBroker
from tests.cli.conftest import SMALL, run_kappamq, small_local
from tests.net.certificates import make

COMMANDS: dict[str, list[str]] = {
    "topic list": ["topic", "list"],
    "topic create": ["topic", "create", "tea"],
    "topic update": ["topic", "update", "tea", "-q", "2"],
    "topic delete": ["topic", "delete", "tea", "--yes"],
    "topic route": ["topic", "route", "tea"],
    "topic status": ["topic", "status", "tea"],
    "send": ["send", "-t", "tea", "-b", "x", "--timeout", "5"],
    "tail": ["tail", "tea", "--no-follow"],
    "query key": ["query", "key", "tea", "k"],
    "query time": ["query", "time", "tea", "--from", "1h"],
    "query id": ["query", "id", "7F0000010000000000000000000000000000", "-t", "tea"],  # as a producer gives them
    "bench": ["bench", "--messages", "1", "--connections", "1"],
}


@dataclass
class Place:
    """What commands are pointed at, and what they must say."""

    nameserver: str
    exit_code: int
    says: tuple[str, ...]  # all of these
    doctor: tuple[str, ...]  # what `doctor` says
    options: tuple[str, ...] = ()
    fine: tuple[str, ...] = ()  # commands that have no trouble with it


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def in_thread(serving: AbstractAsyncContextManager[int]) -> Iterator[int]:
    """Run a server in a loop of its own until the block ends; yields its port."""
    started: Future[tuple[int, Callable[[], object]]] = Future()

    async def main() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        async with serving as port:
            started.set_result((port, lambda: loop.call_soon_threadsafe(stop.set)))
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    port, stop = started.result(20)
    try:
        yield port
    finally:
        stop()
        thread.join(20)


@asynccontextmanager
async def names(broker: str | None = None) -> AsyncIterator[int]:
    """A name server; with `broker`, one that has heard of a broker with the topic `tea` at this address."""
    server = NameServer(NameServerConfig(listen_host="127.0.0.1", port=0), SystemClock())
    await server.start()
    channel = await Channel.connect(server.address)
    if broker is not None:
        header = RegisterBroker(
            broker_name="broker-a", broker_address=broker, cluster="DefaultCluster", ha_address=broker, broker_id=0,
            timeout_ms=None, acting_master=False, compressed=False, body_crc=0,
        )  # fmt: skip
        topics = {name: TopicConfig(name, 1, 1, 6) for name in ("tea", "TBW102")}
        await channel.request(header, RegisterBrokerBody(topics=TopicTable(topics=topics)).encode())
    yield server.port
    channel.close()
    await server.stop()


@asynccontextmanager
async def web_server() -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Place]]:
    certificates = make(tmp_path_factory.mktemp("certificates"))
    tls = {
        "net.tls_mode": "enforcing",
        "net.tls_cert": str(certificates.server.cert),
        "net.tls_key": str(certificates.server.key),
    }
    with ExitStack() as stack:
        plain = stack.enter_context(LocalThread(small_local(tmp_path_factory.mktemp("plain"))))
        secret = stack.enter_context(LocalThread(small_secret(tmp_path_factory.mktemp("secret"), tls)))
        alone = stack.enter_context(in_thread(names()))
        dead = f"127.0.0.1:{free_port()}"
        orphan = stack.enter_context(in_thread(names(dead)))
        web = stack.enter_context(in_thread(web_server()))
        for local, options in ((plain, ()), (secret, ("--tls-ca", str(certificates.authority)))):
            assert run_kappamq("topic", "create", "tea", "-n", local.nameserver, *options).exit_code == 0
        found = {
            "name server down": Place(
                f"127.0.0.1:{free_port()}", 4, ("no name server answers", "Is one running?"), ("Connection refused",)
            ),
            "broker gone": Place(
                f"127.0.0.1:{alone}",
                4,
                (f"no broker is registered with 127.0.0.1:{alone}",),
                (f"no broker is registered with 127.0.0.1:{alone}",),
            ),
            "broker does not answer": Place(
                f"127.0.0.1:{orphan}", 4, (f"broker {dead} does not answer", "refused"),
                (f"{dead} cannot be reached from here",), fine=("topic list", "topic route"),
            ),
            "a broker's port": Place(plain.broker, 3, ("is a broker, not a name server",), ("really a name server?",)),
            "a web server's port": Place(
                f"127.0.0.1:{web}", 4, ("no name server could be used", "web server"), ("web server",)
            ),
            "TLS only": Place(secret.nameserver, 4, ("requires TLS", "--tls"), ("requires TLS", "--tls")),
            "TLS not offered": Place(
                plain.nameserver, 4, ("does not offer TLS", "without --tls"), ("does not offer TLS", "without --tls"),
                options=("--tls-no-verify",),
            ),
            "not trusted": Place(
                secret.nameserver, 4, ("TLS handshake with", "--tls-ca"), ("TLS handshake with", "--tls-ca"), options=("--tls",)
            ),
        }  # fmt: skip
        assert tuple(found) == PLACES
        yield found


def small_secret(data: Path, tls: dict[str, str]) -> Local:
    return Local.at(data, nameserver_port=0, broker_port=0, host="127.0.0.1", properties={**SMALL, **tls})


PLACES = (
    *("name server down", "broker gone", "broker does not answer", "a broker's port", "a web server's port"),
    *("TLS only", "TLS not offered", "not trusted"),
)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_wrong_is_told(places: dict[str, Place], place: str, command: str) -> None:
    at = places[place]
    ran = run_kappamq(*COMMANDS[command], "-n", at.nameserver, *at.options)
    if command in at.fine:
        assert ran.exit_code == 0, ran
        return
    assert ran.exit_code == at.exit_code, ran
    for text in at.says:
        assert text in ran.err
    if "Is one running?" not in at.says:
        assert "Is one running?" not in ran.err, "something answers, so that is not the question"
    assert "topic create" not in ran.err, "nobody can say whether the topic exists"


@pytest.mark.parametrize("place", PLACES)
def test_doctor_says_the_same(places: dict[str, Place], place: str, tmp_path: Path) -> None:
    at = places[place]
    ran = run_kappamq("doctor", "-n", at.nameserver, "--data", str(tmp_path), *at.options)
    assert ran.exit_code == 1, ran
    shown = " ".join(ran.out.split())
    for text in at.doctor:
        assert text in shown


def test_a_topic_that_does_not_exist_is_still_just_that(places: dict[str, Place]) -> None:
    nameserver = places["TLS not offered"].nameserver
    for command in (["topic", "status"], ["topic", "route"], ["tail"]):
        ran = run_kappamq(*command, "coffee", "-n", nameserver)
        assert (ran.exit_code, "kappamq topic create coffee" in ran.err) == (5, True), ran
