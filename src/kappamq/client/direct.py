"""One message to the listener, now, because an administrator wants to see what it does with it (code 309)."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from kappamq.client.listening import Listener, is_asynchronous
from kappamq.message import Redeliver
from kappamq.protocol.bodies_admin import ConsumeDirectlyResult


async def consume_directly(listener: Listener, given: Any, *, ordered: bool) -> ConsumeDirectlyResult:
    """Call the listener as its consumer would and say how it went; nothing is acknowledged or given back."""
    began = time.monotonic()
    result, remark = "CR_SUCCESS", None
    try:
        said = await (listener(given) if is_asynchronous(listener) else _in_thread(listener, given))
        if isinstance(said, Redeliver):
            result = "CR_LATER"
    except Exception as error:
        result, remark = "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
    spent_ms = int((time.monotonic() - began) * 1000)
    return ConsumeDirectlyResult(order=ordered, result=result, remark=remark, spent_ms=spent_ms)


def _in_thread(listener: Listener, given: Any) -> asyncio.Future[Any]:
    """A thread of its own, as a daemon: one that hangs keeps nobody waiting, not even the end of the program."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(said: Any, error: Exception | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(said)
        else:
            answer.set_exception(error)

    def run() -> None:
        said, failure = None, None
        try:
            said = listener(given)
        except Exception as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, said, failure)
        except RuntimeError:
            pass  # the loop is gone, and with it whoever asked

    threading.Thread(target=run, name="kappamq-direct", daemon=True).start()
    return answer
