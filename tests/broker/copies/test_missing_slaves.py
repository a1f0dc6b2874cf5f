from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.broker.copies import missing_slaves
from kappamq.broker.copies.missing_slaves import PATIENCE_S, MissingSlaves
from kappamq.config.copies import SYNC_MASTER, CopiesConfig
from tests.broker.copies.copying import slave_of
from tests.broker.running import run, running
from tests.waiting import eventually_async


def test_it_is_told_once_and_told_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    slaves = MissingSlaves()
    for now in (0.0, PATIENCE_S - 1):
        slaves.look("0 of 1", now)
    slaves.look(None, PATIENCE_S)
    slaves.look("0 of 1", PATIENCE_S + 1)
    slaves.look("0 of 1", 2 * PATIENCE_S)
    assert not caplog.messages, "it was there in between"
    for now in range(100):
        slaves.look("0 of 1", 2 * PATIENCE_S + 1 + now)
    (missing,) = caplog.messages
    assert "0 of 1: messages are stored without a copy" in missing
    slaves.look(None, 1000)
    slaves.look(None, 1001)
    assert [text for text in caplog.messages if "again" in text] == caplog.messages[1:]
    assert len(caplog.messages) == 2


def test_a_synchronous_master_tells_that_it_has_no_slave(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missing_slaves, "PATIENCE_S", 0.0)

    async def test() -> None:
        copies = CopiesConfig(role=SYNC_MASTER)
        async with running(tmp_path / "m", copies=copies) as master:
            await eventually_async(lambda: any("0 of 1 slaves that are awaited" in text for text in caplog.messages))
            async with slave_of(master, tmp_path / "s"):
                await eventually_async(lambda: any("connected again" in text for text in caplog.messages))

    run(test())


def test_who_awaits_nobody_misses_nobody(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "m") as master:
            assert master.copies.followers.held.missing() is None

    run(test())
