"""Limits at the sockets of a server, and TLS. Every one exists because a peer may be broken, slow or hostile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kappamq.config.checks import KIB, MIB, at_least, between, one_of
from kappamq.errors import ConfigError

TlsMode = Literal["disabled", "permissive", "enforcing"]


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    frame_bytes_max: int = 16 * MIB  # larger: bigger batches, more memory one connection can claim
    header_bytes_max: int = 256 * KIB  # properties are part of it: 32 KiB, up to six times that as JSON escapes

    def __post_init__(self) -> None:
        between("frame_bytes_max", self.frame_bytes_max, 1 * KIB, 1024 * MIB)
        between("header_bytes_max", self.header_bytes_max, 1 * KIB, 16 * MIB - 1)
        between("read_bytes", self.read_bytes, 4 * KIB, 64 * MIB)
        for name in ("connections_max", "connections_per_ip_max", "listen_backlog", "connection_inflight_max"):
            between(name, getattr(self, name), 1, 10_000_000)
        for name in ("first_frame_s", "frame_s", "idle_s", "write_stall_s"):
            between(name, getattr(self, name), 0, 86_400)
        for name in ("write_pending_bytes_max", "inflight_bytes_max", "connection_inflight_bytes_max"):
            at_least(name, getattr(self, name), 64 * KIB)
        between("write_pause_bytes", self.write_pause_bytes, 1, self.write_pending_bytes_max)
        one_of("tls_mode", self.tls_mode, ("disabled", "permissive", "enforcing"))
        one_of("tls_client_auth", self.tls_client_auth, ("none", "optional", "require"))
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key belong together: give both, or none for no TLS")
        if self.tls_mode == "enforcing" and self.tls_cert is None:
            raise ConfigError("tls_mode=enforcing needs tls_cert and tls_key, else nobody could connect")
        if self.tls_client_auth != "none" and self.tls_trust is None:
            raise ConfigError(f"tls_client_auth={self.tls_client_auth} needs tls_trust to check certificates against")

    @property
    def tls_offered(self) -> bool:
        return self.tls_mode != "disabled" and self.tls_cert is not None
