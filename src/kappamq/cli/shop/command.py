"""`kappamq shop`: a small demo shop on its own broker. `make run` starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kappamq.cli.serve import LOOPBACK, prepare_process
from kappamq.cli.shared.exits import Exit
from kappamq.cli.shared.options import ListenOption, OutputOption, spoken
from kappamq.cli.shared.output import Format, Output


@spoken
def shop(
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Keep the data in this directory. Default: nothing is kept.", show_default=False),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Sell a number of orders, check the books, and exit.")] = False,
    orders: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many with --once.")] = 200,
    rate: Annotated[float, typer.Option(min=0.1, max=10_000, help="Orders per second.")] = 5.0,
    spark: Annotated[
        bool, typer.Option("--spark", help="Also sum up the orders with a query on Spark, and archive them.")
    ] = False,
    nameserver_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="0: any free one. Default: 9876, or a free one.", show_default=False),
    ] = None,
    broker_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_534, help="0: any free one. Default: 10911, or a free one.", show_default=False),
    ] = None,
    listen: ListenOption = LOOPBACK,
    output: OutputOption = Format.TEXT,
) -> None:
    """Run a small demo shop on its own broker: orders, billing, shipping. Without --data nothing is kept."""
    import tempfile

    from kappamq.cli.shared.options import data_directory
    from kappamq.cli.shop.floor import Shop
    from kappamq.event_loop import run

    out = Output(output)
    if spark:
        from kappamq.spark.engine import check_installed

        check_installed()
    prepare_process(verbose=False)
    with tempfile.TemporaryDirectory(prefix="kappamq-shop-") as temporary:
        root = Path(temporary) if data is None else data_directory(data)
        floor = Shop(
            root,
            out,
            nameserver_port=nameserver_port,
            broker_port=broker_port,
            listen=listen,
            spark=spark,
            kept=data is not None,
        )
        books_are_right = run(floor.run(orders if once else None, rate))
    if not books_are_right:
        raise typer.Exit(int(Exit.FAILED))
