"""The limit: what uvloop and the kernel's TCP cost when nothing is done with a request.

`python -m benchmarks.echo_server BYTES` listens on a free port, prints {"port": ...} and answers each frame with a constant
frame of BYTES.
"""

from __future__ import annotations

import asyncio
import json
import sys

from kappamq.event_loop import run

_FRAME_HEAD = 8


def reply_of(size: int) -> bytes:
    """A frame of exactly `size` bytes whose header reads as a successful answer."""
    header = b'{"code":0,"flag":1,"language":"PYTHON","opaque":0,"version":479}'
    header = header[:-1] + b" " * (size - _FRAME_HEAD - len(header)) + b"}"
    frame = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    assert len(frame) == size, f"a reply has at least {len(frame)} bytes, not {size}"
    return frame


class Echo(asyncio.Protocol):
    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._rest = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if not self._rest and len(data) == 4 + int.from_bytes(data[:4], "big"):
            self._transport.write(self._reply)
            return
        data = self._rest + data
        position = count = 0
        while len(data) - position >= 4:
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            if end > len(data):
                break
            position, count = end, count + 1
        self._rest = data[position:]
        if count:
            self._transport.write(self._reply * count)


async def serve(reply_bytes: int) -> None:
    reply = reply_of(reply_bytes)
    server = await asyncio.get_running_loop().create_server(lambda: Echo(reply), "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    run(serve(int(sys.argv[1])))
