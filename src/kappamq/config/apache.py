"""Converts RocketMQ's broker.conf and namesrv.conf to our configuration, and back.

Names are RocketMQ's, or our own as `part.field` (`store.flush_interval_ms`) where RocketMQ has none. A value that cannot
be honoured is an error; one that has no effect here, or an unknown one, is reported, never ignored silently.
"""

from __future__ import annotations

import difflib
import os
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from kappamq.config import properties as java
from kappamq.config import shapes
from kappamq.config.apache_features import BROKER_UNSET, NAMESERVER_UNSET, Unset
from kappamq.config.apache_names import (
    ADDRESSES,
    BOOLEAN,
    BROKER_SETTINGS,
    HOURS,
    INTEGER,
    MEMBERS,
    NAMESERVER_SETTINGS,
    PATH,
    RAFT_SWITCH,
    SECRET,
    TEXT,
    Kind,
    Part,
    Setting,
)
from kappamq.config.broker import BrokerConfig
from kappamq.config.copies import CopiesConfig
from kappamq.config.nameserver import NameServerConfig
from kappamq.config.net import NetConfig, Network, network
from kappamq.config.problems import Problems, file_of, place_of
from kappamq.config.store import StoreConfig
from kappamq.errors import ConfigError, InvalidParameter, NoPermission

C = TypeVar("C")

PARTS: dict[str, type[Any]] = {
    "broker": BrokerConfig,
    "store": StoreConfig,
    "net": NetConfig,
    "copies": CopiesConfig,
    "nameserver": NameServerConfig,
}

