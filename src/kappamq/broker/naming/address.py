"""Under which address clients find this broker.

An explicit address wins; its port, too, where a container or a router maps ours to another one. Otherwise it is the local end of
the connection to the name server: a client that can reach the name server's machine can usually reach us there. Registered over
loopback, the name server shows each client the address by which that client reached the name server (see nameserver/routes.py),
since then we live on the same machine.

Offset ids are not rewritten on their way: a client that looks a message up by its id, on whichever machine, connects to the address
in it. Loopback does not work there, so the machine's outward address is used instead, if we can be reached at it.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from collections.abc import Callable

from kappamq.errors import ConfigError, ProtocolError
from kappamq.protocol import address

LOOPBACK = "127.0.0.1"
_EVERYWHERE = ("", "0.0.0.0", "::")
_FAR_AWAY = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses that no machine has: reserved for documentation."""
_BRIDGES = ("docker", "br-", "veth", "virbr", "cni", "flannel")
_IFREQ = struct.Struct("16s24x")  # netdevice(7): struct ifreq
_FLAGS = struct.Struct("=h")
_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8


class Address:
    def __init__(
        self,
        advertise: str | None,
        port: int,
        listen_host: str = LOOPBACK,
        learnt: Callable[[bytes], None] = lambda packed: None,
    ) -> None:
        """`learnt`: called with `packed` each time our address became known better."""
        host, advertised_port = _split(advertise) if advertise else (None, None)
        self._host = _resolved(host) if host else None
        self._seen: str | None = None
        self._port = advertised_port or port
        self._listen_host = listen_host
        self._learnt = learnt

    def learn(self, local_ip: str | None) -> None:
        """Name servers see us under this ip; None: none of them does."""
        if local_ip is not None:
            self._seen = local_ip
        self._learnt(self.packed)

    def of(self, local_ip: str | None) -> str:
        """Our "ip:port" for a name server, given our end of the connection to it; None: for no particular one."""
        return address.join(self._host or local_ip or self.ip, self._port)

    @property
    def ip(self) -> str:
        return self._host or self._seen or LOOPBACK

    @property
    def packed(self) -> bytes:
        """As records and offset ids hold it."""
        ip = self.ip
        if self._host is None and address.is_loopback(ip) and self._listen_host in _EVERYWHERE:
            ip = outward_ip() or ip
        return address.pack_ip(ip) + self._port.to_bytes(4, "big")


def outward_ip() -> str | None:
    """Return the ip that this machine uses for outgoing connections; None if it has none. Nothing is sent for this.

    Without a default route it is the address of a network card.
    """
    for family, far_away in _FAR_AWAY:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far_away, 9))
            return str(probe.getsockname()[0])
    return next(iter(card_ips()), None)


def card_ips() -> list[str]:
    """IPv4 addresses of the network cards that are up, real ones before the bridges of containers."""
    found: list[tuple[bool, int, str]] = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for number, name in socket.if_nameindex():
            request = _IFREQ.pack(name.encode())
            with contextlib.suppress(OSError):
                (flags,) = _FLAGS.unpack_from(fcntl.ioctl(asking, _SIOCGIFFLAGS, request), 16)
                if flags & _IFF_LOOPBACK or not flags & _IFF_UP:
                    continue
                ip = socket.inet_ntoa(fcntl.ioctl(asking, _SIOCGIFADDR, request)[20:24])
                found.append((name.startswith(_BRIDGES), number, ip))
    return [ip for _bridge, _number, ip in sorted(found)]


def _split(advertise: str) -> tuple[str, int | None]:
    """Host and, if it is given, port. An IPv6 address with a port is in brackets."""
    if not (advertise.count(":") == 1 or "]:" in advertise):
        return advertise.removeprefix("[").removesuffix("]"), None
    try:
        host, port = address.split(advertise)
    except ProtocolError as error:
        raise ConfigError(f"the address to advertise is host or host:port: {error}") from error
    if port < 3:
        raise ConfigError(
            f"the port to advertise must be at least 3, because port-2 is used as well; got {advertise!r}"
        )
    return host, port


def _resolved(host: str) -> str:
    """An ip: offset ids hold four or sixteen bytes, no names."""
    try:
        _family, _kind, _protocol, _name, place = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except (OSError, ValueError) as error:  # ValueError: a host that no resolver takes
        raise ConfigError(f"the address to advertise, {host!r}, cannot be resolved: {error}") from error
    return str(place[0])
