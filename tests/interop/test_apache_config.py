"""The property names that Apache's own servers show, against our tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kappamq.config import apache as config
from kappamq.config.apache_features import BROKER_UNSET, NAMESERVER_UNSET
from tests.interop import apache

# These are shown when they have a value: our broker may be without a name server, and never deletes early by default.
SHOWN_WHEN_SET = {"brokerIP1", "namesrvAddr", "diskSpaceCleanForciblyRatio"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[apache.NameServer, apache.Broker]]:
    folder = tmp_path_factory.mktemp("apache")
    with apache.NameServer(folder / "ns") as names, apache.Broker(folder / "broker", names.address) as broker:
        yield names, broker


def printed(text: str) -> dict[str, str]:
    """The lines `name = value` between the lines of equal signs."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("="))
    return {name.strip(): value.strip() for name, _, value in pairs}


def test_every_broker_property_is_known_and_shown_or_has_no_off_value(
    servers: tuple[apache.NameServer, apache.Broker], tmp_path: Path
) -> None:
    names, broker = servers
    theirs = printed(apache.mqadmin(names.address, "getBrokerConfig", "-b", broker.address).text)
    assert len(theirs) > 400
    assert [name for name in theirs if not config.is_known(name)] == []
    ours = config.rendered(config.broker_settings({}, defaults={"store": {"root": tmp_path}})[0])
    withheld = theirs.keys() - ours.keys() - SHOWN_WHEN_SET
    assert [name for name in withheld if BROKER_UNSET[name].shown is not None] == []
    # What is withheld is a number, a name or a place: a switch always has a value that means off.
    assert [name for name in withheld if theirs[name] in ("true", "false")] == []


def test_what_apaches_broker_shows_is_a_file_that_ours_starts_with(
    servers: tuple[apache.NameServer, apache.Broker],
) -> None:
    names, broker = servers
    theirs = printed(apache.mqadmin(names.address, "getBrokerConfig", "-b", broker.address).text)
    settings, findings = config.broker_settings(theirs)
    assert findings.unknown == ()
    assert settings.broker.port == broker.port
    again = config.rendered(settings)
    assert again["storePathRootDir"] == theirs["storePathRootDir"]


def test_every_name_server_property_is_known(servers: tuple[apache.NameServer, apache.Broker], tmp_path: Path) -> None:
    names, _ = servers
    theirs = printed(apache.mqadmin(names.address, "getNamesrvConfig").text)
    assert len(theirs) > 30
    _, findings = config.nameserver_settings(theirs)
    assert findings.unknown == ()
    ours = config.rendered_nameserver(config.nameserver_settings({"kvConfigPath": f"{tmp_path}/kvConfig.json"})[0])
    assert [name for name in theirs.keys() - ours.keys() if NAMESERVER_UNSET[name].shown is not None] == []
