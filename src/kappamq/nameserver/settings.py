"""Changing a running name server's settings (request 318) and showing them (319)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kappamq.config import properties
from kappamq.config.apache import NameServerSettings, check_unset, rendered_nameserver
from kappamq.config.apache_features import NAMESERVER_UNSET
from kappamq.config.apache_names import NAMESERVER_SETTINGS
from kappamq.errors import BrokerError, ConfigError, NoPermission


def shown(settings: NameServerSettings) -> bytes:
    """Return the current settings as properties text, under RocketMQ's names."""
    return properties.render(rendered_nameserver(settings)).encode()


def changed(settings: NameServerSettings, body: bytes) -> NameServerSettings:
    """Apply properties text completely, or raise an error and change nothing.

    Raises NoPermission for properties that need a restart, BrokerError for unknown names and invalid values. A value equal to
    the current one is always accepted, since tools send whole files back.
    """
    try:
        given = properties.parse_bytes(body, where="the body")
        return _apply(settings, given)
    except ConfigError as error:
        raise BrokerError(str(error)) from None


def _apply(settings: NameServerSettings, given: Mapping[str, str]) -> NameServerSettings:
    present = rendered_nameserver(settings)
    values: dict[str, Any] = {}
    for name, text in given.items():
        if present.get(name) == text.strip():
            continue
        setting = NAMESERVER_SETTINGS.get(name)
        if name in NAMESERVER_UNSET:
            check_unset(NAMESERVER_UNSET[name], text)
            continue
        if setting is None:
            raise BrokerError(f"unknown property {name}")
        if not setting.live:
            raise NoPermission(f"{name} cannot be changed at run time: set it and restart the name server")
        values[setting.field] = setting.read(text)
    kept = {**settings.nameserver.properties, **given}
    return replace(settings, nameserver=replace(settings.nameserver, **values, properties=kept))
