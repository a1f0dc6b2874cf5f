"""Settings of a running name server."""

from __future__ import annotations

import pytest

from kappamq.config import properties
from kappamq.config.apache import NameServerSettings
from kappamq.config.nameserver import NameServerConfig
from kappamq.config.net import NetConfig
from kappamq.errors import BrokerError, NoPermission
from kappamq.nameserver.settings import changed, shown


def settings() -> NameServerSettings:
    return NameServerSettings(nameserver=NameServerConfig(), net=NetConfig())


def test_change_and_show() -> None:
    new = changed(settings(), b"orderMessageEnable=true\n")
    assert new.nameserver.order_messages
    text = properties.parse_bytes(shown(new))
    assert text["orderMessageEnable"] == "true"
    assert text["listenPort"] == "9876"


def test_what_was_shown_may_be_sent_back() -> None:
    before = settings()
    assert changed(before, shown(before)).nameserver.port == before.nameserver.port


@pytest.mark.parametrize(
    ("body", "kind", "reason"),
    [
        (b"listenPort=1\n", NoPermission, "cannot be changed at run time"),
        (b"kvConfigPath=/etc/kvConfig.json\n", NoPermission, "cannot be changed"),
        (b"configStorePath=/etc\n", NoPermission, "has no effect"),
        (b"nonsense=1\n", BrokerError, "unknown property nonsense"),
        (b"orderMessageEnable=perhaps\n", BrokerError, "true or false"),
        (b"\xff", BrokerError, "UTF-8"),
    ],
)
def test_refused(body: bytes, kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        changed(settings(), body)
