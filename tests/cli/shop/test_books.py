from __future__ import annotations

from kappamq.cli.shop.books import Books, Order


def sold(count: int) -> Books:
    books = Books("r1")
    for number in range(count):
        order = Order(number, "r1")
        books.sold[order.key] = order
    return books


def deliver_everything(books: Books) -> None:
    for order in list(books.sold.values()):
        books.saw("shipping", (order.key,), order.body())
        if order.tag == "paid":
            books.saw("billing", (order.key,), order.body())


def test_right_books() -> None:
    books = sold(10)
    assert not books.complete
    deliver_everything(books)
    assert books.complete
    assert books.problems() == []
    assert 0 < len(books.paid) < 10


def test_every_way_to_be_wrong_is_noticed() -> None:
    books = sold(5)
    assert [text.split(",")[0] for text in books.problems()] == [
        "billing never saw 4 orders",
        "shipping never saw 5 orders",
    ]
    deliver_everything(books)
    first = books.sold["order-r1-0"]
    books.saw("shipping", (first.key,), first.body())
    assert books.problems() == ["shipping saw more than once 1 order, for example order-r1-0"]
    unpaid = books.sold["order-r1-2"]
    books.saw("billing", (unpaid.key,), unpaid.body())
    books.not_found.append("order-r1-3")
    books.saw("shipping", ("order-r1-99",), b"?")
    text = "\n".join(books.problems())
    assert "billing should not have seen 1 order, for example order-r1-2" in text
    assert "order-r1-3 was not found by its key" in text
    assert "shipping got order-r1-99 with a body that was never sent" in text


def test_orders_of_an_earlier_run_do_not_count() -> None:
    books = sold(1)
    assert books.saw("shipping", ("order-r0-0",), b"") is None
    assert books.saw("shipping", (), b"") is None
    assert not books.shipping
