"""Under which address clients find this broker.

An explicit address wins. Otherwise it is the local end of the connection to the name server: whoever can reach the name
server's machine can usually reach us there. Registered over loopback, the name server shows each client the address by which
that client reached the name server (see nameserver/routes.py), since then we live on the same machine.
"""

from __future__ import annotations

import socket

from kappamq.errors import ConfigError
from kappamq.protocol import address

LOOPBACK = "127.0.0.1"


class Address:
    def __init__(self, advertise: str | None, port: int) -> None:
        self._host = _resolved(advertise) if advertise else None
        self._seen: str | None = None
        self._port = port

    def of(self, local_ip: str | None) -> str:
        """Our "ip:port", given the local ip of a connection to a name server."""
        if local_ip is not None:
            self._seen = local_ip
        return address.join(self.ip, self._port)

    @property
    def ip(self) -> str:
        return self._host or self._seen or LOOPBACK

    @property
    def packed(self) -> bytes:
        """As records and offset ids hold it."""
        return address.pack_ip(self.ip) + self._port.to_bytes(4, "big")


def _resolved(host: str) -> str:
    """An ip: offset ids hold four or sixteen bytes, no names."""
    host = host.removeprefix("[").removesuffix("]")
    try:
        _family, _kind, _protocol, _name, place = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(f"the address to advertise, {host!r}, cannot be resolved: {error}") from error
    return str(place[0])
