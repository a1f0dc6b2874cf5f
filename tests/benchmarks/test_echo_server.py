"""The echo answers each frame once, however the bytes arrive."""

from __future__ import annotations

import pytest

from benchmarks.echo_server import Echo, reply_of
from kappamq.protocol.frame import Frame, decode


class Written:
    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


@pytest.mark.parametrize("size", [100, 302])
def test_a_reply_is_a_frame_of_that_size(size: int) -> None:
    assert len(reply_of(size)) == size
    assert decode(reply_of(size)).code == 0


@pytest.mark.parametrize("step", [1, 7, 64, 10_000])
def test_one_reply_for_each_frame(step: int) -> None:
    written = Written()
    echo = Echo(reply_of(100))
    echo.connection_made(written)  # type: ignore[arg-type]
    data = b"".join(Frame(code=310, body=bytes(n)).encode() for n in range(20))
    for start in range(0, len(data), step):
        echo.data_received(data[start : start + step])
    assert written.data == reply_of(100) * 20
