"""The SQL filters of consumer groups, kept for a day after the last consumer of a group has gone.

Pulls use the subscriptions from heartbeats. This table is for operators (queryConsumeQueue), and for a Java broker that takes over
the store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from kappamq.config.broker import BrokerConfig
from kappamq.errors import NotMaster
from kappamq.filters import bloom
from kappamq.protocol.bodies.clients import SubscriptionData
from kappamq.state.metadata import Commit

LiveSubscriptions = Callable[[str], Mapping[str, SubscriptionData]]
"""The subscriptions of a group's connected members, by topic; empty if there are none."""
FILTERS_MAX: Final = 10_000
_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class FilterData:
    topic: str
    group: str
    expression: str
    expression_type: str
    version: int  # of the subscription
    born_ms: int
    dead_ms: int = 0  # when its last consumer left; 0: it has consumers

    def to_json(self) -> dict[str, Any]:
        return {
            "bloomFilterData": {"bitNum": bloom.BITS, "bitPos": bloom.positions(self.group, self.topic)},
            "bornTime": self.born_ms,
            "clientVersion": self.version,
            "consumerGroup": self.group,
            "dead": self.dead_ms >= self.born_ms,
            "deadTime": self.dead_ms,
            "expression": self.expression,
            "expressionType": self.expression_type,
            "topic": self.topic,
        }

    def to_text(self) -> str:
        return json.dumps(self.to_json(), indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> FilterData:
        return cls(
            str(data["topic"]),
            str(data["consumerGroup"]),
            str(data["expression"]),
            str(data["expressionType"]),
            int(data["clientVersion"]),
            int(data["bornTime"]),
            int(data["deadTime"]),
        )


class ConsumerFilters:
    file = "consumerFilter.json"
    kinds = ("filter", "filter-deleted")

    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int], commit: Commit) -> None:
        self._config = config
        self._now_ms = now_ms
        self._commit = commit
        self._table: dict[tuple[str, str], FilterData] = {}  # (topic, group)
        self._versions: dict[
            tuple[str, str], int
        ] = {}  # of live subscriptions, where newer than the table's; not recorded
        self._look_at = 0.0
        self.dirty = False

    def get(self, group: str, topic: str) -> FilterData | None:
        known = self._table.get((topic, group))
        version = self._versions.get((topic, group))
        return known if known is None or version is None else replace(known, version=version)

    def subscribed(self, group: str, subscription: SubscriptionData) -> None:
        """A heartbeat contained this subscription."""
        key = (subscription.topic, group)
        known = self._table.get(key)
        if known is None and len(self._table) >= FILTERS_MAX:
            return
        if known is not None and not known.dead_ms and known.expression == subscription.expression:
            self._versions[key] = subscription.version  # grows with every rebalance: nothing to record
            return
        born_ms = self._now_ms() if known is None else known.born_ms
        self._note(
            FilterData(
                subscription.topic,
                group,
                subscription.expression,
                subscription.expression_type,
                subscription.version,
                born_ms,
            )
        )

    def tick(self, live: LiveSubscriptions, now: float) -> None:
        """Update, from time to time (`now` is liveness time), which groups have lost their consumers; drop old ones."""
        if now < self._look_at or not self._table:
            return
        self._look_at = now + _PAUSE_S
        now_ms = self._now_ms()
        for key in list(self._table):
            data = replace(self._table[key], version=self._versions.get(key, self._table[key].version))
            alive = self._is_theirs(data, live(data.group))
            if alive and data.dead_ms:
                self._note(replace(data, dead_ms=0))
            elif not alive and not data.dead_ms:
                self._note(replace(data, dead_ms=max(now_ms, data.born_ms)))
            elif not alive and now_ms - data.dead_ms > self._config.filter_keep_ms:
                self._commit("filter-deleted", list(key), anyway=True)

    @staticmethod
    def _is_theirs(data: FilterData, subscriptions: Mapping[str, SubscriptionData]) -> bool:
        current = subscriptions.get(data.topic)
        return current is not None and current.expression_type == data.expression_type

    def _note(self, data: FilterData) -> None:
        with suppress(NotMaster):  # not the master: that one gets the heartbeats, too
            self._commit("filter", data.to_json(), anyway=True)

    def _set(self, data: FilterData) -> None:
        self._table[data.topic, data.group] = data
        self._versions.pop((data.topic, data.group), None)

    # -- fold --------------------------------------------------------------------------------------------------------------

    def to_snapshot(self) -> dict[str, Any]:
        by_topic: dict[str, dict[str, Any]] = {}
        for (topic, group), data in self._table.items():
            entry = by_topic.setdefault(topic, {"groupFilterData": {}, "topic": topic})
            entry["groupFilterData"][group] = data.to_json()
        return {"filterDataByTopic": by_topic}

    def from_snapshot(self, table: dict[str, Any]) -> None:
        for entry in (table.get("filterDataByTopic") or {}).values():
            for data in (entry.get("groupFilterData") or {}).values():
                self._set(FilterData.from_json(data))

    def apply(self, kind: str, change: Any) -> None:
        if kind == "filter-deleted":
            self._table.pop((str(change[0]), str(change[1])), None)
            self._versions.pop((str(change[0]), str(change[1])), None)
        else:
            self._set(FilterData.from_json(change))

    def reset(self) -> None:
        self._table.clear()
        self._versions.clear()
