"""The ports a broker listens on: the one it is asked for, for RocketMQ's clients the one two below it, and for copies the one above it."""

from __future__ import annotations

import socket

from kappamq.errors import ConfigError
from kappamq.net.serving.server import bind

OFFSETS = (0, -2, 1)
_TRIES = 64


def bind_ports(host: str, port: int, backlog: int, copies: int = 0) -> list[socket.socket]:
    """Listening sockets for `port`, the one two below it, and the one for copies (by default the one above it), in this order. All or
    none. Raises ConfigError, whose text says what to do."""
    return _others([bind(host, port, backlog)], host, port, backlog, copies)


def bind_free_ports(host: str, backlog: int, copies: int = 0) -> list[socket.socket]:
    """The same for any port that is free together with the others."""
    for _ in range(_TRIES):
        first = bind(host, 0, backlog)
        port = int(first.getsockname()[1])
        try:
            return _others([first], host, port, backlog, copies)
        except (ConfigError, OverflowError):
            continue
    raise OSError(f"no free port (n, with n-2 and n+1) was found in {_TRIES} tries")


def _others(bound: list[socket.socket], host: str, port: int, backlog: int, copies: int) -> list[socket.socket]:
    try:
        for place in (port - 2, copies or port + 1):
            bound.append(bind(host, place, backlog))
    except BaseException:
        close_all(bound)
        raise
    return bound


def close_all(listeners: list[socket.socket]) -> None:
    for listener in listeners:
        listener.close()