# Directories that RocketMQ lets users place anywhere; here they are always below the root.
_PLACES = {
    "storePathCommitLog": "commitlog",
    "storePathConsumeQueue": "consumequeue",
    "storePathIndex": "index",
    "storeCheckpoint": "checkpoint",
    "abortFile": "abort",
}
# Switches that set no field on their own.
_SWITCHES = ("cleanFileForciblyEnable", RAFT_SWITCH)
_RAFT_FIELDS = ("group", "members", "member")
_FORCIBLE_RATIO = 0.85  # RocketMQ's default for diskSpaceCleanForciblyRatio


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What to report about a set of properties besides their values."""

    missed: tuple[str, ...] = ()  # values that request an absent feature: a sentence per feature
    ignored: tuple[str, ...] = ()  # RocketMQ properties without effect here
    unknown: tuple[str, ...] = ()  # unknown; each with a guess what was meant

    def lines(self) -> list[str]:
        found = []
        if self.unknown:
            found.append(f"unknown properties, without effect: {', '.join(self.unknown)}")
        if self.ignored:
            found.append(f"RocketMQ properties without effect here: {', '.join(self.ignored)}")
        return [*self.missed, *found]


@dataclass(frozen=True, kw_only=True)
class BrokerSettings:
    """The configurations a broker is made of."""

    broker: BrokerConfig
    store: StoreConfig
    net: NetConfig
    copies: CopiesConfig = field(default_factory=CopiesConfig)

    def replace(self, values: Mapping[str, Mapping[str, Any]]) -> BrokerSettings:
        return replace(self, **{part: replace(getattr(self, part), **changed) for part, changed in values.items()})


@dataclass(frozen=True, kw_only=True)
class NameServerSettings:
    nameserver: NameServerConfig
    net: NetConfig


def read_file(path: Path) -> dict[str, str]:
    """Read a property file. Raises ConfigError with the reason and the path."""
    try:
        with path.open("rb") as file:
            data = file.read(java.TEXT_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    return java.parse_bytes(data, where=str(path), located=True)


def broker_settings(
    given: Mapping[str, str],
    *,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[BrokerSettings, Findings]:
    """Build a broker's configuration from properties. Raises ConfigError, which lists all problems.

    `defaults` and `overrides` are fields by part ({"store": {"root": ...}}) that lose and win against `given`.
    """
    problems = Problems()
    parts = ("broker", "store", "net", "copies")
    values, sources, findings = _values(given, BROKER_SETTINGS, BROKER_UNSET, parts, problems)
    findings = _switch_raft(given, values, sources, findings, problems)
    merged = _merge(defaults, values, overrides)
    if "root" not in merged.get("store", {}):
        raise ConfigError("no data directory: set storePathRootDir (or --data)")
    _check_places(given, Path(merged["store"]["root"]), problems)
    merged.setdefault("broker", {})["properties"] = dict(given)
    broker = _build(BrokerConfig, "broker", merged, sources, given, problems)
    store = _build(StoreConfig, "store", merged, sources, given, problems)
    net = _build(NetConfig, "net", merged, sources, given, problems)
    copies = _build(CopiesConfig, "copies", merged, sources, given, problems)
    problems.settle()  # what follows compares the parts, so each must be right by itself
    for problem in shapes.problems(broker, copies):
        problems.wrong(given.get("brokerRole", ""), problem)
    problems.settle()
    return BrokerSettings(broker=broker, store=store, net=net, copies=copies), findings


def nameserver_settings(
    given: Mapping[str, str],
    *,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[NameServerSettings, Findings]:
    problems = Problems()
    values, sources, findings = _values(given, NAMESERVER_SETTINGS, NAMESERVER_UNSET, ("nameserver", "net"), problems)
    merged = _merge(defaults, values, overrides)
    merged.setdefault("nameserver", {})["properties"] = dict(given)
    nameserver = _build(NameServerConfig, "nameserver", merged, sources, given, problems)
    net = _build(NetConfig, "net", merged, sources, given, problems)
    problems.settle()
    return NameServerSettings(nameserver=nameserver, net=net), findings


def changed(settings: BrokerSettings, given: Mapping[str, str]) -> BrokerSettings:
    """Apply a change to a running broker (request 25) completely, or raise an error and change nothing.

    Only properties marked `live` may change. Raises InvalidParameter for unknown names and invalid values, NoPermission for
    properties that need a restart. A value equal to the current one is always accepted, since tools send whole files back.
    """
    present = rendered(settings)
    values: dict[str, dict[str, Any]] = {}
    for name, text in given.items():
        if name in present and present[name] == text.strip():
            continue
        setting = BROKER_SETTINGS.get(name)
        try:
            if name == "cleanFileForciblyEnable":
                ratio = (settings.store.delete_unexpired_ratio or _FORCIBLE_RATIO) if BOOLEAN.read(text) else None
                values.setdefault("store", {})["delete_unexpired_ratio"] = ratio
                continue
            if name in BROKER_UNSET:
                check_unset(BROKER_UNSET[name], text)
                continue
            if setting is None and name == RAFT_SWITCH:
                raise NoPermission(f"{name} cannot be changed at run time: put it into broker.conf and restart")
            if setting is None:
                raise InvalidParameter(f"unknown property {_guess(name, BROKER_SETTINGS)}")
            value = setting.read(text)
        except (ConfigError, ValueError) as error:
            raise InvalidParameter(str(error)) from None
        if not setting.live:
            raise NoPermission(f"{name} cannot be changed at run time: put it into broker.conf and restart")
        values.setdefault(setting.part, {})[setting.field] = value
    values.setdefault("broker", {})["properties"] = {**settings.broker.properties, **given}
    try:
        return settings.replace(values)
    except ConfigError as error:
        raise InvalidParameter(str(error)) from None


def check_unset(unset: Unset, text: str) -> None:
    """Validate a change at run time of a property that sets nothing here. Raises NoPermission, ConfigError."""
    if not unset.holds(text):
        raise NoPermission(f"{unset.name}={text} has no effect, so it cannot be changed: {unset.because}")


def rendered(settings: BrokerSettings) -> dict[str, str]:
    """Return the current values under RocketMQ's names (request 26), and the given properties without a field of ours."""
    shown = _rendered(settings, settings.broker.properties, BROKER_SETTINGS, BROKER_UNSET)
    shown["cleanFileForciblyEnable"] = BOOLEAN.show(settings.store.delete_unexpired_ratio is not None)
    shown[RAFT_SWITCH] = BOOLEAN.show(settings.copies.is_raft)
    # Not 0, which asks for a default, but what it came to.
    shown["inSyncReplicas"] = str(settings.copies.in_sync_effective)
    if settings.broker.port:
        shown["haListenPort"] = str(settings.copies.port_beside(settings.broker.port))
    return dict(sorted(shown.items()))


