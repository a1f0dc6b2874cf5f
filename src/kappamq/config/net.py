"""Limits of a server's sockets, and TLS. Each limit exists because a peer may be broken, slow or hostile."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kappamq.config.checks import KIB, MIB, at_least, between, one_of
from kappamq.errors import ConfigError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
TlsMode = Literal["disabled", "permissive", "enforcing"]


def network(given: str | Network) -> Network:
    """`10.0.0.0/8`, or a single address."""
    try:
        return ipaddress.ip_network(given, strict=False)
    except ValueError:
        raise ConfigError(
            f"{given!r} is not a network: expected something like 10.1.0.0/16, 10.1.2.3 or fd00::/8"
        ) from None


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    frame_bytes_max: int = 16 * MIB  # larger: bigger batches, but one connection can claim more memory
    header_bytes_max: int = 256 * KIB  # includes message properties: 32 KiB, up to six times that as JSON escapes

    # Limits of one request, by its kind. Larger: bigger requests of honest clients, more work for one of hostile ones.
    request_bytes_max: int = 64 * KIB  # the body of a request that is not a message and has no limit of its own here
    request_header_bytes_max: int = 64 * KIB  # the header of a request without message properties
    heartbeat_bytes_max: int = 1 * MIB  # about 4,000 subscriptions. larger: reading one delays others longer
    list_bytes_max: int = 1 * MIB  # lists of topics, groups or queue locks: about 12,000 locks
    decision_bytes_max: int = 4 * MIB  # chunks of a batch transaction: about 43,000. larger: reading them takes longer
    registration_bytes_max: int = 8 * MIB  # a broker's registration at a name server: about 25,000 topics
    loose_json_bytes_max: int = 256 * KIB  # a body in fastjson's dialect (slow); larger ones must be standard JSON

    connections_max: int = 16_000  # more: more descriptors (nofile) and memory
    connections_per_ip_max: int = 12_000  # smaller: one host cannot take all; larger: many clients behind one address
    listen_backlog: int = 1024  # connections that wait to be accepted; larger: absorbs bigger bursts of connections

    # A PROXY header (v1, v2) names the client behind a load balancer. Logs and born hosts show it, whoever sent it.
    # That of the proxies named here also decides which address connections_per_ip_max counts.
    proxies_trusted: tuple[Network, ...] = ()

    first_frame_s: float = 60.0  # no complete frame by then: closed. smaller: Java's spare connections reconnect often
    frame_s: float = 30.0  # from the first to the last byte of one frame; smaller: slow links lose big batches
    idle_s: float = 120.0  # nothing read and nothing written: closed. 0: never
    write_stall_s: float = 30.0  # bytes wait to be written and the peer reads none of them: closed

    write_pending_bytes_max: int = 64 * MIB  # per connection; beyond it a peer that reads too slowly is closed
    write_pause_bytes: int = 1 * MIB  # per connection; beyond it we stop reading from the peer
    unsent_bytes_max: int = 512 * MIB  # of all unsent bytes, half for one address; the peer with most of them is closed
    inflight_bytes_max: int = 256 * MIB  # requests in flight, in total, half of it for one address; beyond it code 2
    connection_inflight_bytes_max: int = 32 * MIB  # the same for one connection; beyond it reading pauses
    connection_inflight_max: int = 65_536  # requests in flight of one connection

    # TLS on the same port: permissive accepts both, enforcing only TLS. Without a certificate TLS is off.
    tls_mode: TlsMode = "permissive"  # permissive accepts plain and TLS, enforcing only TLS
    tls_cert: Path | None = None  # PEM file with the certificate chain
    tls_key: Path | None = None  # PEM file with its key
    tls_key_password: str | None = None  # never shown again
    tls_trust: Path | None = None  # CA certificates to verify client certificates with
    tls_client_auth: Literal["none", "optional", "require"] = "none"  # require: a certificate signed by tls_trust
    tls_outgoing: bool = False  # the broker uses TLS to its name servers; needed where they enforce it
    tls_outgoing_trust: Path | None = None  # to verify them with. None: anyone may pose as a name server

    def __post_init__(self) -> None:
        object.__setattr__(self, "proxies_trusted", tuple(network(each) for each in self.proxies_trusted))
        between("frame_bytes_max", self.frame_bytes_max, 1 * KIB, 1024 * MIB)
        between("header_bytes_max", self.header_bytes_max, 1 * KIB, 16 * MIB - 1)
        for name in (
            "request_bytes_max",
            "request_header_bytes_max",
            "heartbeat_bytes_max",
            "list_bytes_max",
            "decision_bytes_max",
            "registration_bytes_max",
            "loose_json_bytes_max",
        ):
            between(name, getattr(self, name), 1 * KIB, 1024 * MIB)
        for name in ("connections_max", "connections_per_ip_max", "listen_backlog", "connection_inflight_max"):
            between(name, getattr(self, name), 1, 10_000_000)
        for name in ("first_frame_s", "frame_s", "idle_s", "write_stall_s"):
            between(name, getattr(self, name), 0, 86_400)
        for name in (
            "write_pending_bytes_max",
            "unsent_bytes_max",
            "inflight_bytes_max",
            "connection_inflight_bytes_max",
        ):
            at_least(name, getattr(self, name), 64 * KIB)
        between("write_pause_bytes", self.write_pause_bytes, 1, self.write_pending_bytes_max)
        one_of("tls_mode", self.tls_mode, ("disabled", "permissive", "enforcing"))
        one_of("tls_client_auth", self.tls_client_auth, ("none", "optional", "require"))
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key belong together: set both, or none for no TLS")
        if self.tls_mode == "enforcing" and self.tls_cert is None:
            raise ConfigError("tls_mode=enforcing needs tls_cert and tls_key, else no client could connect")
        if self.tls_client_auth != "none" and self.tls_trust is None:
            raise ConfigError(f"tls_client_auth={self.tls_client_auth} needs tls_trust to verify certificates with")

        if self.tls_outgoing_trust is not None and not self.tls_outgoing:
            raise ConfigError("tls_outgoing_trust has no effect without tls_outgoing=true")

    @property
    def tls_offered(self) -> bool:
        return self.tls_mode != "disabled" and self.tls_cert is not None
