"""From what a caller writes to a checked ClientConfig."""

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
# Of the clients themselves; what is misspelt arrives among the options all the same.
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
    """Return `config` (or the defaults) with `nameserver` and `options` laid over it; `client` is the class that takes them.

    Without a name server: that of `config`, which is $KAPPAMQ_NAMESERVER, else $NAMESRV_ADDR, else 127.0.0.1:9876, unless
    it names one.
    """
    for name in options:
        if name not in _NAMES:
            raise ConfigError(f"there is no client option {name!r}; {_hint(name, _arguments_of(client))}")
    if config is not None and not isinstance(config, ClientConfig):
        raise ConfigError(f"config is a ClientConfig; got {config!r}")
    chosen: tuple[str, ...] = ()
    if isinstance(nameserver, str):
        chosen = split_addresses(nameserver)
    elif nameserver is not None:
        if isinstance(nameserver, bytes) or not isinstance(nameserver, Iterable):
            raise ConfigError(f"nameserver is host:port, or several of them; got {nameserver!r}")
        chosen = tuple(nameserver)
    if nameserver is not None and not chosen:
        raise ConfigError(f"no name server in {nameserver!r}: give host:port, several of them separated by ';'")
    changes = dict(options)
    if chosen:
        changes["nameservers"] = chosen
    return replace(config, **changes) if config is not None else ClientConfig(**changes)


def _arguments_of(client: type | None) -> frozenset[str]:
    """Those of _ARGUMENTS that a client class takes, also by way of the classes it extends."""
    kinds = [kind for kind in client.__mro__ if "__init__" in vars(kind)] if client is not None else []
    return _ARGUMENTS & {name for kind in kinds for name in inspect.signature(vars(kind)["__init__"]).parameters}


def _hint(name: str, arguments: frozenset[str]) -> str:
    """What may have been meant. RocketMQ's Java names (`consumeThreadMax`) are guessed at as well."""
    if name in _ARGUMENTS:
        return "it is an argument of other clients, not of this one"
    ours = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()
    every = _NAMES | arguments
    near = difflib.get_close_matches(ours, sorted(every), n=1)
    near = near or sorted((known for known in every if ours in known.split("_") or known in f"{ours}_ms"), key=len)
    return f"did you mean {near[0]!r}?" if near else "docs/CONFIG.md and kappamq.config.client.ClientConfig have all"


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
