"""Groups that cannot be stored just now, or one of whose members never can."""

from __future__ import annotations

from typing import Any

import pytest

from kappamq.broker.delivery.record_copies import GROUP_MAX, Copying
from kappamq.errors import IllegalMessage, NotAvailable
from kappamq.native.pure_record import GroupMember

NOW = 1_700_000_000_000
CHANGE = ("delay", [1, 2])


def copy(body: bytes) -> GroupMember:
    return "tea", 0, 0, 0, 0, bytes(8), 0, 0, body, b""


class Log:
    def __init__(self) -> None:
        self.stored: list[tuple[list[bytes], Any]] = []
        self.full = False

    def append_copies(self, members: list[GroupMember], changes: list[Any]) -> None:
        if self.full:
            raise NotAvailable("no room")
        if any(member[8] == b"bad" for member in members):
            raise IllegalMessage("too long")
        self.stored.append(([member[8] for member in members], changes))


def test_together_or_later(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    copying = Copying("timers", log)  # type: ignore[arg-type]
    assert copying.store([copy(b"a"), copy(b"b")], CHANGE, NOW) is None
    log.full = True
    for _ in range(3):
        assert copying.store([copy(b"c")], CHANGE, NOW) == NOW + 1000
    assert caplog.text.count("delivery of timers is delayed: no room") == 1
    log.full = False
    assert copying.store([copy(b"c")], CHANGE, NOW) is None
    assert log.stored == [([b"a", b"b"], [CHANGE]), ([b"c"], [CHANGE])]


def test_one_that_never_fits_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    copying = Copying("timers", log)  # type: ignore[arg-type]
    assert copying.store([copy(b"a"), copy(b"bad")], CHANGE, NOW) == NOW
    assert copying.group_max == 1, "one by one, to find it"
    assert copying.store([copy(b"a")], CHANGE, NOW) is None
    assert copying.group_max == GROUP_MAX
    assert copying.store([copy(b"bad")], CHANGE, NOW) is None
    assert "skipped" in caplog.text
    assert log.stored == [([b"a"], [CHANGE]), ([], [CHANGE])]
