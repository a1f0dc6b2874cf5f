"""TLS contexts of servers, for their clients and for connections between servers. `opening` tells TLS from plain text."""

from __future__ import annotations

import asyncio
import ssl

from kappamq.config.net import NetConfig
from kappamq.errors import ConfigError


def server_context(config: NetConfig) -> ssl.SSLContext | None:
    """Return the context for TLS clients; None if TLS is not configured."""
    if not config.tls_offered:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    assert config.tls_cert is not None
    assert config.tls_key is not None
    try:
        # Without a password OpenSSL would prompt for one on the terminal, and wait.
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
    """Return the context for connections to other servers; None for plain text."""
    if not config.tls_outgoing:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Servers connect to each other by address, so the CA is verified, but not the host name.
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


async def offers_tls(host: str, port: int, timeout: float) -> bool:
    """Return whether a server answers a TLS handshake. Verifies no certificate and sends nothing inside."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # it refuses us, but with a TLS alert
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
