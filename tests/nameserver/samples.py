"""Registrations for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterable

from kappamq.protocol.bodies.all import DataVersion, RegisterBrokerBody, TopicConfig, TopicTable
from kappamq.protocol.headers.nameserver import RegisterBroker


def header(
    name: str = "b",
    address: str = "10.0.0.1:10911",
    *,
    broker_id: int = 0,
    cluster: str = "c",
    timeout_ms: int | None = None,
    acting_master: bool | None = None,
    zone: str | None = None,
) -> RegisterBroker:
    return RegisterBroker(
        broker_name=name,
        broker_address=address,
        cluster=cluster,
        ha_address=address + "2",
        broker_id=broker_id,
        timeout_ms=timeout_ms,
        acting_master=acting_master,
        zone=zone,
    )


def body(
    topics: Iterable[str] = ("T", "U"),
    *,
    counter: int = 0,
    state_version: int = 0,
    permission: int = 6,
    sys_flag: int = 0,
    filter_servers: Iterable[str] = (),
) -> RegisterBrokerBody:
    table = {topic: TopicConfig(topic, 4, 4, permission, sys_flag=sys_flag) for topic in topics}
    return RegisterBrokerBody(TopicTable(table, DataVersion(state_version, 0, counter)), list(filter_servers))
