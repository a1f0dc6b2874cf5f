"""The options by which client commands find a cluster, and TLS through all of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kappamq.cli.shared.cluster import DEFAULT_NAMESERVER, Cluster, clustered
from kappamq.local import Local, LocalThread
from tests.cli.conftest import SMALL, run_kappamq
from tests.net.certificates import Certificates, make


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Local]:
    """A cluster that speaks nothing but TLS."""
    tls = {
        "net.tls_mode": "enforcing",
        "net.tls_cert": str(certificates.server.cert),
        "net.tls_key": str(certificates.server.key),
    }
    data = tmp_path_factory.mktemp("secret")
    local = Local.at(data, nameserver_port=0, broker_port=0, host="127.0.0.1", properties={**SMALL, **tls})
    with LocalThread(local) as running:
        yield running


def test_every_client_command_speaks_tls(
    secret: Local, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = ["-n", secret.nameserver, "--tls-ca", str(certificates.authority), "-o", "json"]
    for command in (
        ["topic", "create", "tea", "-q", "1"],
        ["send", "-t", "tea", "-b", "cup", "--key", "k"],
        ["topic", "status", "tea"],
        ["query", "time", "tea", "--from", "1h"],
        ["tail", "tea", "--from", "start", "--count", "1"],
        ["bench", "--messages", "10", "--connections", "1"],
        ["doctor", "--data", str(secret.data)],
    ):
        ran = run_kappamq(*command, *trusted)
        assert ran.exit_code == 0, (command, ran)
        assert ran.json

    # By the environment, and without looking at who it is.
    monkeypatch.setenv("KAPPAMQ_NAMESERVER", secret.nameserver)
    monkeypatch.setenv("KAPPAMQ_TLS_NO_VERIFY", "1")
    assert run_kappamq("topic", "list", "-o", "json").json
    monkeypatch.delenv("KAPPAMQ_TLS_NO_VERIFY")

    stranger = run_kappamq("topic", "list", "--tls", "-o", "json")  # not signed by anybody the system trusts
    assert stranger.exit_code == 4
    assert "TLS handshake with" in stranger.problem["error"]
    plain = run_kappamq("send", "-t", "tea", "-b", "x")
    assert plain.exit_code == 4, plain


def test_doctor_says_what_a_server_wants(secret: Local, certificates: Certificates) -> None:
    plain = run_kappamq("doctor", "-n", secret.nameserver, "--data", str(secret.data))
    assert plain.exit_code == 1
    assert "--tls" in plain.out
    wrong_ca = run_kappamq("doctor", "-n", secret.nameserver, "--data", str(secret.data), "--tls")
    assert wrong_ca.exit_code == 1
    assert "TLS handshake with" in wrong_ca.out


def test_a_command_gets_what_the_options_say(tmp_path: Path) -> None:
    got: list[Any] = []

    @clustered
    def command(cluster: Cluster, count: int = 1) -> None:
        got.append((cluster, count))

    names = list(inspect.signature(command).parameters)
    assert names == ["count", "nameserver", "tls", "tls_ca", "tls_no_verify", "tls_cert", "tls_key"]
    command(count=2)
    command(nameserver="a:1;b:2", tls_ca=tmp_path)
    command(tls_no_verify=True)
    assert got[0] == (Cluster(DEFAULT_NAMESERVER), 2)
    assert got[1][0] == Cluster("a:1;b:2", tls=True, tls_trust=tmp_path)
    assert got[1][0].nameservers == ("a:1", "b:2")
    assert got[2][0] == Cluster(tls=True, tls_verify=False)
    assert Cluster().context() is None
    assert Cluster(tls=True).context() is not None
