from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kappamq.config.nameserver import NameServerConfig
from kappamq.errors import ConfigError


def test_defaults() -> None:
    config = NameServerConfig(root="/x")  # type: ignore[arg-type]
    assert (config.port, config.scan_ms, config.broker_expiry_ms, config.root) == (9876, 5000, 120_000, Path("/x"))


@pytest.mark.parametrize("wrong", [{"port": -1}, {"scan_ms": 0}, {"listen_host": ""}, {"topics_max": 0}])
def test_wrong_values_name_the_field(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        NameServerConfig(**wrong)
