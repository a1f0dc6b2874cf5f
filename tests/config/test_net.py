from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kappamq.config.net import NetConfig
from kappamq.errors import ConfigError


def test_without_a_certificate_there_is_no_tls() -> None:
    assert not NetConfig().tls_offered
    assert NetConfig(tls_cert=Path("c"), tls_key=Path("k")).tls_offered
    assert not NetConfig(tls_cert=Path("c"), tls_key=Path("k"), tls_mode="disabled").tls_offered


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"tls_cert": Path("c")}, "belong together"),
        ({"tls_mode": "enforcing"}, "needs tls_cert"),
        ({"tls_mode": "sometimes"}, "tls_mode"),
        ({"tls_client_auth": "require"}, "needs tls_trust"),
        ({"frame_bytes_max": 10}, "frame_bytes_max"),
        ({"header_bytes_max": 1 << 24}, "header_bytes_max"),
        ({"write_pause_bytes": 1 << 40}, "write_pause_bytes"),
        ({"idle_s": -1}, "idle_s"),
        ({"connections_max": 0}, "connections_max"),
        ({"inflight_bytes_max": 1}, "inflight_bytes_max"),
    ],
)
def test_wrong_values_say_so(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        NetConfig(**wrong)
