from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kappamq import AsyncConsumer, AsyncLitePullConsumer, AsyncProducer, AsyncTransactionProducer
from kappamq.client.core.settings import client_config, tls_context
from kappamq.config.client import ClientConfig
from kappamq.errors import ConfigError


def test_name_servers_come_from_the_argument_then_the_config_then_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KAPPAMQ_NAMESERVER", "env:1;env:2")
    monkeypatch.setenv("NAMESRV_ADDR", "java:1")
    config = ClientConfig(nameservers=("config:1",))
    assert client_config("a:1;b:2", config, {}).nameservers == ("a:1", "b:2")
    assert client_config(["a:1"], None, {}).nameservers == ("a:1",)
    assert client_config(None, config, {}).nameservers == ("config:1",)
    assert client_config(None, None, {}).nameservers == ("env:1", "env:2")
    assert client_config(None, ClientConfig(send_retries=7), {}).nameservers == ("env:1", "env:2")
    monkeypatch.delenv("KAPPAMQ_NAMESERVER")
    assert client_config(None, None, {}).nameservers == ("java:1",)
    monkeypatch.delenv("NAMESRV_ADDR")
    assert client_config(None, None, {}).nameservers == ("127.0.0.1:9876",)


def test_a_host_alone_means_the_usual_port() -> None:
    assert client_config("localhost; [::1];b:1", None, {}).nameservers == ("localhost:9876", "[::1]:9876", "b:1")
    assert client_config(["localhost"], None, {}).nameservers == ("localhost:9876",)


def test_options_lie_over_the_config() -> None:
    config = ClientConfig(send_timeout_ms=1, send_retries=7)
    changed = client_config("a:1", config, {"send_timeout_ms": 2})
    assert (changed.send_timeout_ms, changed.send_retries) == (2, 7)


@pytest.mark.parametrize(
    ("nameserver", "options", "text"),
    [
        ("", {}, "no name server in ''"),
        ([], {}, "no name server"),
        ("a host", {}, "host:port"),
        ("::1", {}, "host:port"),
        ("a:1", {"retries": 3}, "did you mean 'send_retries'"),
        ("a:1", {"sendTimeoutMs": 3}, "did you mean 'send_timeout_ms'"),
        ("a:1", {"consumeThreadMax": 3}, "did you mean 'consume_threads'"),
        ("a:1", {"listener": print}, "of other clients"),
        ("a:1", {"xyzzy": 3}, "ClientConfig"),
        ("a:1", {"send_timeout_ms": 0}, "send_timeout_ms"),
    ],
)
def test_what_is_wrong_is_named(nameserver: object, options: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        client_config(nameserver, None, options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("client", "options", "text"),
    [
        (AsyncConsumer, {"listner": print}, "did you mean 'listener'"),
        (AsyncConsumer, {"consume_form": "first"}, "did you mean 'consume_from'"),
        (AsyncLitePullConsumer, {"auto_comit": True}, "did you mean 'auto_commit'"),
        (AsyncTransactionProducer, {"selektion": "sticky"}, "did you mean 'selection'"),
        (AsyncConsumer, {"auto_comit": True}, "unknown client option 'auto_comit'; (?!did you mean 'auto_commit')"),
        (AsyncProducer, {"listner": print}, "unknown client option 'listner'; (?!did you mean 'listener')"),
        (AsyncProducer, {"listener": print}, "of other clients"),
    ],
)
def test_guesses_are_among_what_the_client_takes(client: type, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        client_config("a:1", None, options, client)


def test_tls_is_off_unless_asked_for_and_verifies_unless_told_not_to() -> None:
    assert tls_context(ClientConfig()) is None
    strict = tls_context(ClientConfig(tls=True))
    assert strict is not None
    assert strict.check_hostname
    lax = tls_context(ClientConfig(tls=True, tls_verify=False))
    assert lax is not None
    assert not lax.check_hostname


def test_tls_files_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.pem"):
        tls_context(ClientConfig(tls=True, tls_trust=tmp_path / "none.pem"))
