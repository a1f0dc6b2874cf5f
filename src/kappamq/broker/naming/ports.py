"""The two ports a broker listens on: the one it is asked for and, for RocketMQ's clients, the one two below it."""

from __future__ import annotations

import socket

from kappamq.errors import ConfigError
from kappamq.net.serving.server import bind

_TRIES = 64


def bind_pair(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Listening sockets for `port` and the one two below it. Raises ConfigError, whose text says what to do."""
    first = bind(host, port, backlog)
    try:
        return [first, bind(host, port - 2, backlog)]
    except BaseException:
        first.close()
        raise


def bind_free_pair(host: str, backlog: int) -> list[socket.socket]:
    """The same for any port that is free together with the one two below it."""
    for _ in range(_TRIES):
        first = bind(host, 0, backlog)
        try:
            return [first, bind(host, int(first.getsockname()[1]) - 2, backlog)]
        except (ConfigError, OverflowError):
            first.close()
        except BaseException:
            first.close()
            raise
    raise OSError(f"no two free ports (n and n-2) were found in {_TRIES} tries")


def close_all(listeners: list[socket.socket]) -> None:
    for listener in listeners:
        listener.close()
