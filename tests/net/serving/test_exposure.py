"""A server that strangers can reach says so."""

from __future__ import annotations

import logging

import pytest

from kappamq.net.serving.exposure import exposure, warn_if_exposed


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_loopback_is_no_news(host: str, caplog: pytest.LogCaptureFixture) -> None:
    assert exposure(host) is None
    with caplog.at_level(logging.DEBUG):
        warn_if_exposed("broker b", host)
    assert not [record for record in caplog.records if record.name == "kappamq.net.serving.exposure"]


@pytest.mark.parametrize(
    ("host", "text"), [("0.0.0.0", "all addresses"), ("::", "all addresses"), ("10.1.2.3", "10.1.2.3")]
)
def test_anything_else_is(host: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert text in (exposure(host) or "")
    with caplog.at_level(logging.WARNING):
        warn_if_exposed("broker b", host)
    assert "broker b: it listens on" in caplog.text
    assert "--listen 127.0.0.1" in caplog.text
