"""A connection for one thread at a time, which sends a request and waits for its answer itself: no event loop has to wake up for it.

Nothing waits for ever, and what is received is bounded as on a `Channel`. After any error the line is broken.
"""

from __future__ import annotations

import math
import socket
import struct
import time
from typing import Final, Self

from kappamq.errors import FrameTooLarge, NotConnected, ProtocolError, RequestTimeout
from kappamq.net.channel import split_address
from kappamq.protocol.frame import FRAME_BYTES_MAX, Frame, FrameDecoder, next_opaque

IDLE_S: Final = 60.0
"""After this long without a request a line is not used again: servers close what is idle for two minutes."""

FRESH_S: Final = 0.02
"""A connection that has answered a moment ago is not asked whether it is still there."""
LATE_S: Final = 0.01
"""If sending takes no longer than this the time limit stays as it is."""
_TIMEVAL: Final = struct.Struct("@ll")


class Line:
    def __init__(self, address: str, connection: socket.socket) -> None:
        self.address = address
        self._socket = connection
        self._decoder = FrameDecoder()
        self._used = time.monotonic()
        self._broken = False
        self._limit_ms = 0

    @classmethod
    def open(cls, address: str, timeout: float) -> Self:
        """Connect. Raises NotConnected."""
        host, port = split_address(address)
        try:
            connection = socket.create_connection((host, port), timeout=timeout)
        except OSError as error:
            raise NotConnected(
                f"no connection to {address}: {error.strerror or error or 'no answer in time'}"
            ) from error
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(address, connection)

    @property
    def is_usable(self) -> bool:
        """Return whether the next request may leave here: the server has not closed the connection, or sent anything unrequested."""
        idle = time.monotonic() - self._used
        if self._broken or idle > IDLE_S:
            return False
        if idle < FRESH_S:
            return True
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def ask(self, request: Frame, timeout: float) -> Frame:
        """Send a request and return its answer, whatever its code.

        Raises RequestTimeout or NotConnected, and then it is not known whether the server has seen the request; FrameTooLarge and
        ProtocolError of a request that cannot be encoded before anything is sent."""
        opaque = request.opaque = next_opaque()
        data = request.encode()
        if len(data) > FRAME_BYTES_MAX:
            raise FrameTooLarge(f"the request has {len(data)} bytes, the limit is {FRAME_BYTES_MAX}: send less at once")
        deadline = time.monotonic() + timeout
        try:
            self._wait_at_most(timeout)
            if (sent := self._socket.send(data)) < len(data) or time.monotonic() > deadline - timeout + LATE_S:
                self._send_rest(memoryview(data)[sent:], deadline)
            while True:
                count = self._socket.recv_into(self._decoder.room())
                if not count:
                    raise NotConnected(f"the connection to {self.address} was closed by the other side")
                for frame in self._decoder.received(count):
                    if frame.is_response and frame.opaque == opaque:
                        self._used = time.monotonic()
                        return frame
                self._wait_until(deadline)
        except BlockingIOError:
            self.close()
            raise RequestTimeout(f"{self.address} did not answer within {timeout:.1f} s") from None
        except ProtocolError as error:
            self.close()
            raise NotConnected(f"{self.address} sent bytes that are not a frame ({error})") from error
        except NotConnected:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise NotConnected(f"the connection to {self.address} was closed: {error.strerror or error}") from error
        except BaseException:
            self.close()  # its answer would be taken for that of the next request
            raise

    def _send_rest(self, data: memoryview, deadline: float) -> None:
        """Send to a server that reads slowly: not with `sendall`, whose time limit starts again with each part."""
        self._wait_until(deadline)
        while data:
            data = data[self._socket.send(data) :]
            self._wait_until(deadline)

    def _wait_until(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise BlockingIOError
        self._wait_at_most(left)

    def _wait_at_most(self, seconds: float) -> None:
        """Set the time limit of each system call. The kernel's time limit costs less than that of a Python socket, which polls before it
        reads."""
        milliseconds = max(1, math.ceil(seconds * 1000))
        if milliseconds != self._limit_ms:
            limit = _TIMEVAL.pack(milliseconds // 1000, milliseconds % 1000 * 1000)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            self._limit_ms = milliseconds

    def close(self) -> None:
        self._broken = True
        self._socket.close()
