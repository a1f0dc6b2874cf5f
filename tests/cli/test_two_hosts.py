"""Addresses that just work, seen from another host: two network namespaces with a cable between them, made for the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SMALL
from tests.needs import needs

pytestmark = [needs("root", "netns"), pytest.mark.timeout(180)]

SET = [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("KAPPAMQ_NAMESERVER", "NAMESRV_ADDR")}


@dataclass(frozen=True)
class Hosts:
    server: str
    client: str
    server_ip: str = "10.231.7.1"
    client_ip: str = "10.231.7.2"

    def run(self, host: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["ip", "netns", "exec", host, sys.executable, "-m", "kappamq", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=90, check=False)

    @contextmanager
    def up(self, data: Path, *arguments: str) -> Iterator[dict[str, Any]]:
        command = [
            "ip",
            "netns",
            "exec",
            self.server,
            sys.executable,
            "-m",
            "kappamq",
            "up",
            "--json",
            "--listen",
            "0.0.0.0",
            *SET,
        ]
        process = subprocess.Popen(
            [*command, "--data", str(data), *arguments], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Their own two hosts, joined to nothing else."""
    made = Hosts(f"kmq{os.getpid()}a", f"kmq{os.getpid()}b")
    try:
        for name in (made.server, made.client):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", made.server, "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", made.client)
        for name, address in ((made.server, made.server_ip), (made.client, made.client_ip)):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "veth0")
            ip("-n", name, "link", "set", "veth0", "up")
        ip("-n", made.server, "route", "add", "default", "via", made.client_ip)
        yield made
    finally:
        for name in (made.server, made.client):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True, timeout=20)


def test_up_is_reached_from_both_hosts(hosts: Hosts, tmp_path: Path) -> None:
    """The broker registers over loopback; each client gets the address by which it reached the name server."""
    with hosts.up(tmp_path) as told:
        port = told["nameserver"].rpartition(":")[2]
        seen = {}
        ids = []
        for host, address in ((hosts.server, "127.0.0.1"), (hosts.client, hosts.server_ip)):
            sent = hosts.run(host, "send", "-t", "tea", "-b", address, "-n", f"{address}:{port}", "-o", "json")
            assert sent.returncode == 0, sent.stderr
            ids.append(json.loads(sent.stdout)["offset_id"])
            route = hosts.run(host, "topic", "route", "tea", "-n", f"{address}:{port}", "-o", "json")
            seen[host] = json.loads(route.stdout)["address"].rpartition(":")[0]
            healthy = hosts.run(host, "doctor", "-n", f"{address}:{port}", "--data", str(tmp_path), "-o", "json")
            found = [json.loads(line) for line in healthy.stdout.splitlines()]
            said = [row for row in found if "broker-a" in row["what"]]
            assert said[0]["health"] == "ok", found
            assert [row["health"] for row in said[1:]] == ["note"] * (len(said) - 1), found
            assert any("all addresses" in row["text"] for row in said[1:]), "nobody is asked who they are"
        assert seen == {hosts.server: "127.0.0.1", hosts.client: hosts.server_ip}
        # Ids are for everybody: they name the address by which this machine speaks to others.
        for offset_id in ids:
            assert bytes.fromhex(offset_id[:8]) == bytes(map(int, hosts.server_ip.split(".")))
            for host, address in ((hosts.server, "127.0.0.1"), (hosts.client, hosts.server_ip)):
                found = hosts.run(host, "query", "id", offset_id, "-n", f"{address}:{port}", "-o", "json")
                assert found.returncode == 0, found.stderr


def test_doctor_explains_an_address_that_cannot_be_reached(hosts: Hosts, tmp_path: Path) -> None:
    with hosts.up(tmp_path, "--advertise", "10.231.7.77") as told:
        nameserver = f"{hosts.server_ip}:{told['nameserver'].rpartition(':')[2]}"
        sick = hosts.run(hosts.client, "doctor", "-n", nameserver, "--timeout", "1", "--data", str(tmp_path / "x"))
        assert sick.returncode == 1
        assert "10.231.7.77" in sick.stdout
        assert "cannot be reached from here" in sick.stdout
        assert "--advertise" in sick.stdout


def test_advertise_is_what_clients_are_told(hosts: Hosts, tmp_path: Path) -> None:
    with hosts.up(tmp_path, "--advertise", hosts.server_ip) as told:
        nameserver = f"{hosts.server_ip}:{told['nameserver'].rpartition(':')[2]}"
        sent = hosts.run(hosts.client, "send", "-t", "tea", "-b", "x", "-n", nameserver)
        assert sent.returncode == 0, sent.stderr
        route = hosts.run(
            hosts.server, "topic", "route", "tea", "-n", f"127.0.0.1:{nameserver.rpartition(':')[2]}", "-o", "json"
        )
        assert json.loads(route.stdout)["address"].startswith(hosts.server_ip)
