"""Turns a caller's arguments into a validated ClientConfig."""

from __future__ import annotations

import difflib
import inspect
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from kappamq.config.client import ClientConfig, split_addresses
from kappamq.errors import ConfigError

_NAMES = frozenset(item.name for item in fields(ClientConfig))
# Arguments of the clients themselves; a misspelt one arrives among the options.
_ARGUMENTS = frozenset(
    {
        *("nameserver", "group", "config", "selection", "check", "listener"),
        *("topics", "ordered", "broadcasting", "consume_from", "balance", "idle_timeout", "auto_commit"),
    }
)


def client_config(
    nameserver: str | Sequence[str] | None,
    config: ClientConfig | None,
    options: Mapping[str, Any],
    client: type | None = None,
) -> ClientConfig:
    """Return `config` (or the defaults) overridden by `nameserver` and `options`; `client` is the class that takes them.

    Without `nameserver`, that of `config` is used: by default $KAPPAMQ_NAMESERVER, else $NAMESRV_ADDR, else
    127.0.0.1:9876.
    """
    for name in options:
        if name not in _NAMES:
            raise ConfigError(f"unknown client option {name!r}; {_hint(name, _arguments_of(client))}")
    if config is not None and not isinstance(config, ClientConfig):
        raise ConfigError(f"config must be a ClientConfig; got {config!r}")
    chosen: tuple[str, ...] = ()
    if isinstance(nameserver, str):
        chosen = split_addresses(nameserver)
    elif nameserver is not None:
        if isinstance(nameserver, bytes) or not isinstance(nameserver, Iterable):
            raise ConfigError(f"nameserver must be host:port, or several of them; got {nameserver!r}")
        chosen = tuple(nameserver)
    if nameserver is not None and not chosen:
        raise ConfigError(f"no name server in {nameserver!r}: give host:port, several of them separated by ';'")
    changes = dict(options)
    if chosen:
        changes["nameservers"] = chosen
    return replace(config, **changes) if config is not None else ClientConfig(**changes)


def _arguments_of(client: type | None) -> frozenset[str]:
    """Return those of _ARGUMENTS that a client class takes, including its base classes."""
    kinds = [kind for kind in client.__mro__ if "__init__" in vars(kind)] if client is not None else []
    return _ARGUMENTS & {name for kind in kinds for name in inspect.signature(vars(kind)["__init__"]).parameters}


def _hint(name: str, arguments: frozenset[str]) -> str:
    """Suggest what may have been meant, including for RocketMQ's Java names (`consumeThreadMax`)."""
    if name in _ARGUMENTS:
        return "it is an argument of other clients, not of this one"
    ours = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()
    every = _NAMES | arguments
    near = difflib.get_close_matches(ours, sorted(every), n=1)
    near = near or sorted((known for known in every if ours in known.split("_") or known in f"{ours}_ms"), key=len)
    return (
        f"did you mean {near[0]!r}?"
        if near
        else "see docs/CONFIG.md or kappamq.config.client.ClientConfig for all options"
    )


def tls_context(config: ClientConfig) -> ssl.SSLContext | None:
    """Return the TLS context, or None if `config` does not enable TLS."""
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