def rendered_nameserver(settings: NameServerSettings) -> dict[str, str]:
    """The same for a name server (request 319)."""
    shown = _rendered(settings, settings.nameserver.properties, NAMESERVER_SETTINGS, NAMESERVER_UNSET)
    return dict(sorted(shown.items()))


def _rendered(
    settings: BrokerSettings | NameServerSettings,
    given: Mapping[str, str],
    known: Mapping[str, Setting],
    unset: Mapping[str, Unset],
) -> dict[str, str]:
    shown = {name: text for name, text in given.items() if name not in SECRET}
    # For an absent feature show the value that disables it, not the one that was given.
    shown.update({each.name: each.shown for each in unset.values() if each.shown is not None})
    for setting in known.values():
        value = getattr(getattr(settings, setting.part), setting.field)
        if value is not None and value not in ((), {}) and setting.name not in SECRET:
            shown[setting.name] = setting.kind.show(value)
    return shown


def is_known(name: str) -> bool:
    """Return whether a property is known, RocketMQ's or ours. For `--set`, where a typo must not pass."""
    part, _, field = name.partition(".")
    return (
        name in BROKER_SETTINGS
        or name in NAMESERVER_SETTINGS
        or name in BROKER_UNSET
        or name in NAMESERVER_UNSET
        or name in _PLACES
        or name in _SWITCHES
        or (part in PARTS and any(field == known.name for known in fields(PARTS[part])))
    )


def unknown_name(name: str) -> str:
    """The name, with a guess what was meant: one of RocketMQ's names, or of ours if it is written like them."""
    if "." not in name:
        return _guess(name, {**BROKER_SETTINGS, **NAMESERVER_SETTINGS})
    return _guess(name, [f"{part}.{known.name}" for part, kind in PARTS.items() for known in fields(kind)])


# --- helpers ----------------------------------------------------------------------------------------------------------


def _values(
    given: Mapping[str, str],
    settings: Mapping[str, Setting],
    unset: Mapping[str, Unset],
    parts: tuple[str, ...],
    problems: Problems,
) -> tuple[dict[str, dict[str, Any]], dict[tuple[str, str], str], Findings]:
    """Sort properties into fields by part; also return which property set which field, for messages."""
    values: dict[str, dict[str, Any]] = {}
    sources: dict[tuple[str, str], str] = {}
    missed: dict[str, list[str]] = {}  # by reason
    ignored: list[str] = []
    unknown: list[str] = []
    forcibly: bool | None = None
    for name, text in given.items():
        setting = settings.get(name) or _own(name, parts)
        try:
            if setting is not None:
                value, place = setting.read(text), (setting.part, setting.field)
                if place in sources:
                    _check_agreement(name, value, sources[place], values[setting.part][setting.field], given)
                values.setdefault(setting.part, {})[setting.field] = value
                sources[place] = name
            elif name in unset:
                if unset[name].shown is None:
                    ignored.append(name)
                elif not unset[name].holds(text):
                    missed.setdefault(unset[name].because, []).append(f"{name}={text}")
            elif name == "cleanFileForciblyEnable":
                forcibly = Setting(name, "store", "delete_unexpired_ratio", BOOLEAN).read(text)
            elif name not in _PLACES and name != RAFT_SWITCH:
                guess = _guess(name, settings)
                unknown.append(f"{guess} in {place_of(text)}" if place_of(text) else guess)
                problems.unknown(text, guess)
        except ConfigError as error:
            problems.wrong(text, error)
    if forcibly is not None:
        store = values.setdefault("store", {})
        if not forcibly:
            store["delete_unexpired_ratio"] = None
        elif store.get("delete_unexpired_ratio") is None:
            store["delete_unexpired_ratio"] = _FORCIBLE_RATIO
    told = tuple(f"without effect: {', '.join(asked)} ({because})" for because, asked in missed.items())
    return values, sources, Findings(missed=told, ignored=tuple(ignored), unknown=tuple(unknown))


