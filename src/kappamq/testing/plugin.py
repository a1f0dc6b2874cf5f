"""The pytest fixture `kappamq_broker`; found by pytest through the package's entry point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kappamq.testing.broker import BrokerKit


@pytest.fixture
def kappamq_broker() -> Iterator[BrokerKit]:
    """A broker of this test's own, with a clock that the test moves."""
    from kappamq.testing.broker import BrokerKit  # nobody who does not use it waits for the import

    with BrokerKit() as broker:
        yield broker
