"""Ports for brokers that are stopped and started again, or that others are told of before they start."""

from __future__ import annotations

import random
import socket

from kappamq.broker.naming.ports import bind_ports, close_all
from kappamq.errors import ConfigError

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Each is free with those that a broker needs beside it. They are below those that the system gives to outgoing connections, so
    nobody takes them meanwhile; and random ones that no test repeats, for other tests run at the same time."""
    held: dict[int, list[socket.socket]] = {}
    try:
        while len(held) < count:
            port = random.SystemRandom().randrange(12_000, 32_000)
            try:
                held[port] = bind_ports(HOST, port, 1)
            except ConfigError:
                continue
    finally:
        for listeners in held.values():
            close_all(listeners)
    return list(held)
