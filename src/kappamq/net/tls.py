"""TLS and plain text on the same port: the first byte of a connection tells which it is."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from kappamq.config.net import NetConfig
from kappamq.errors import ConfigError

log = logging.getLogger(__name__)

_HANDSHAKE = 0x16  # content type of a TLS record that opens a connection; no frame of ours can begin with it
_SNIFFING_MAX = 4096


def server_context(config: NetConfig) -> ssl.SSLContext | None:
    """What the server shows to TLS clients; None if it offers none."""
    if not config.tls_offered:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    assert config.tls_cert is not None
    assert config.tls_key is not None
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key, config.tls_key_password)
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


async def accept_both(
    listener: socket.socket, factory: Callable[[], asyncio.Protocol], context: ssl.SSLContext, config: NetConfig
) -> None:
    """Accept for ever; each connection is looked at before it is made a plain or a TLS one."""
    loop = asyncio.get_running_loop()
    sniffing: set[asyncio.Task[None]] = set()
    try:
        while True:
            try:
                accepted, _address = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("accept failed: %s", error)
                await asyncio.sleep(0.1)  # out of descriptors: let some go first
                continue
            accepted.setblocking(False)
            if len(sniffing) >= _SNIFFING_MAX:
                accepted.close()
                continue
            task = asyncio.create_task(_adopt(accepted, factory, context, config))
            sniffing.add(task)
            task.add_done_callback(sniffing.discard)
    finally:
        for task in sniffing:
            task.cancel()


async def _adopt(
    accepted: socket.socket, factory: Callable[[], asyncio.Protocol], context: ssl.SSLContext, config: NetConfig
) -> None:
    loop = asyncio.get_running_loop()
    try:
        first = await asyncio.wait_for(_first_byte(accepted), config.first_frame_s)
        encrypted = first == _HANDSHAKE
        if first is None or (config.tls_mode == "enforcing" and not encrypted):
            accepted.close()
            return
        await loop.connect_accepted_socket(
            factory,
            accepted,
            ssl=context if encrypted else None,
            ssl_handshake_timeout=config.first_frame_s if encrypted else None,
        )
    except (OSError, ssl.SSLError, TimeoutError, asyncio.CancelledError) as error:
        log.info("a connection did not get through its handshake: %s", error or type(error).__name__)
        accepted.close()


async def _first_byte(accepted: socket.socket) -> int | None:
    """The first byte, left in the socket; None if the peer said nothing and left."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            seen = accepted.recv(1, socket.MSG_PEEK)
            return seen[0] if seen else None
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
