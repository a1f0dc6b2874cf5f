"""The pytest fixture `kappamq_broker`; pytest finds it through the package's entry point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kappamq.testing.broker import BrokerKit


@pytest.fixture
def kappamq_broker() -> Iterator[BrokerKit]:
    """A broker for this test, with a clock that the test advances."""
    from kappamq.testing.broker import BrokerKit  # imported here so that tests that do not use it do not wait for it

    with BrokerKit() as broker:
        yield broker
