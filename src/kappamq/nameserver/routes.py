"""The route tables of a name server. Pure: no sockets, and the time is passed in.

Five tables, as in RocketMQ: topic -> queue data by broker name, broker name -> addresses by id, cluster -> broker names,
(cluster, address) -> liveness, and with it the filter servers. Nothing here survives a restart: brokers register again
every 30 seconds, with every name server, and name servers do not know each other.

Only the owner of an address, the connection that registered it last, can remove it, by unregistering or by being lost: a late
request of a broker that was restarted must not remove its successor at the same address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic

from kappamq.errors import BrokerError
from kappamq.nameserver.liveness import Key, Live, Liveness, Owner
from kappamq.nameserver.masters import Holder, Masters
from kappamq.nameserver.topic_queues import TopicQueues
from kappamq.protocol.bodies.all import (
    PERMISSION_READ,
    PERMISSION_WRITE,
    BrokerData,
    BrokerMembers,
    ClusterInfo,
    DataVersion,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicRouteData,
)
from kappamq.protocol.bodies.topics import TOPIC_QUEUES_MAX
from kappamq.protocol.headers.nameserver import RegisterBroker

MASTER_ID: Final = 0
MEMBER_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
UNIT: Final = 1
UNIT_SUBSCRIBED: Final = 2
NAME_CHARACTERS_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration, or to the beat of a slave: where the master of its group is."""

    master_address: str | None = None
    ha_address: str | None = None
    master_version: int | None = None  # the term in which it became the master
    new: bool = False
    topics: Sequence[str] = ()  # still to be added by `enter_topics`
    replaced: str | None = None  # the address of another live broker that had the same name and id until now


@dataclass(frozen=True, slots=True)
class MinIdChange:
    """The smallest id of a broker group changed; `notify` has the addresses to notify."""

    broker_name: str
    min_id: int
    min_address: str
    offline_address: str | None
    ha_address: str | None
    notify: tuple[str, ...]


