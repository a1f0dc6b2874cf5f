"""The running shop: one producer, two consumer groups, and the books they are checked against at the end."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from kappamq.cli.serve import LOOPBACK, process_seconds
from kappamq.cli.shared.output import Output, counted
from kappamq.cli.shop.books import Books, Order
from kappamq.cli.shop.sales import SALES_TOPIC, Figures, Sales
from kappamq.client.admin.admin import AsyncAdmin
from kappamq.client.consumer.consumer import AsyncConsumer
from kappamq.client.producer.producer import AsyncProducer
from kappamq.errors import KappaError
from kappamq.local import Local
from kappamq.message import Message, ReceivedMessage

TOPIC = "shop_orders"
SUBSCRIPTIONS = {"billing": "paid", "shipping": "*"}
CATCH_UP_S = 30.0  # how long the departments may take for the last orders
LOOK_UP_MAX = 50  # orders looked up by key at the end
LOOK_UP_S = 10.0
EVENTS_SHOWN = 12
SHOW_S = 0.25
LINE_S = 5.0
FAST_RATE = 2000.0  # orders per second with --once


class Shop:
    def __init__(
        self,
        data: Path,
        out: Output,
        *,
        nameserver_port: int | None = None,
        broker_port: int | None = None,
        listen: str = LOOPBACK,
        properties: Mapping[str, str] | None = None,
        spark: bool = False,
        kept: bool = True,
    ) -> None:
        """`kept`: whether `data` still exists after the shop has closed."""
        self.out = out
        self.spark = spark
        self.kept = kept
        self.figures: Figures | None = None
        self.local = Local.at(
            data, nameserver_port=nameserver_port, broker_port=broker_port, host=listen, properties=properties
        )
        self.books = Books(secrets.token_hex(3))
        self.events: deque[str] = deque(maxlen=EVENTS_SHOWN)
        self.failures: list[str] = []

    async def run(self, orders: int | None, rate: float) -> bool:
        """Sell `orders` (None: until Ctrl-C), then check. Returns whether the check passed."""
        closing = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, closing.set)
        began = time.perf_counter()
        async with self.local as local, AsyncExitStack() as stack:
            self.out.note(
                f"name server {local.nameserver}, broker {local.broker}, data {local.data}, "
                f"ready in {process_seconds():.2f} s"
            )
            admin = await stack.enter_async_context(AsyncAdmin(local.nameserver))
            await admin.create_topic(TOPIC, queues=4)
            for department, tags in SUBSCRIPTIONS.items():
                consumer = AsyncConsumer(
                    local.nameserver,
                    group=f"shop_{department}",
                    topics={TOPIC: tags},
                    listener=self._listener(department),
                    consume_from="first",
                    consume_threads=4,
                )
                await stack.enter_async_context(consumer)
            screen = asyncio.create_task(self._screen(orders))
            figures = asyncio.create_task(self._figures(local, admin, stack)) if self.spark else None
            try:
                async with AsyncProducer(local.nameserver, group="shop_till") as producer:
                    await self._sell(producer, orders, FAST_RATE if orders is not None else rate, closing)
                await self._until(lambda: self.books.complete, CATCH_UP_S)
                await self._look_up(admin)
                if figures is not None:
                    await self._finish_figures(await figures)
            finally:
                screen.cancel()
                await asyncio.gather(screen, return_exceptions=True)
        return self._summary(time.perf_counter() - began)

    async def _figures(self, local: Local, admin: AsyncAdmin, stack: AsyncExitStack) -> Sales:
        """Start the Spark query while the shop sells; Spark is stopped before the broker."""
        await admin.create_topic(SALES_TOPIC, queues=2)
        sales = Sales(local.nameserver, TOPIC, local.data)
        stack.push_async_callback(asyncio.to_thread, sales.stop)
        self.out.note("starting Spark, which takes some seconds ...")
        await asyncio.to_thread(sales.start)
        self.events.append("[magenta]figures[/]   Spark sums up the orders")
        return sales

    async def _finish_figures(self, sales: Sales) -> None:
        self.out.note("the shop is closed; Spark sums up what is left and archives the orders ...")
        self.figures = await asyncio.to_thread(sales.finish)

    async def _sell(self, producer: AsyncProducer, orders: int | None, rate: float, closing: asyncio.Event) -> None:
        number = 0
        began = time.perf_counter()
        while not closing.is_set() and (orders is None or number < orders):
            order = Order(number, self.books.run)
            # Record the order first: a department may receive it before the producer gets its answer.
            self.books.sold[order.key] = order
            try:
                result = await producer.send(Message(TOPIC, order.body(), tags=order.tag, keys=(order.key,)))
            except KappaError as error:
                self.failures.append(f"{order.key} could not be sold: {error}")
                return
            self.events.append(
                f"[bold]sold[/]      {order.key}  {order.text}, {order.tag}  -> queue {result.queue.queue_id}, "
                f"offset {result.queue_offset}"
            )
            number += 1
            pause = began + number / rate - time.perf_counter()
            if pause > 0:
                try:
                    await asyncio.wait_for(closing.wait(), pause)
                except TimeoutError:
                    pass

    def _listener(self, department: str) -> Callable[[ReceivedMessage], Awaitable[None]]:
        style = {"billing": "green", "shipping": "cyan"}[department]

        async def listener(message: ReceivedMessage) -> None:
            order = self.books.saw(department, message.keys, message.body)
            if order is not None:
                self.events.append(f"[{style}]{department:<9}[/] {order.key}  {order.text}")

        return listener

    async def _look_up(self, admin: AsyncAdmin) -> None:
        """Find a sample of the orders by key; the index may lag behind the log."""
        keys = list(self.books.sold)
        for key in keys[:: max(1, len(keys) // LOOK_UP_MAX)][:LOOK_UP_MAX]:
            wanted = self.books.sold[key].body()

            async def found(key: str = key, wanted: bytes = wanted) -> bool:
                return any(message.body == wanted for message in await admin.query_by_key(TOPIC, key))

            self.books.looked_up += 1
            if not await self._until(found, LOOK_UP_S):
                self.books.not_found.append(key)

    @staticmethod
    async def _until(condition: Callable[[], bool | Awaitable[bool]], seconds: float) -> bool:
        end = time.perf_counter() + seconds
        while True:
            result = condition()
            try:
                if result if isinstance(result, bool) else await result:
                    return True
            except KappaError:
                pass
            if time.perf_counter() > end:
                return False
            await asyncio.sleep(0.01)

    async def _screen(self, orders: int | None) -> None:
        if self.out.json:
            return
        console = self.out.console(err=True)
        if not console.is_terminal:
            said = ""
            while True:  # for log files: a line now and then
                await asyncio.sleep(LINE_S)
                if said != self._counts():
                    said = self._counts()
                    self.out.note(said)
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        with Live(console=console, transient=True, auto_refresh=False) as live:
            while True:
                lines = [Text.from_markup(event) for event in self.events]
                live.update(Group(Text(self._counts(), style="bold"), *lines), refresh=True)
                await asyncio.sleep(SHOW_S)

    def _counts(self) -> str:
        books = self.books
        return (
            f"{counted(len(books.sold), 'order')} sold   billing {books.billing.total()} of {len(books.paid)} paid   "
            f"shipping {books.shipping.total()} of {len(books.sold)}   Ctrl-C closes the shop"
        )

    def _summary(self, seconds: float) -> bool:
        books = self.books
        problems = self.failures + books.problems()
        if not books.sold:
            problems.append("nothing was sold")
        told: dict[str, object] = {}
        if self.figures is not None:
            problems += self.figures.problems(len(books.sold))
            told = self._show_figures(self.figures)
        self.out.line(
            f"sold {counted(len(books.sold), 'order')}, {len(books.paid)} of them paid\n"
            f"billing  saw {_seen(books.billing)}\n"
            f"shipping saw {_seen(books.shipping)}\n"
            f"found {books.looked_up - len(books.not_found)} of {counted(books.looked_up, 'order')} by their key\n"
            + (
                "[bold red]the check failed: see the warnings[/]"
                if problems
                else "[bold green]the check passed: every order arrived exactly once[/]"
            ),
            sold=len(books.sold),
            paid=len(books.paid),
            billing=len(books.billing),
            billing_deliveries=books.billing.total(),
            shipping=len(books.shipping),
            shipping_deliveries=books.shipping.total(),
            looked_up=books.looked_up,
            found=books.looked_up - len(books.not_found),
            seconds=round(seconds, 2),
            problems=problems,
            **told,
        )
        for problem in problems:
            self.out.warn(problem)
        return not problems

    def _show_figures(self, figures: Figures) -> dict[str, object]:
        """Print a table for people; return what is added to the books for programs."""
        if self.out.json:
            return {"sales": figures.sales, "archived": figures.archived, "archive": figures.archive}
        rows = [
            {"what": sale.what, "orders": sale.orders, "pieces": sale.pieces, "earned": f"{sale.cents / 100:.2f}"}
            for sale in figures.sales
        ]
        self.out.table(f"by Spark, from the topic {SALES_TOPIC}", ["what", "orders", "pieces", "earned"], rows)
        if self.kept:
            self.out.line(f"archived {counted(figures.archived, 'order')} as Parquet in {figures.archive}")
        else:
            self.out.line(
                f"archived {counted(figures.archived, 'order')} as Parquet; the archive is removed with the shop: --data DIR "
                "(make run DATA=dir) keeps it"
            )
        return {}


def _seen(orders: Counter[str]) -> str:
    return f"{counted(len(orders), 'different order')} in {counted(orders.total(), 'delivery')}"
