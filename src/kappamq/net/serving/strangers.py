"""Peers that speak another protocol. Each peer and reason is logged once, in bounded memory."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final

from kappamq.net.serving.opening import Kind, Opening

log = logging.getLogger(__name__)

REMEMBERED_MAX: Final = 1024

_GRPC = (
    "it is probably a gRPC client (RocketMQ's 5.x clients), which this server does not serve. Use a client that speaks the "
    "remoting protocol, for example Java's rocketmq-client or Go's rocketmq-client-go/v2; the README lists those that work"
)


class Strangers:
    """Logs why a peer was refused; once per address and reason, until many others have been logged."""

    def __init__(self) -> None:
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()

    def tell(self, ip: str, what: str, reason: str) -> None:
        """Log that `ip` was refused. `what` names the kind of problem, `reason` is the sentence to log."""
        key = (ip, what)
        if key in self._told:
            self._told.move_to_end(key)
            log.debug("refused %s: %s", ip, reason)
            return
        self._told[key] = None
        if len(self._told) > REMEMBERED_MAX:
            self._told.popitem(last=False)
        log.warning("refused %s: %s", ip, reason)


def not_served(opening: Opening, *, tls_offered: bool) -> str | None:
    """Return why a connection that opens like this cannot be served; None if it can."""
    if opening.kind is Kind.HTTP_2:
        return f"it speaks HTTP/2: {_GRPC}"
    if opening.kind is Kind.HTTP_1:
        return "it speaks HTTP, but this port is for RocketMQ clients (the remoting protocol)"
    if opening.kind is Kind.TLS and b"h2" in opening.inside:
        return f"it offers HTTP/2 inside TLS (ALPN h2): {_GRPC}"
    if opening.kind is Kind.TLS and not tls_offered:
        return (
            "it speaks TLS, but this server has no certificate: disable TLS in the client, or configure the server's "
            "tls.server.certPath and tls.server.keyPath"
        )
    return None
