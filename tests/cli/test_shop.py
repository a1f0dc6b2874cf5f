from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import run_kappamq


def test_the_books_are_right_at_the_end(tmp_path: Path) -> None:
    arguments = [
        "shop",
        "--once",
        "--orders",
        "40",
        "--nameserver-port",
        "0",
        "--broker-port",
        "0",
        "--data",
        str(tmp_path),
    ]
    ran = run_kappamq(*arguments, "-o", "json")
    assert ran.exit_code == 0, ran
    (told,) = ran.json
    assert (told["sold"], told["shipping"], told["shipping_deliveries"]) == (40, 40, 40)
    assert told["billing"] == told["billing_deliveries"] == told["paid"] == 27
    assert told["found"] == told["looked_up"] == 40
    assert told["problems"] == []

    # Again in the same directory: the orders of the first day are not delivered or counted again.
    again = run_kappamq(*arguments)
    assert again.exit_code == 0, again
    assert "the books are right" in again.out
