"""Cancels a delayed message at the broker that holds it."""

from __future__ import annotations

import asyncio

from kappamq.client.core import arguments
from kappamq.client.core.core import ClientCore
from kappamq.client.trace.tracing import Tracer
from kappamq.errors import IllegalOperation, KappaError, RequestTimeout
from kappamq.message import SendResult
from kappamq.protocol.headers.client import RecallMessage, RecallMessageResponse
from kappamq.protocol.recall import RecallHandle


async def recall(core: ClientCore, group: str, sent: SendResult | str, limit: float, traces: Tracer | None) -> str:
    """Return the id of the cancelled message. Raises the broker's error, or RequestTimeout."""
    arguments.expect("sent", sent, (SendResult, str), "the SendResult of its send, or its recall_handle")
    text = sent.recall_handle if isinstance(sent, SendResult) else sent
    if not text:
        raise IllegalOperation(
            "the message has no recall handle: it has no delivery time, or its broker does not support recall"
        )
    handle = RecallHandle.decode(text)
    try:
        message_id = await _ask(core, group, text, handle, limit)
    except KappaError:
        if traces is not None:
            traces.recalled(handle.topic, handle.key, success=False)
        raise
    if traces is not None:
        traces.recalled(handle.topic, message_id, success=True)
    return message_id


async def _ask(core: ClientCore, group: str, text: str, handle: RecallHandle, limit: float) -> str:
    header = RecallMessage(producer_group=group, topic=handle.topic, recall_handle=text)
    try:
        async with asyncio.timeout(limit):
            answer = await core.ask_master(handle.topic, handle.broker, header, timeout=limit, again=False)
    except TimeoutError as error:
        if isinstance(error, RequestTimeout):
            raise
        raise RequestTimeout(f"broker {handle.broker!r} could not be reached within {limit:g} s") from None
    return RecallMessageResponse.decode(answer.ext).message_id
