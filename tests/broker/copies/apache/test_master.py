"""What is asked of a master besides its log. A real one of Apache is asked in tests/interop/test_copies_exchange.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.broker.copies.apache.adopting import Adopting
from kappamq.broker.copies.apache.master import ApacheMaster
from kappamq.errors import NotConnected
from kappamq.replication.greeting import Refusal
from tests.broker.copies.copying import copies_port
from tests.broker.running import run, running


def test_a_master_of_ours_is_not_taken_for_one_of_apache(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "m") as master:
            adopting = Adopting(master.metadata, master.tables, master.events, master.workers.read)
            place = copies_port(master)
            asking = ApacheMaster(adopting, lambda: None)
            assert not await asking.is_one(place)
            with pytest.raises(Refusal, match=r"copies\.protocol must be kappamq"):
                await asking.greet(place, 0)
            asking.leave()
            elsewhere = ApacheMaster(adopting, lambda: "127.0.0.1:1")
            with pytest.raises(NotConnected, match=r"127\.0\.0\.1:1"):
                await elsewhere.is_one(place)

    run(test())
