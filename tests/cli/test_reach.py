from __future__ import annotations

import asyncio
import socket

import pytest

from kappamq.cli import reach
from kappamq.cli.checks import Health
from kappamq.event_loop import run
from kappamq.local import Local


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_broker_that_is_not_there() -> None:
    (finding,) = run(reach.check_broker("b", 0, f"127.0.0.1:{free_port()}", "127.0.0.1:9876", 1.0))
    assert finding.health is Health.BAD
    assert "cannot be reached from here" in finding.text
    assert "firewall" in finding.advice


def test_an_address_nobody_can_use() -> None:
    (finding,) = run(reach.check_broker("b", 1, "nonsense", "127.0.0.1:9876", 1.0))
    assert finding.health is Health.BAD
    assert "--advertise" in finding.advice


def test_the_second_port_is_missed() -> None:
    async def main() -> list[reach.Finding]:
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await reach.check_broker("b", 0, f"127.0.0.1:{port}", "127.0.0.1:9876", 1.0)

    (finding,) = run(main())
    assert finding.health is Health.NOTE
    assert "VIP" in finding.advice


@pytest.mark.parametrize(
    ("host", "nameserver", "text"),
    [
        ("127.0.0.1", "10.0.0.5:9876", "loopback"),
        ("172.17.0.2", "10.0.0.5:9876", "container"),
        ("10.0.0.9", "10.0.0.5:9876", "firewall"),
        ("broker.internal", "10.0.0.5:9876", "resolve"),
    ],
)
def test_the_usual_reasons(host: str, nameserver: str, text: str) -> None:
    advice = reach.why_unreachable(host, nameserver)
    assert text in advice
    assert "--advertise" in advice


def test_not_a_name_server(cluster: Local) -> None:
    found = run(reach.check([cluster.broker], 1.0))
    assert found[0].health is Health.BAD
    assert "really a name server" in found[0].advice


def test_everything_is_reached(cluster: Local) -> None:
    found = run(reach.check([cluster.nameserver], 1.0))
    assert {finding.health for finding in found} == {Health.OK}
    assert len(found) == 2
