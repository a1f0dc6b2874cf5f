"""The official C++ client: JSON headers with numbers in them, request code 10, its own heartbeats."""

from collections import Counter

from tests.interop.conftest import VARIANTS
from tests.interop.messages import Described, Received, bodies, wait_for_messages
from tests.interop.probe import JsonLines
from tests.interop.targets import Target
from tests.waiting import eventually

import pytest


@pytest.fixture
def java(java_clients):  # type: ignore[no-untyped-def]
    """A second witness."""
    return java_clients(VARIANTS[-1])