class RouteTable(Generic[Owner]):
    def __init__(
        self,
        *,
        expiry_ms: int = 120_000,
        topics_max: int = 1_000_000,
        brokers_max: int = 10_000,
        acting_master: bool = False,
        delete_topics_on_registration: bool = False,
    ) -> None:
        self._delete_topics_on_registration = delete_topics_on_registration
        self._acting_master = acting_master
        self._expiry_ms = expiry_ms
        self._topics_max = topics_max
        self._brokers_max = brokers_max
        self._queues = TopicQueues()
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: Liveness[Owner] = Liveness()
        self._masters = Masters(brokers_max)
        self._changes: list[MinIdChange] = []

    # --- brokers register and leave ---

    def delete_topics_when_registered(self, on: bool) -> None:
        """Whether topics that a master's full registration does not name are removed. A setting of operators."""
        self._delete_topics_on_registration = on

    def register(
        self, header: RegisterBroker, body: RegisterBrokerBody, owner: Owner, now: float, *, in_parts: bool = False
    ) -> Registered:
        """Add or refresh one broker. Raises BrokerError, without changing anything, if it is refused.

        With `in_parts` its contents were already validated (`check_contents`) and its topics are left to `enter_topics`."""
        name, cluster, address, broker_id = header.broker_name, header.cluster, header.broker_address, header.broker_id
        key, version = (cluster, address), body.topics.data_version
        if not in_parts:
            check_contents(header, body.topics.topics)
        self._check(header, body.topics.topics)
        rival = self._rival(header)
        self._check_place(header, version.state_version, rival if rival is None or rival.owner != owner else None, now)
        live = self._live.get(key)
        if live is not None and live.broker_name != name:
            self._remove(key)  # the broker at this address has another name now
            live = None
        group = self._brokers.get(name)
        before = min(group.addresses) if group is not None else None
        if group is None:
            group = self._brokers[name] = BrokerData(cluster, name)
        elif group.cluster != cluster:
            self._live.pop((group.cluster, address))
            self._leave_cluster(group)
            group.cluster = cluster
        self._clusters.setdefault(cluster, set()).add(name)
        group.acting_master, group.zone = bool(header.acting_master), header.zone
        new = group.addresses.get(broker_id) != address
        # A broker that changed its address uses its old connection, or that one is lost: any other connection is another broker.
        replaced = None
        if rival is not None and rival.owner != owner and rival.data_version.state_version == version.state_version:
            replaced = group.addresses[broker_id]
        if broker_id in group.addresses and new:
            self._live.pop((cluster, group.addresses[broker_id]))
        group.addresses = {number: other for number, other in group.addresses.items() if other != address}
        group.addresses[broker_id] = address

        topics = self._topics_to_take(header, body, everything=new or live is None or live.data_version != version)
        timeout_s = (header.timeout_ms or self._expiry_ms) / 1000
        beats = header.timeout_ms is not None
        self._live.put(key, Live(name, owner, now, timeout_s, version, header.ha_address, body.filter_servers, beats))
        if broker_id == MASTER_ID:
            self._masters.registered(name, address, version.state_version, now)
        self._note_min_id(group, before, offline=None, ha_address=header.ha_address)
        if not in_parts:
            self.enter_topics(header, body, topics, owner)
            topics = ()
        return replace(self.master_for(cluster, address), new=new, topics=topics, replaced=replaced)

    def master_for(self, cluster: str, address: str) -> Registered:
        """Return where the master of a registered broker's group is; nothing if there is none, or it is the master itself."""
        asker = self._live.get((cluster, address))
        group = self._brokers.get(asker.broker_name) if asker is not None else None
        master = group.addresses.get(MASTER_ID) if group is not None else None
        live = self._live.get((cluster, master)) if master is not None and master != address else None
        return Registered() if live is None else Registered(master, live.ha_address, live.data_version.state_version)

    def enter_topics(
        self, header: RegisterBroker, body: RegisterBrokerBody, topics: Iterable[str], owner: Owner
    ) -> bool:
        """Add these topics of a registration; returns False if its broker has left or registered again meanwhile."""
        live = self._live.get((header.cluster, header.broker_address))
        if live is None or live.owner is not owner or live.data_version != body.topics.data_version:
            return False
        name, master = header.broker_name, header.broker_id == MASTER_ID
        configs, mappings = body.topics.topics, body.topics.mapping_infos
        for topic in topics:
            config = configs.get(topic)
            if config is not None:
                permission = config.permission if master else config.permission & ~PERMISSION_WRITE
                queues = QueueData(name, config.read_queues, config.write_queues, permission, config.sys_flag)
                self._queues.put(topic, queues)
            if topic in mappings:
                self._queues.put_mapping(topic, name, mappings[topic])
        return True

    def unregister(self, cluster: str, address: str, owner: Owner) -> bool:
        """Remove a broker if `owner` registered it last; returns whether it was removed."""
        live = self._live.get((cluster, address))
        if live is None or live.owner != owner:
            return False
        self._remove((cluster, address))
        return True

    def connection_lost(self, owner: Owner) -> list[str]:
        """Remove all that `owner` registered; returns the addresses."""
        keys = self._live.owned_by(owner)
        for key in keys:
            self._remove(key)
        return [address for _, address in keys]

    def expire(self, now: float, *, beating: bool = False) -> list[tuple[str, Owner]]:
        """Remove the brokers whose heartbeat timeout has expired; returns their addresses and owners.

        `beating`: look only at those that announced a timeout of their own, since they send beats."""
        expired: list[tuple[str, Owner]] = []
        for key in self._live.silent(now, beating=beating):
            live = self._remove(key)
            if live is not None:
                expired.append((key[1], live.owner))
        return expired

    def heartbeat(self, cluster: str, address: str, now: float) -> bool:
        """Record a heartbeat of a broker; returns whether it is registered."""
        live = self._live.get((cluster, address))
        if live is not None:
            live.heard = now
        return live is not None

    def heard(self, owner: Owner, now: float) -> None:
        """Record that data came over a connection: everything registered over it is alive."""
        self._live.heard(owner, now)

    def data_version(self, cluster: str, address: str, owner: Owner) -> DataVersion | None:
        """Return the version that a broker registered; None if it should register again.

        That includes a broker on a new connection: while the old connection owns the entry, its loss would remove it.
        """
        live = self._live.get((cluster, address))
        return live.data_version if live is not None and live.owner == owner else None

    def take_changes(self) -> list[MinIdChange]:
        """Return the changes of smallest broker ids since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def _check(self, header: RegisterBroker, topics: dict[str, TopicConfig]) -> None:
        name, cluster, address = header.broker_name, header.cluster, header.broker_address
        if header.broker_id < 0:
            raise _refusal(f"broker id {header.broker_id} is negative")
        group = self._brokers.get(name)
        others = [other for other in group.addresses.values() if other != address] if group is not None else []
        if group is not None and group.cluster != cluster and others:
            raise _refusal(
                f"broker name {name} is in use by {', '.join(others)} of cluster {group.cluster}; "
                f"a broker of cluster {cluster} needs another name"
            )
        if len(topics) == 1 and (group is None or header.broker_id not in group.addresses):
            raise _refusal(
                f"{name} at {address} is not registered yet and registers a single topic; a broker must register all its topics "
                "first, single ones later"
            )
        if (cluster, address) not in self._live and len(self._live) >= self._brokers_max:
            raise _refusal(f"the limit of {self._brokers_max} registered brokers is reached")
        added = self._queues.count_new(topics)
        if added and len(self._queues) + added > self._topics_max:
            raise _refusal(
                f"{added} new topics besides {len(self._queues)} registered ones exceed the limit of {self._topics_max}"
            )

    def _check_place(self, header: RegisterBroker, version: int, rival: Live[Owner] | None, now: float) -> None:
        """Raise BrokerError if the id that a broker claims belongs to another one."""
        name, address, broker_id = header.broker_name, header.broker_address, header.broker_id
        holder = None
        if rival is not None:
            held_by = self._brokers[name].addresses[broker_id]
            holder = Holder(held_by, rival.data_version.state_version, rival.beats)
        if broker_id == MASTER_ID:
            self._masters.check(name, address, version, holder, now)
        elif holder is not None and holder.version > version:
            raise _refusal(
                f"id {broker_id} of {name} belongs to {holder.address}, registered with the later state version {holder.version} "
                f"({address} has {version}); give this broker another id (brokerId)"
            )

    def _rival(self, header: RegisterBroker) -> Live[Owner] | None:
        """Return the live broker that has the same name and id at another address."""
        group = self._brokers.get(header.broker_name)
        address = group.addresses.get(header.broker_id) if group is not None else None
        if address is None or address == header.broker_address:
            return None
        return self._live.get((header.cluster, address))

    def _topics_to_take(self, header: RegisterBroker, body: RegisterBrokerBody, *, everything: bool) -> Sequence[str]:
        """Return the topics to add. Only a master, or the slave acting as one, changes topics. Removes those it no longer has."""
        name, topics = header.broker_name, body.topics.topics
        master = header.broker_id == MASTER_ID
        standing_in = bool(header.acting_master) and header.broker_id == min(self._brokers[name].addresses)
        known = self._queues.of_brokers([name])
        if not master and not standing_in:
            # A name server that was started while a group has no master still tells consumers about its slaves.
            alone = header.timeout_ms is not None and MASTER_ID not in self._brokers[name].addresses
            return list(topics.keys() - known) if alone else ()
        # A table with a single topic is an increment, and an empty one announces a role: topics it does not mention still exist.
        if self._delete_topics_on_registration and master and len(topics) > 1:
            for topic in known - topics.keys():
                self._queues.drop(topic, name)
        taken = list(topics) if everything else list(topics.keys() - known)
        return taken + list(body.topics.mapping_infos.keys() - set(taken)) if body.topics.mapping_infos else taken

    def _remove(self, key: Key) -> Live[Owner] | None:
        live = self._live.pop(key)
        if live is None:
            return None
        name, address = live.broker_name, key[1]
        group = self._brokers[name]
        before = min(group.addresses)
        group.addresses = {number: other for number, other in group.addresses.items() if other != address}
        if not group.addresses:
            del self._brokers[name]
            self._leave_cluster(group)
            for topic in self._queues.of_brokers([name]):
                self._queues.drop(topic, name)
            return live
        if group.acting_master and MASTER_ID not in group.addresses:
            self.wipe_write(name)
        self._note_min_id(group, before, offline=address, ha_address=live.ha_address)
        return live

    def _leave_cluster(self, group: BrokerData) -> None:
        names = self._clusters[group.cluster]
        names.discard(group.broker_name)
        if not names:
            del self._clusters[group.cluster]

    def _note_min_id(
        self, group: BrokerData, before: int | None, *, offline: str | None, ha_address: str | None
    ) -> None:
        after = min(group.addresses)
        if after == before:
            return
        # A new broker knows about itself; when one left, all others have to be notified.
        everybody = offline is not None or len(group.addresses) == 1
        told = tuple(address for number, address in group.addresses.items() if everybody or number != after)
        self._changes.append(MinIdChange(group.broker_name, after, group.addresses[after], offline, ha_address, told))

    # --- administration ---

    def wipe_write(self, broker_name: str) -> int:
        """Revoke the write permission of all topics of a broker, until it registers a change; returns how many."""
        return self._queues.change_permissions(broker_name, lambda permission: permission & ~PERMISSION_WRITE)

    def add_write(self, broker_name: str) -> int:
        """Grant the permission to read and write on all topics of a broker; returns how many."""
        return self._queues.change_permissions(broker_name, lambda _: PERMISSION_READ | PERMISSION_WRITE)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, on the brokers of one cluster or everywhere; a broker that still has it registers it again."""
        names = set(self._queues.of_topic(topic))
        if cluster:
            names &= self._clusters.get(cluster, set())
        for name in names:
            self._queues.drop(topic, name)

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add a topic for registered brokers. Raises BrokerError if one is not registered."""
        queues = list(queues)
        unknown = sorted({one.broker_name for one in queues} - self._brokers.keys())
        if unknown:
            raise BrokerError(
                f"topic {topic[:300]} is not registered: no broker {', '.join(unknown)} is registered here"
            )
        if not topic or len(topic) > NAME_CHARACTERS_MAX:
            raise BrokerError(f"a topic name must have 1 to {NAME_CHARACTERS_MAX} characters, not {len(topic)}")
        if queues and topic not in self._queues and len(self._queues) >= self._topics_max:
            raise BrokerError(f"the limit of {self._topics_max} registered topics is reached")
        for one in queues:
            if not _has_sane_counts(one):
                raise BrokerError(f"topic {topic!r} is not registered: {_too_many(topic, one)}")
        for one in queues:
            self._queues.put(topic, one)

    # --- queries ---

    def route(self, topic: str, *, zone: str | None = None) -> TopicRouteData | None:
        """Return all queues of a topic and the addresses of their brokers, None if there are none.

        With `zone`, brokers of other zones are left out, unless they have no master.
        """
        route = TopicRouteData(mappings=self._queues.mappings(topic))
        for name, queues in sorted(self._queues.of_topic(topic).items()):
            group = self._brokers[name]
            if zone is not None and group.zone != zone and MASTER_ID in group.addresses:
                continue
            shown = replace(group, addresses=dict(group.addresses))
            if not topic.startswith(MEMBER_TOPIC_PREFIX):
                self._show_acting_master(shown, queues)
            route.queues.append(queues)
            route.brokers.append(shown)
            for address in group.addresses.values():
                live = self._live.get((group.cluster, address))
                if live is not None and live.filter_servers:
                    route.filter_servers[address] = list(live.filter_servers)
        return route if route.brokers else None

    def _show_acting_master(self, group: BrokerData, queues: QueueData) -> None:
        """Show the smallest id of a group without a master as the master, if its write permission has been revoked."""
        if not self._acting_master or not group.acting_master or MASTER_ID in group.addresses:
            return
        if not queues.permission & PERMISSION_WRITE:
            group.addresses[MASTER_ID] = group.addresses.pop(min(group.addresses))

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            {name: replace(group, addresses=dict(group.addresses)) for name, group in self._brokers.items()},
            {cluster: set(names) for cluster, names in self._clusters.items()},
        )

    def members(self, cluster: str, broker_name: str) -> BrokerMembers:
        group = self._brokers.get(broker_name)
        addresses = dict(group.addresses) if group is not None and group.cluster == cluster else {}
        return BrokerMembers(cluster, broker_name, addresses)

    def topics(self) -> list[str]:
        return self._queues.names()

    def topics_of_cluster(self, cluster: str) -> list[str]:
        return sorted(self._queues.of_brokers(self._clusters.get(cluster, ())))

    def unit_topics(self, present: int, absent: int = 0) -> list[str]:
        return self._queues.with_flags(present, absent)

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the names of clusters and brokers, which are topics too, and the address of one broker to query."""
        names = sorted({*self._clusters, *self._brokers})
        first = next(iter(self._brokers.values()), None)
        return names, first.addresses[min(first.addresses)] if first is not None else None


