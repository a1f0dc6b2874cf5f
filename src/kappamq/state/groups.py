"""Consumer groups of this broker: their settings; created on first use where that is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kappamq.config.broker import BrokerConfig
from kappamq.errors import GroupNotFound, InvalidParameter, NoPermission, NotMaster
from kappamq.events import Events
from kappamq.protocol import names
from kappamq.protocol.bodies.clients import SubscriptionGroupConfig, SubscriptionGroupTable
from kappamq.protocol.bodies.topics import DataVersion
from kappamq.state.events import GroupChanged
from kappamq.state.metadata import Commit

_SHOWN = 140  # characters shown of an invalid name


class Groups:
    file = "subscriptionGroup.json"
    kinds = ("group", "group-deleted", "group-forbidden")

    def __init__(
        self, config: BrokerConfig, now_ms: Callable[[], int], commit: Commit, events: Events | None = None
    ) -> None:
        self._config = config
        self._now_ms = now_ms
        self._commit = commit
        self._events = events if events is not None else Events()
        self.table = _built_in()
        self.forbidden: dict[str, dict[str, int]] = {}
        self.version = DataVersion(timestamp=now_ms())
        self.dirty = False

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """The group; created with defaults if it is new and settings allow it, but not on a node that may not write."""
        group = self.table.get(name)
        if group is None and self._config.auto_create_group:
            try:
                names.check_group(name)
            except InvalidParameter:
                return None
            if len(self.table) < self._config.groups_max:
                try:
                    # If the log takes no records, consumers go on, and the group is created again after a restart.
                    group = self._update(SubscriptionGroupConfig(name=name), anyway=True)
                except NotMaster:
                    return None
        return group

    def existing(self, name: str) -> SubscriptionGroupConfig:
        group = self.get(name)
        if group is None:
            raise GroupNotFound(self.why_not(name))
        return group

    def movable(self, name: str) -> None:
        """Raises an error if the offsets of this group cannot be set."""
        self.existing(name)
        if name == names.TRANSACTION_GROUP:
            raise NoPermission(
                f"the offsets of group {name} are the broker's own: they say which transactions are open. Use another group"
            )

    def why_not(self, name: str) -> str:
        """The error text for a missing group."""
        try:
            names.check_group(name)
        except InvalidParameter as error:
            return f"subscription group [{name[:_SHOWN]}] does not exist and cannot: {error}"
        if len(self.table) >= self._config.groups_max and self._config.auto_create_group:
            return f"subscription group [{name}] does not exist, and there are {len(self.table)} already (groups_max)"
        if self._config.auto_create_group:
            return f"subscription group [{name}] does not exist yet: this broker is not the master, which makes it with a heartbeat"
        return (
            f"subscription group [{name}] does not exist: create it with mqadmin updateSubGroup, "
            "or allow autoCreateSubscriptionGroup"
        )

    def update(self, group: SubscriptionGroupConfig) -> None:
        names.check_group(group.name)
        if group.name not in self.table and len(self.table) >= self._config.groups_max:
            raise InvalidParameter(f"there are {len(self.table)} groups already (groups_max)")
        self._update(group)

    def _update(self, group: SubscriptionGroupConfig, *, anyway: bool = False) -> SubscriptionGroupConfig:
        self._commit("group", group.to_json(), anyway=anyway)
        self._events.publish(GroupChanged(group.name))
        return self.table[group.name]

    def delete(self, name: str) -> bool:
        if name not in self.table:
            return False
        self._commit("group-deleted", {"groupName": name})
        self._events.publish(GroupChanged(name))
        return True

    def forbid(self, group: str, topic: str, readable: bool) -> bool:
        """Allow or forbid `group` to read `topic`; returns the resulting state."""
        self._commit("group-forbidden", {"group": group, "topic": topic, "readable": readable})
        self._events.publish(GroupChanged(group))
        return not self.is_forbidden(group, topic)

    def is_forbidden(self, group: str, topic: str) -> bool:
        return bool(self.forbidden.get(group, {}).get(topic, 0) & 1)

    def _forbid(self, group: str, topic: str, readable: bool) -> None:
        topics = self.forbidden.setdefault(group, {})
        if readable:
            topics.pop(topic, None)
        else:
            topics[topic] = 1
        if not topics:
            del self.forbidden[group]

    # -- fold --------------------------------------------------------------------------------------------------------------

    def to_snapshot(self) -> dict[str, Any]:
        return SubscriptionGroupTable(groups=self.table, forbidden=self.forbidden, data_version=self.version).to_json()

    def from_snapshot(self, table: dict[str, Any]) -> None:
        loaded = SubscriptionGroupTable.from_json(table)
        self.version, self.forbidden = loaded.data_version, loaded.forbidden
        for name, group in loaded.groups.items():
            group.name = name
            self.table[name] = group

    def apply(self, kind: str, change: Any) -> None:
        if kind == "group-deleted":
            self.table.pop(str(change["groupName"]), None)
            # a group that is created again under this name is another one
            self.forbidden.pop(str(change["groupName"]), None)
        elif kind == "group-forbidden":
            self._forbid(str(change["group"]), str(change["topic"]), bool(change["readable"]))
        else:
            group = SubscriptionGroupConfig.from_json(change)
            self.table[group.name] = group
        self.version = self.version.next(self._now_ms())

    def reset(self) -> None:
        self.table, self.forbidden = _built_in(), {}
        self.version = DataVersion(timestamp=self._now_ms())


def _built_in() -> dict[str, SubscriptionGroupConfig]:
    return {name: SubscriptionGroupConfig(name=name) for name in names.BUILT_IN_GROUPS}
