"""Choosing ports to listen on, and the addresses to reach them at.

None takes the default port, or any free one if that is in use; 0 takes any free one; a number takes exactly that one, and it is
an error if another program uses it.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kappamq.errors import ConfigError

NAMESERVER_PORT = 9876
BROKER_PORT = 10911
# A broker also listens on port-2, and on port+1 for copies.
BROKER_PORT_OFFSETS = (-2, 0, 1)
STRIDE = 10  # between the ports of several brokers
_PROBES_MAX = 200
_QUIET_FROM = 20_000  # most well-known ports are below
_FIRST_OUTGOING = 32_768  # Linux's default if it is not configured; other systems begin higher
_STARTS_MAX = 20

T = TypeVar("T")


def choose_port(what: str, host: str, wanted: int | None, usual: int, offsets: tuple[int, ...]) -> int:
    """Return a port whose neighbours at `offsets` are free as well. For `wanted` see the module docstring."""
    if wanted:
        lowest, highest = 1 - min(offsets), 65_535 - max(offsets)
        if not lowest <= wanted <= highest:
            also = " and ".join(f"port{offset:+d}" for offset in offsets if offset)
            why = f" (a {what} needs {also}, too)" if also else ""
            raise ConfigError(
                f"the port of a {what} must be 0 (any free one) or {lowest}..{highest}{why}; got {wanted}"
            )
        taken = [wanted + offset for offset in offsets if not is_free(host, wanted + offset)]
        if taken:
            first = wanted if wanted in taken else taken[0]
            also = f" (a {what} on {wanted} needs it, too)" if first != wanted else ""
            raise ConfigError(
                f"port {first} is in use by another program{also}; choose another, or 0 for any free one; "
                f"`ss -ltnp` shows which"
            )
        return wanted
    if wanted is None and all(is_free(host, usual + offset) for offset in offsets):
        return usual
    quiet = _quiet_ports()
    for probe in range(_PROBES_MAX):
        port = random.choice(quiet) if quiet and probe < _PROBES_MAX // 2 else _any_free(host)
        if 3 <= port < 65_535 and all(is_free(host, port + offset) for offset in offsets):
            return port
    raise ConfigError(f"found no free port for the {what} in {_PROBES_MAX} attempts")


def choose_ports(
    what: str, host: str, wanted: int | None, usual: int, offsets: tuple[int, ...], count: int
) -> list[int]:
    """Choose as above for several servers that start together: `STRIDE` apart if that is possible, and none in another's way."""
    found: list[int] = []
    taken: set[int] = set()
    for number in range(count):
        for _ in range(_STARTS_MAX):
            ahead = STRIDE * number
            port = choose_port(what, host, wanted + ahead if wanted else wanted, usual + ahead, offsets)
            needed = {port + offset for offset in offsets}
            if not needed & taken:
                break
        else:
            raise ConfigError(f"found no {count} free ports, each with its neighbours, for the {what}s")
        found.append(port)
        taken |= needed
    return found


async def start_on_port(
    what: str,
    host: str,
    wanted: int | None,
    usual: int,
    offsets: tuple[int, ...],
    start: Callable[[int], Awaitable[T]],
) -> T:
    """Call `start` with a port chosen as above; choose again if another program took it between choosing and listening."""
    for _ in range(_STARTS_MAX):
        port = choose_port(what, host, wanted, usual, offsets)
        try:
            return await start(port)
        except (OSError, ConfigError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if wanted or not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
                raise
    raise ConfigError(
        f"could not listen on a free port for the {what} in {_STARTS_MAX} attempts: other programs took each of them first; try again"
    )


def is_free(host: str, port: int) -> bool:
    try:
        _listening(host, port).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return True


def _quiet_ports() -> range:
    """Return ports that the system does not use for outgoing connections: others could be in use when a server restarts."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            first_outgoing = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        first_outgoing = _FIRST_OUTGOING
    return range(_QUIET_FROM, first_outgoing - 2)


def _any_free(host: str) -> int:
    try:
        with _listening(host, 0) as probe:
            return int(probe.getsockname()[1])
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror or error}") from error


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )[0]
    except socket.gaierror as error:
        raise ConfigError(f"{host} is not an address of this machine: {error.strerror}") from error
    found = socket.socket(family, kind, protocol)
    try:
        # As servers do: a port with connections in TIME_WAIT counts as free.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(1)
    except BaseException:
        found.close()
        raise
    return found


def reachable(address: str) -> str:
    """Return the address to connect to from this machine, given the one that a server listens on."""
    host, _, port = address.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}.get(host, host)
    return f"{host}:{port}"
