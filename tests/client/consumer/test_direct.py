from __future__ import annotations

import threading
from typing import Any

import pytest

from kappamq.client.consumer.direct import consume_directly
from kappamq.message import RETRY
from tests.client.loop import on_loop
from tests.client.messages import message


def spill(message: Any) -> None:
    raise ValueError("spilled")


@pytest.mark.parametrize("kind", ["thread", "task"])
@pytest.mark.parametrize(
    ("listener", "result", "remark"),
    [
        (lambda message: None, "CR_SUCCESS", None),
        (lambda message: RETRY, "CR_LATER", None),
        (spill, "CR_THROW_EXCEPTION", "ValueError: spilled"),
    ],
)
@on_loop
async def test_it_says_how_the_listener_did(kind: str, listener: Any, result: str, remark: str | None) -> None:
    threads = []

    def noted(given: Any) -> Any:
        threads.append(threading.current_thread())
        return listener(given)

    async def asynchronous(given: Any) -> Any:
        return noted(given)

    told = await consume_directly(noted if kind == "thread" else asynchronous, message(1), ordered=True)
    assert (told.result, told.remark, told.order) == (result, remark, True)
    assert (threads[0] is threading.main_thread()) == (kind == "task")
