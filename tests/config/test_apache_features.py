"""The table of properties that set nothing here: against the settings, and its verdicts. Apache's own names: tests/interop."""

from __future__ import annotations

import pytest

from kappamq.config import apache_features as features
from kappamq.config.apache_names import BROKER_SETTINGS, NAMESERVER_SETTINGS
from kappamq.errors import ConfigError


def test_a_name_sets_a_field_or_belongs_to_one_feature() -> None:
    assert not BROKER_SETTINGS.keys() & features.BROKER_UNSET.keys()
    assert not NAMESERVER_SETTINGS.keys() & features.NAMESERVER_UNSET.keys()
    twice = features.Feature(because="x", tuning="a b")
    with pytest.raises(AssertionError, match="a belongs to two features"):
        features.unset([twice, twice])


@pytest.mark.parametrize("table", [features.BROKER_UNSET, features.NAMESERVER_UNSET], ids=["broker", "nameserver"])
def test_what_is_shown_is_never_refused_and_always_holds(table: dict[str, features.Unset]) -> None:
    for unset in table.values():
        if unset.shown is not None:
            assert unset.holds(unset.shown), unset.name


def test_values_are_compared_as_java_would_write_them() -> None:
    assert features.BROKER_UNSET["storeType"].holds("DEFAULT")
    assert features.BROKER_UNSET["readOnlyCommitLogStorePaths"].holds("null")
    assert features.BROKER_UNSET["aclEnable"].holds(" FALSE ")
    assert not features.BROKER_UNSET["enableCompaction"].holds("true")
    with pytest.raises(ConfigError, match=r"aclEnable=true cannot be honoured.*leave it out or set it to false"):
        features.BROKER_UNSET["aclEnable"].holds("true")
    with pytest.raises(ConfigError, match=r"set it to \(empty\)"):
        features.BROKER_UNSET["messageStorePlugIn"].holds("a.B")


def test_a_name_without_an_off_value_is_known_and_not_shown() -> None:
    assert features.BROKER_UNSET["sendMessageThreadPoolNums"].shown is None
    assert not features.BROKER_UNSET["sendMessageThreadPoolNums"].holds("4")


@pytest.mark.parametrize(
    "name",
    ["preferredLeaderId", "authConfigPath", "authenticationProvider", "clientWorkerThreads"],
)
def test_names_of_features_to_come_are_known(name: str) -> None:
    assert name in features.BROKER_UNSET
