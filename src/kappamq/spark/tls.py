"""The TLS options of reads and writes, named like those of the command line: `--tls-ca` is `tlsCa`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kappamq.config.client import ClientOptions
from kappamq.errors import ConfigError

TLS_OPTIONS: Final = ("tls", "tlsCa", "tlsNoVerify", "tlsCert", "tlsKey")
ENVIRONMENT: Final = {
    "tls": "KAPPAMQ_TLS",
    "tlsCa": "KAPPAMQ_TLS_CA",
    "tlsNoVerify": "KAPPAMQ_TLS_NO_VERIFY",
    "tlsCert": "KAPPAMQ_TLS_CERT",
    "tlsKey": "KAPPAMQ_TLS_KEY",
}
_WORDS: Final = {
    **dict.fromkeys(("true", "1", "yes", "on", "t", "y"), True),
    **dict.fromkeys(("false", "0", "no", "off", "f", "n"), False),
}


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings. Has paths, not certificates: each node reads its own files."""

    trust: str | None = None  # None: the system's certificates
    verify: bool = True
    cert: str | None = None
    key: str | None = None

    def client_options(self) -> ClientOptions:
        return ClientOptions(
            tls=True,
            tls_trust=None if self.trust is None else Path(self.trust),
            tls_verify=self.verify,
            tls_cert=None if self.cert is None else Path(self.cert),
            tls_key=None if self.key is None else Path(self.key),
        )


def tls_options(given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> Tls | None:
    """Return the settings, None without TLS. Options not given are read from the driver's environment. Raises ConfigError."""
    named = {option: environment[name] for option, name in ENVIRONMENT.items() if environment.get(name)}
    wanted = {**named, **{option: given[option] for option in TLS_OPTIONS if option in given}}
    on = _is_true(wanted, "tls", ENVIRONMENT if "tls" not in given else {})
    unverified = _is_true(wanted, "tlsNoVerify", ENVIRONMENT if "tlsNoVerify" not in given else {})
    others = [option for option in TLS_OPTIONS[1:] if option in given and wanted[option].lower() not in ("", "false")]
    if "tls" in given and not on:
        if others:
            raise ConfigError(f"tls={given['tls']} disables TLS, but {others[0]} is set: remove one of them")
        return None
    if not (on or unverified or wanted.get("tlsCa")):
        if others:
            raise ConfigError(f"the option {others[0]} requires TLS: set the option tls to true")
        return None
    if bool(wanted.get("tlsCert")) != bool(wanted.get("tlsKey")):
        raise ConfigError("the options tlsCert and tlsKey belong together: set both, or none")
    return Tls(wanted.get("tlsCa") or None, not unverified, wanted.get("tlsCert") or None, wanted.get("tlsKey") or None)


def _is_true(wanted: Mapping[str, str], option: str, variables: Mapping[str, str]) -> bool:
    if option not in wanted:
        return False
    found = _WORDS.get(wanted[option].strip().lower())
    if found is None:
        name = f"${variables[option]}" if option in variables else option
        raise ConfigError(f"{name}={wanted[option]!r} must be true or false")
    return found
