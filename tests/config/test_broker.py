from __future__ import annotations

import socket
from typing import Any

import pytest

from kappamq.config.broker import BrokerConfig, host_name
from kappamq.errors import ConfigError


@pytest.mark.parametrize(
    ("host", "name"), [("vm", "vm"), ("a.b.example", "a-b-example"), ("ä", "kappamq"), ("x" * 300, "x" * 60)]
)
def test_the_broker_is_named_after_its_host(monkeypatch: pytest.MonkeyPatch, host: str, name: str) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert host_name() == name
    assert BrokerConfig().name == name


def test_permission_bits() -> None:
    assert (BrokerConfig().readable, BrokerConfig().writable) == (True, True)
    assert (BrokerConfig(permission=4).readable, BrokerConfig(permission=4).writable) == (True, False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a b"},
        {"name": "a/../b"},
        {"name": ""},
        {"cluster": ""},
        {"port": 2},
        {"port": 70000},
        {"port": "80"},
        {"broker_id": -1},
        {"nameservers": ("localhost",)},
        {"advertise": ""},
        {"permission": 8},
        {"default_topic_queues": 0},
        {"topics_max": 0},
    ],
)
def test_wrong_values_name_the_field(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        BrokerConfig(**wrong)
