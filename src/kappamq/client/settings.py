"""From what a caller writes to a checked ClientConfig."""

from __future__ import annotations

import difflib
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from kappamq.config.client import ClientConfig, split_addresses
from kappamq.errors import ConfigError

ENVIRONMENT = "KAPPAMQ_NAMESERVER"

_NAMES = frozenset(item.name for item in fields(ClientConfig))


def client_config(
    nameserver: str | Sequence[str] | None, config: ClientConfig | None, options: Mapping[str, Any]
) -> ClientConfig:
    """Return `config` (or the defaults) with `nameserver` and `options` laid over it.

    Without a name server: that of `config`, else $KAPPAMQ_NAMESERVER, else $NAMESRV_ADDR, else 127.0.0.1:9876.
    """
    for name in options:
        if name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see kappamq.config.client.ClientConfig for all of them"
            raise ConfigError(f"there is no client option {name!r}; {hint}")
    chosen: tuple[str, ...] = ()
    if isinstance(nameserver, str):
        chosen = split_addresses(nameserver)
    elif nameserver is not None:
        chosen = tuple(nameserver)
    if nameserver is not None and not chosen:
        raise ConfigError(f"no name server in {nameserver!r}: give host:port, several of them separated by ';'")
    if not chosen and config is None:
        chosen = split_addresses(os.environ.get(ENVIRONMENT, ""))
    changes = dict(options)
    if chosen:
        changes["nameservers"] = chosen
    return replace(config, **changes) if config is not None else ClientConfig(**changes)


def tls_context(config: ClientConfig) -> ssl.SSLContext | None:
    """Return how to encrypt, or None if `config` does not ask for it."""
    if not config.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=str(config.tls_trust) if config.tls_trust else None)
        if not config.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if config.tls_cert is not None:
            context.load_cert_chain(config.tls_cert, config.tls_key, config.tls_key_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the TLS files cannot be used: {error} (tls_trust={config.tls_trust}, tls_cert={config.tls_cert}, "
            f"tls_key={config.tls_key})"
        ) from error
    return context