def check_contents(header: RegisterBroker, topics: Mapping[str, TopicConfig]) -> None:
    """Raise BrokerError for an invalid name or number of queues. Uses nothing but its arguments, so a worker thread may call it."""
    named = (
        ("broker name", header.broker_name),
        ("cluster name", header.cluster),
        ("broker address", header.broker_address),
    )
    for what, text in (*named, *(("topic name", topic) for topic in topics)):
        if not text or len(text) > NAME_CHARACTERS_MAX:
            raise _refusal(f"a {what} must have 1 to {NAME_CHARACTERS_MAX} characters, not {len(text)}: {text[:40]!r}")
    # Addresses and names are logged and sent to every client, where control characters could forge lines.
    for what, text in (*named, ("HA address", header.ha_address or "")):
        if not text.isprintable():
            raise _refusal(f"the {what} {text[:80]!r} contains control characters")
    for name, config in topics.items():
        if not _has_sane_counts(config):
            raise _refusal(_too_many(name, config))


def _has_sane_counts(queues: TopicConfig | QueueData) -> bool:
    return 0 <= queues.read_queues <= TOPIC_QUEUES_MAX and 0 <= queues.write_queues <= TOPIC_QUEUES_MAX


def _too_many(topic: str, queues: TopicConfig | QueueData) -> str:
    return (
        f"a topic has 0 to {TOPIC_QUEUES_MAX} queues on a broker, not {queues.read_queues} to read and {queues.write_queues} to "
        f"write: {topic[:300]!r}"
    )


def _refusal(reason: str) -> BrokerError:
    return BrokerError(f"register broker failed: {reason}")
