from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kappamq.config.client import ClientConfig, split_addresses
from kappamq.errors import ConfigError


def test_name_servers_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "a:1; b:2")
    assert ClientConfig().nameservers == ("a:1", "b:2")
    monkeypatch.setenv("KAPPAMQ_NAMESERVER", "ours:1")
    assert ClientConfig().nameservers == ("ours:1",)
    assert ClientConfig(nameservers=("given:1",)).nameservers == ("given:1",)
    monkeypatch.delenv("KAPPAMQ_NAMESERVER")
    monkeypatch.delenv("NAMESRV_ADDR")
    assert ClientConfig().nameservers == ("127.0.0.1:9876",)


def test_name_servers_may_be_one_text() -> None:
    assert ClientConfig(nameservers="a:1,b:2").nameservers == ("a:1", "b:2")  # type: ignore[arg-type]
    assert split_addresses(" ; ,") == ()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"nameservers": ()}, "nameservers is empty"),
        ({"nameservers": ("a b",)}, "host:port"),
        ({"pull_hold_ms": 30_000}, "must be longer than"),
        ({"compress_kind": "rar"}, "compress_kind"),
        ({"send_retries": -1}, "send_retries"),
        ({"inflight_max": 0}, "inflight_max"),
        ({"reconsume_max": -2}, "reconsume_max"),
        ({"lock_renew_ms": 30_000}, "lost before it is renewed"),
        ({"topic_bytes_max": 0}, "topic_bytes_max"),
        ({"tls_cert": Path("c")}, "belong together"),
    ],
)
def test_wrong_values_say_so(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ClientConfig(**wrong)
