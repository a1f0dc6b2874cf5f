"""TLS and plain text on the same port; what is wrong with either is told, and costs nobody else anything."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.client import AsyncConsumer, AsyncProducer
from kappamq.clock import SystemClock
from kappamq.config.nameserver import NameServerConfig
from kappamq.config.net import NetConfig
from kappamq.errors import ConfigError, KappaError, NotConnected
from kappamq.event_loop import run as run_fast
from kappamq.local import Local
from kappamq.message import Message
from kappamq.nameserver.nameserver import NameServer
from kappamq.net.channel import Channel
from kappamq.net.tls import outgoing_context, server_context
from kappamq.protocol.frame import Frame, decode, request
from kappamq.protocol.headers.nameserver import GetClusterInfo
from tests.broker.running import Speaker, run, running, speaking
from tests.net.certificates import Certificates, make
from tests.net.openings import V1, V2
from tests.net.raw import say
from tests.waiting import eventually_async as eventually


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("certificates"))


def offering(certificates: Certificates, **changes: Any) -> dict[str, Any]:
    return {"tls_cert": certificates.server.cert, "tls_key": certificates.server.key} | changes


def trusting(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates.authority))


@asynccontextmanager
async def secretly(broker: Broker, context: ssl.SSLContext) -> AsyncIterator[Speaker]:
    channel = await Channel.connect(f"127.0.0.1:{broker.port}", tls=context)
    try:
        yield Speaker(channel)
    finally:
        channel.close()


@pytest.mark.parametrize("loop", [run, run_fast], ids=["asyncio", "uvloop"])
def test_plain_and_tls_on_the_same_port(tmp_path: Path, certificates: Certificates, loop: Any) -> None:
    async def test() -> None:
        async with (
            running(tmp_path, net=offering(certificates)) as broker,
            speaking(broker) as plain,
            secretly(broker, trusting(certificates)) as secret,
        ):
            assert (await plain.send("t", b"in the open")).code == 0
            assert (await secret.send("t", b"in secret")).code == 0
            large = bytes(200_000)
            for _ in range(5):
                assert (await secret.send("t", large)).code == 0
            for reader in (plain, secret):
                bodies = [record.body for record in await reader.read("t")]
                assert bodies == [b"in the open", b"in secret", *[large] * 5]

    loop(test())


def test_an_enforcing_port_takes_nothing_plain(tmp_path: Path, certificates: Certificates) -> None:
    async def test() -> None:
        async with (
            running(tmp_path, net=offering(certificates, tls_mode="enforcing")) as broker,
            secretly(broker, trusting(certificates)) as secret,
        ):
            request = Frame(code=105, ext={"topic": "t"}).encode()
            assert await say(broker.port, request) == b"", "closed without a word in plain text"
            async with speaking(broker) as plain:
                with pytest.raises(NotConnected):
                    await plain.send("t", b"x")
            assert (await secret.send("t", b"in secret")).code == 0

    run(test())


def test_a_server_without_a_certificate_offers_no_tls(tmp_path: Path, certificates: Certificates) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            with pytest.raises(NotConnected, match="does not offer TLS"):
                await Channel.connect(f"127.0.0.1:{broker.port}", tls=trusting(certificates), timeout=30)
            async with speaking(broker) as plain:
                assert (await plain.send("t", b"x")).code == 0

    run(test())


def test_who_is_not_trusted_is_told_so(tmp_path: Path, certificates: Certificates) -> None:
    async def test() -> None:
        async with running(tmp_path, net=offering(certificates)) as broker:
            with pytest.raises(NotConnected, match="certificate"):
                await Channel.connect(f"127.0.0.1:{broker.port}", tls=ssl.create_default_context(), timeout=30)
            async with speaking(broker) as plain:
                assert (await plain.send("t", b"x")).code == 0

    run(test())


def test_clients_have_to_show_a_certificate(tmp_path: Path, certificates: Certificates) -> None:
    async def test() -> None:
        net = offering(certificates, tls_client_auth="require", tls_trust=certificates.authority, tls_mode="enforcing")
        async with running(tmp_path, net=net) as broker:
            known = trusting(certificates)
            known.load_cert_chain(certificates.client.cert, certificates.client.key)
            async with secretly(broker, known) as client:
                assert (await client.send("t", b"x")).code == 0
            stranger = trusting(certificates)
            stranger.load_cert_chain(certificates.stranger.cert, certificates.stranger.key)
            for context in (trusting(certificates), stranger):
                with pytest.raises(KappaError):  # TLS 1.3: the client hears of it with the first answer
                    async with secretly(broker, context) as client:
                        await client.send("t", b"x")
            assert len(broker.server.connections) == 0

    run(test())


@pytest.mark.parametrize("begin", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
def test_a_handshake_that_never_ends(tmp_path: Path, certificates: Certificates, begin: bytes) -> None:
    async def test() -> None:
        net = offering(certificates, first_frame_s=0.3)
        async with running(tmp_path, net=net) as broker, speaking(broker) as bystander:
            assert (await bystander.send("t", b"before")).code == 0
            assert await say(broker.port, begin) == b""
            assert (await bystander.send("t", b"after")).code == 0
            await eventually(lambda: len(broker.server.connections) == 1)

    run(test())


def test_noise_that_looks_like_tls(tmp_path: Path, certificates: Certificates) -> None:
    async def test() -> None:
        async with running(tmp_path, net=offering(certificates)) as broker, speaking(broker) as bystander:
            for noise in (b"\x16" * 300, b"\x16\x03\x01\xff\xff" + bytes(70_000), b"\x16\x03\x03\x00\x05hello"):
                await say(broker.port, noise)
            assert (await bystander.send("t", b"after")).code == 0

    run(test())


def test_a_frame_within_tls_obeys_the_same_limits(tmp_path: Path, certificates: Certificates) -> None:
    async def test() -> None:
        net = offering(certificates, first_frame_s=0.3)
        async with running(tmp_path, net=net) as broker:
            context = trusting(certificates)
            for data in (struct.pack(">i", 1 << 30), struct.pack(">ii", 1000, 100) + b"half", b""):
                assert await say(broker.port, data, tls=context) == b""
            await eventually(lambda: not broker.server.connections)

    run(test())


@pytest.mark.parametrize("header", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize("loop", [run, run_fast], ids=["asyncio", "uvloop"])
def test_a_proxy_header_before_the_handshake(
    tmp_path: Path, certificates: Certificates, loop: Any, header: bytes
) -> None:
    async def test() -> None:
        async with running(tmp_path, net=offering(certificates, tls_mode="enforcing")) as broker:
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(header)
            await writer.start_tls(trusting(certificates), server_hostname="127.0.0.1")
            writer.write(request(Speaker.send_header("t", 0, None), b"in secret").encode())
            size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 10), "big")
            assert decode(size.to_bytes(4, "big") + await reader.readexactly(size)).code == 0
            assert [connection.peer for connection in broker.server.connections] == [("192.0.2.7", 56324)]
            writer.close()
            async with secretly(broker, trusting(certificates)) as secret:
                assert [record.born_host for record in await secret.read("t")] == [bytes([192, 0, 2, 7])]

    loop(test())


# --- files that cannot be used -------------------------------------------------------------------------------------------


def test_certificate_files_that_cannot_be_used(tmp_path: Path, certificates: Certificates) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("-----BEGIN NOTHING-----")
    server, locked = certificates.server, certificates.locked
    for cert, key, password in [
        (tmp_path / "missing.pem", server.key, None),
        (server.cert, tmp_path / "missing.key", None),
        (nonsense, server.key, None),
        (server.cert, nonsense, None),
        (server.cert, certificates.stranger.key, None),  # of another certificate
        (locked.cert, locked.key, None),  # must not ask for the password on the terminal
        (locked.cert, locked.key, "wrong"),
    ]:
        with pytest.raises(ConfigError, match=r"TLS certificate .* cannot be used"):
            server_context(NetConfig(tls_cert=cert, tls_key=key, tls_key_password=password))
    assert server_context(NetConfig(tls_cert=locked.cert, tls_key=locked.key, tls_key_password="open")) is not None
    with pytest.raises(ConfigError, match="cannot be used"):
        server_context(
            NetConfig(**offering(certificates, tls_client_auth="require", tls_trust=tmp_path / "nowhere.pem"))
        )
    with pytest.raises(ConfigError, match="outgoing"):
        outgoing_context(NetConfig(tls_outgoing=True, tls_outgoing_trust=nonsense))


def test_no_tls_without_being_asked() -> None:
    assert server_context(NetConfig()) is None
    assert outgoing_context(NetConfig()) is None


def test_a_broker_with_bad_certificates_does_not_start(tmp_path: Path, certificates: Certificates) -> None:
    async def test() -> None:
        with pytest.raises(ConfigError, match=r"missing\.pem"):
            async with running(tmp_path, net=offering(certificates, tls_cert=tmp_path / "missing.pem")):
                pass
        async with running(tmp_path) as broker:  # and nothing of it is left behind
            assert broker.recovered.clean

    run(test())


# --- servers among themselves, and our own client ------------------------------------------------------------------------


def properties(certificates: Certificates, **more: str) -> dict[str, str]:
    return {
        "mappedFileSizeCommitLog": str(1 << 20),
        "maxMessageSize": str(64 << 10),
        "maxHashSlotNum": "1000",
        "maxIndexNum": "4000",
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(certificates.server.cert),
        "tls.server.keyPath": str(certificates.server.key),
        **more,
    }


def test_our_client_where_everything_is_enforced(tmp_path: Path, certificates: Certificates) -> None:
    async def test() -> None:
        given = properties(
            certificates, **{"tls.client.trustCertPath": str(certificates.authority), "tls.enable": "true"}
        )
        local = Local.at(tmp_path, nameserver_port=0, broker_port=0, host="127.0.0.1", properties=given)
        async with local:
            options: dict[str, Any] = {
                "nameserver": local.nameserver, "tls": True, "tls_trust": certificates.authority,
            }  # fmt: skip
            async with AsyncProducer(**options) as producer:
                await producer.send(Message("tea", b"first flush"))
            async with AsyncConsumer(
                group="cg", topics="tea", consume_from="first", idle_timeout=10, **options
            ) as consumer:
                async for message in consumer:
                    assert message.body == b"first flush"
                    break
            async with AsyncProducer(local.nameserver) as plain:
                with pytest.raises(KappaError):
                    await plain.send(Message("tea", b"in the open"))

    run(test())


def test_a_broker_registers_with_a_name_server_that_enforces_tls(tmp_path: Path, certificates: Certificates) -> None:
    async def test() -> None:
        net = NetConfig(**offering(certificates, tls_mode="enforcing"))
        server = NameServer(NameServerConfig(listen_host="127.0.0.1", port=0), SystemClock(), net=net)
        await server.start()
        try:
            for number, (outgoing, known) in enumerate(
                [
                    ({}, False),
                    ({"tls_outgoing": True}, True),
                    ({"tls_outgoing": True, "tls_outgoing_trust": certificates.authority}, True),
                    ({"tls_outgoing": True, "tls_outgoing_trust": certificates.stranger.cert}, False),
                ]
            ):
                async with running(tmp_path / str(number), net=outgoing, nameservers=(server.address,)):
                    channel = await Channel.connect(server.address, tls=trusting(certificates))
                    answer = await channel.request(GetClusterInfo())
                    channel.close()
                    assert (b'"brokerName":"b"' in answer.body) is known, (outgoing, answer.body)
        finally:
            await server.stop()

    run(test())


def test_a_broker_that_should_speak_tls_to_its_name_server_says_so(
    tmp_path: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        net = NetConfig(**offering(certificates, tls_mode="enforcing"))
        names = NameServer(NameServerConfig(listen_host="127.0.0.1", port=0), SystemClock(), net=net)
        await names.start()
        try:
            async with running(tmp_path, nameservers=(names.address,)):
                await eventually(lambda: "requires TLS" in caplog.text)
        finally:
            await names.stop()

    run(test())
    assert "in broker.conf tls.enable=true" in caplog.text
    assert "does not use TLS, which this port requires" in caplog.text, "and the name server says who came without it"
