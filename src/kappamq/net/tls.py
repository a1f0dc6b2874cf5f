"""TLS and plain text on the same port: the first byte of a connection tells which it is."""

from __future__ import annotations

import asyncio
import socket
import ssl

from kappamq.config.net import NetConfig
from kappamq.errors import ConfigError

_HANDSHAKE = 0x16  # content type of a TLS record that opens a connection; no frame of ours can begin with it


def server_context(config: NetConfig) -> ssl.SSLContext | None:
    """What the server shows to TLS clients; None if it offers none."""
    if not config.tls_offered:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    assert config.tls_cert is not None
    assert config.tls_key is not None
    try:
        # Without a password OpenSSL would ask for one on the terminal, and wait.
        context.load_cert_chain(config.tls_cert, config.tls_key, config.tls_key_password or "")
        if config.tls_trust is not None:
            context.load_verify_locations(config.tls_trust)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"TLS certificate {config.tls_cert} with key {config.tls_key} cannot be used: {error}"
        ) from error
    context.verify_mode = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}[
        config.tls_client_auth
    ]
    return context


def outgoing_context(config: NetConfig) -> ssl.SSLContext | None:
    """How a server speaks to other servers; None: in plain text."""
    if not config.tls_outgoing:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Servers know each other by address: who they are is told by who signed their certificates, not by a host name.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if config.tls_outgoing_trust is not None else ssl.CERT_NONE
    try:
        if config.tls_outgoing_trust is not None:
            context.load_verify_locations(config.tls_outgoing_trust)
        if config.tls_cert is not None and config.tls_key is not None:
            context.load_cert_chain(config.tls_cert, config.tls_key, config.tls_key_password or "")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS files for outgoing connections cannot be used: {error}") from error
    return context


async def is_handshake(accepted: socket.socket) -> bool | None:
    """Whether the peer opens with a TLS handshake. The byte that tells stays in the socket; None: the peer has left."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            seen = accepted.recv(1, socket.MSG_PEEK)
            return seen[0] == _HANDSHAKE if seen else None
        except BlockingIOError:
            readable: asyncio.Future[None] = loop.create_future()
            loop.add_reader(accepted.fileno(), _settle, readable)
            try:
                await readable
            finally:
                loop.remove_reader(accepted.fileno())


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
