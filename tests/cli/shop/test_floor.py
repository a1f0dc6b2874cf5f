from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kappamq.cli.shared.output import Format, Output
from kappamq.cli.shop.floor import Shop
from kappamq.cli.shop.sales import Figures
from kappamq.event_loop import run
from tests.cli.conftest import SMALL


def test_a_delivery_twice_is_noticed_in_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A shop that always says "right" would prove nothing: cheat, and see that it says so."""
    shop = Shop(tmp_path, Output(Format.JSON), nameserver_port=0, broker_port=0, properties=SMALL)
    honest = shop._listener

    def twice(department: str):  # type: ignore[no-untyped-def]
        listener = honest(department)

        async def cheat(message):  # type: ignore[no-untyped-def]
            await listener(message)
            await listener(message)

        return cheat

    shop._listener = twice  # type: ignore[method-assign]
    assert run(shop.run(5, 100.0)) is False
    assert "saw more than once" in capsys.readouterr().out


def test_waiting_ends() -> None:
    async def never() -> bool:
        return False

    assert asyncio.run(Shop._until(never, 0.05)) is False
    assert asyncio.run(Shop._until(lambda: True, 0.0)) is True


@pytest.mark.parametrize(("kept", "told"), [(True, "in archive"), (False, "removed with the shop: --data DIR")])
def test_an_archive_that_does_not_stay_is_not_named(
    kept: bool, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path, Output(Format.TEXT), nameserver_port=0, broker_port=0, properties=SMALL, kept=kept)
    shop._show_figures(Figures((), 3, Path("archive")))
    shown = " ".join(capsys.readouterr().out.split())
    assert "archived 3 orders as Parquet" in shown
    assert told in shown