def _switch_raft(
    given: Mapping[str, str],
    values: dict[str, dict[str, Any]],
    sources: dict[tuple[str, str], str],
    findings: Findings,
    problems: Problems,
) -> Findings:
    """Take RocketMQ's names for a Raft group as said only where its switch is on; ours (`copies.group`) need no switch."""
    text, copies = given.get(RAFT_SWITCH, "false"), values.get("copies", {})
    try:
        on = Setting(RAFT_SWITCH, "copies", "group", BOOLEAN).read(text)
    except ConfigError as error:
        problems.wrong(text, error)
        return findings
    if on:
        if "group" not in copies:
            problems.wrong(text, f"{RAFT_SWITCH}=true needs dLegerGroup, dLegerPeers and dLegerSelfId")
        return findings
    theirs = [name for part in _RAFT_FIELDS if (name := sources.get(("copies", part), "")) in BROKER_SETTINGS]
    if RAFT_SWITCH in given and len(theirs) < sum(part in copies for part in _RAFT_FIELDS):
        problems.wrong(text, f"{RAFT_SWITCH}=false contradicts copies.group: keep one of them")
    for name in theirs:
        part = BROKER_SETTINGS[name].field
        del copies[part], sources["copies", part]
    return replace(findings, ignored=(*findings.ignored, *theirs))


def _own(name: str, parts: tuple[str, ...]) -> Setting | None:
    """`store.flush_interval_ms` -> the field, and how to parse it."""
    part, _, field = name.partition(".")
    if part not in parts or field == "properties":
        return None
    hint = typing.get_type_hints(PARTS[part]).get(field)
    if hint is None:
        return None
    options = [option for option in typing.get_args(hint) if option is not types.NoneType]
    if isinstance(hint, types.UnionType):
        hint = options[0]
    by_type: dict[Any, Kind] = {
        bool: BOOLEAN,
        int: INTEGER,
        float: Kind("number", _float, str),
        Path: PATH,
        tuple[int, ...]: HOURS,
        tuple[str, ...]: ADDRESSES,
        Mapping[str, str]: MEMBERS,
        tuple[Network, ...]: Kind("networks", _networks, lambda value: ";".join(map(str, value))),
    }
    return Setting(name, cast(Part, part), field, by_type.get(hint, TEXT))


def _networks(text: str) -> tuple[Network, ...]:
    return tuple(network(part.strip()) for part in text.replace(",", ";").split(";") if part.strip())


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number") from None


def _merge(*layers: Mapping[str, Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for part, values in (layer or {}).items():
            merged.setdefault(part, {}).update(values)
    return merged


def _build(
    config: type[C],
    part: str,
    merged: Mapping[str, Mapping[str, Any]],
    sources: Mapping[tuple[str, str], str],
    given: Mapping[str, str],
    problems: Problems,
) -> C:
    values = dict(merged.get(part, {}))
    while True:
        try:
            return config(**values)
        except ConfigError as error:
            # The dataclass names its own fields; the author of the file knows them by RocketMQ's names.
            named = {
                field: name
                for (of, field), name in sources.items()
                if of == part and field in values and field in str(error)
            }
            if not named:
                problems.wrong("", error)
                problems.settle()
            first = given[next(iter(named.values()))]
            problems.wrong(first, f"{error} (set by {', '.join(named.values())})")
            if "root" in named:
                problems.settle()  # it cannot be left out
            # Each attempt reports only the first problem; leave out its cause to find the next.
            for field in named:
                del values[field]


def _check_agreement(name: str, value: Any, other: str, other_value: Any, given: Mapping[str, str]) -> None:
    """Two names of one field may both be given. In one file they must agree; with --set, the last one wins."""
    if value != other_value and file_of(given[name]) == file_of(given[other]):
        first, second = (each if each in SECRET else f"{each}={given[each]}" for each in (name, other))
        raise ConfigError(f"{first} contradicts {second}: both set the same; keep one of them")


def _check_places(given: Mapping[str, str], root: Path, problems: Problems) -> None:
    for name, below in _PLACES.items():
        text = given.get(name, "").strip()
        if not text or text == "null":
            continue
        # Not Path.resolve: it fails for a link to itself, for which the store has a better error.
        if os.path.realpath(os.path.expanduser(text)) != os.path.realpath(root.expanduser() / below):
            problems.wrong(given[name], f"{name}={text} cannot be honoured: it is always {root / below}; leave it out")


def _guess(name: str, settings: Iterable[str]) -> str:
    by_lower = {known.lower(): known for known in settings}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.75)
    return f"{name} (did you mean {by_lower[close[0]]}?)" if close else name
