from __future__ import annotations

from typing import Any

import pytest

from kappamq.config.copies import SLAVE, SYNC_MASTER, CopiesConfig
from kappamq.errors import ConfigError


@pytest.mark.parametrize(
    ("config", "awaited"),
    [
        (CopiesConfig(), 0),
        (CopiesConfig(in_sync=3), 0),
        (CopiesConfig(role=SYNC_MASTER), 1),
        (CopiesConfig(role=SYNC_MASTER, in_sync=1), 0),
        (CopiesConfig(role=SYNC_MASTER, in_sync=3), 2),
        (CopiesConfig(role=SLAVE, in_sync=3), 0),
    ],
)
def test_only_a_synchronous_master_waits_for_copies(config: CopiesConfig, awaited: int) -> None:
    assert config.copies_awaited == awaited


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"role": "SLAVE"}, "role must be one of"),
        ({"in_sync": -1}, "in_sync"),
        ({"port": 70_000}, "port"),
        ({"master_address": "here"}, "master_address"),
        ({"slave_timeout_ms": 0}, "slave_timeout_ms"),
        ({"window_bytes": 1}, "window_bytes"),
        ({"members": {"a": "nowhere"}}, r"members\[a\]"),
        ({"group": "g", "members": {"a": "h:1"}, "member": "b"}, "one of the group's members"),
    ],
)
def test_what_cannot_be_is_refused_with_the_name_of_the_field(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        CopiesConfig(**wrong)
