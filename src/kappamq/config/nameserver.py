"""Configuration of a name server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kappamq.config.checks import at_least, between, not_empty


@dataclass(frozen=True, kw_only=True)
class NameServerConfig:
    listen_host: str = "0.0.0.0"  # "127.0.0.1": reachable from this machine only
    port: int = 9876  # 0: any free one
    root: Path | None = None  # where kvConfig.json is stored; None: in memory only, lost at a restart

    scan_ms: int = 5000  # how often expired brokers are removed; those that send beats are looked for twice a second
    broker_expiry_ms: int = 120_000  # for brokers without a timeout of their own
    order_messages: bool = False  # route answers carry orderTopicConf
    order_topics_to_brokers: bool = True  # registration answers carry the ORDER_TOPIC_CONFIG table
    delete_topics_on_registration: bool = False  # a topic missing from a registration is removed
    acting_master: bool = False  # the slave with the smallest id acts, read-only, for a lost master
    list_topics: bool = True  # off: requests for all topics are refused
    notify_min_broker_id: bool = False  # notify brokers when the smallest id of their group changes
    environment: str = "center"  # a label, part of RocketMQ's KV configuration
    cluster_test: bool = False  # only shown in the answer to getNamesrvConfig

    topics_max: int = 1_000_000  # over all brokers; larger: a broken broker can use more memory
    brokers_max: int = 10_000  # larger: a broken network can use more memory
    kv_bytes_max: int = 16 << 20  # larger: operators may store more in the KV configuration

    # The Apache properties this configuration was created from, for the answer to getNamesrvConfig.
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        not_empty("listen_host", self.listen_host)
        between("port", self.port, 0, 65_535)
        between("scan_ms", self.scan_ms, 1, 3_600_000)
        between("broker_expiry_ms", self.broker_expiry_ms, 100, 86_400_000)
        for name in ("topics_max", "brokers_max", "kv_bytes_max"):
            at_least(name, getattr(self, name), 1)
        if self.root is not None and not isinstance(self.root, Path):
            object.__setattr__(self, "root", Path(self.root))
