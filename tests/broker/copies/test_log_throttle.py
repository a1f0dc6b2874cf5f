"""The same problem of the same host is logged once a minute, and what is remembered is bounded."""

from __future__ import annotations

import asyncio

import pytest

from kappamq.broker.copies.log_throttle import AGAIN_S, LogThrottle


def test_once_a_minute_for_each_host_and_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        now = [1000.0]
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
        throttle = LogThrottle()
        assert throttle.is_news("10.0.0.1:1000", "wrong name")
        assert not throttle.is_news("10.0.0.1:1001", "wrong name")
        assert throttle.is_news("10.0.0.2:1001", "wrong name")
        assert throttle.is_news("10.0.0.1:1002", "wrong size")
        now[0] += AGAIN_S
        assert throttle.is_news("10.0.0.1:1003", "wrong name")
        assert not throttle.is_news("10.0.0.1:1004", "wrong name")
        for number in range(1000):
            assert throttle.is_news("10.0.0.3:1", str(number))
        assert len(throttle._at) <= 256

    # Not uvloop, whose clock cannot be replaced.
    loop = asyncio.SelectorEventLoop()
    try:
        loop.run_until_complete(test())
    finally:
        loop.close()
