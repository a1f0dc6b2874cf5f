"""Pass one message to the listener at once, because an administrator wants to see the result (code 309)."""

from __future__ import annotations

import time
from typing import Any

from kappamq.client.consumer.listening import Listener
from kappamq.client.core.calling import in_thread, is_asynchronous
from kappamq.message import Redeliver
from kappamq.protocol.bodies.admin import ConsumeDirectlyResult


async def consume_directly(listener: Listener, given: Any, *, ordered: bool) -> ConsumeDirectlyResult:
    """Call the listener as its consumer would and return the result; the message is neither acknowledged nor sent back."""
    began = time.monotonic()
    result, remark = "CR_SUCCESS", None
    try:
        said = await (listener(given) if is_asynchronous(listener) else in_thread(listener, given))
        if isinstance(said, Redeliver):
            result = "CR_LATER"
    except Exception as error:
        result, remark = "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
    spent_ms = int((time.monotonic() - began) * 1000)
    return ConsumeDirectlyResult(order=ordered, result=result, remark=remark, spent_ms=spent_ms)
