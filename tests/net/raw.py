"""Connections that say whatever they like."""

from __future__ import annotations

import asyncio
import ssl


async def say(port: int, data: bytes, *, tls: ssl.SSLContext | None = None, wait: float = 10.0) -> bytes:
    """Send bytes on a connection of its own; what comes back until the other side closes, however rudely."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), wait)
    except ConnectionError:
        return b""
    finally:
        writer.close()
