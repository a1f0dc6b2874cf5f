"""The fixture is there for whoever has installed the package."""

from __future__ import annotations

from importlib.metadata import entry_points

from kappamq.testing import BrokerKit


def test_the_fixture_is_found_by_pytest() -> None:
    (found,) = [point for point in entry_points(group="pytest11") if point.name == "kappamq"]
    assert found.value == "kappamq.testing.plugin"


def test_each_test_has_a_broker_of_its_own(kappamq_broker: BrokerKit) -> None:
    assert kappamq_broker.nameserver.startswith("127.0.0.1:")
