"""The topics of this broker: their settings, when a send may create one, and what the kernel may do with each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from kappamq.config.broker import BrokerConfig
from kappamq.errors import InvalidParameter, NoPermission, NotMaster, TopicNotFound
from kappamq.events import Events
from kappamq.native.interface import Kernel
from kappamq.native.layout import TOPIC_PULL, TOPIC_SEND
from kappamq.protocol import names
from kappamq.protocol.bodies.topics import (
    PERMISSION_INHERIT,
    PERMISSION_READ,
    PERMISSION_WRITE,
    DataVersion,
    TopicConfig,
    TopicTable,
)
from kappamq.protocol.headers.client import SendMessage
from kappamq.state.events import SettingsChanged, TopicChanged, TopicDeleted, TopicForgotten
from kappamq.state.metadata import Commit
from kappamq.store.queues.deleted_topics import CHANGED_KIND, DELETED, DELETED_KIND, FILE, FORGOTTEN_KIND

_READ_WRITE = PERMISSION_READ | PERMISSION_WRITE
_DELETED_AT = "kappamqDeletedAt"
_PERMISSION_KIND = "topics-permission"


class Topics:
    file = FILE
    kinds = (CHANGED_KIND, DELETED_KIND, FORGOTTEN_KIND, _PERMISSION_KIND)

    def __init__(
        self,
        config: BrokerConfig,
        kernel: Kernel,
        now_ms: Callable[[], int],
        commit: Commit,
        events: Events | None = None,
    ) -> None:
        self._config = config
        self._kernel = kernel
        self._now_ms = now_ms
        self._commit = commit
        self._events = events if events is not None else Events()
        self.table: dict[str, TopicConfig] = {}
        self.version = DataVersion(timestamp=now_ms())
        self.dirty = False
        self.deleted: dict[
            str, dict[int, int]
        ] = {}  # where the numbering of deleted topics ended, in case they are created again
        self._deleted_at: dict[str, int] = {}  # the log offset behind which a deleted topic has no messages
        self.own_system = frozenset((config.cluster, config.name, names.reply_topic(config.cluster)))
        for topic in self._built_in():
            self._put(topic)

    def _built_in(self) -> list[TopicConfig]:
        config = self._config
        inherit = _READ_WRITE | PERMISSION_INHERIT
        levels = max(18, len(config.delays_ms))
        topics = [
            TopicConfig(names.SELF_TEST_TOPIC, 1, 1, _READ_WRITE),
            TopicConfig(names.BENCHMARK_TOPIC, 1024, 1024, _READ_WRITE),
            TopicConfig(config.cluster, 16, 16, inherit),
            TopicConfig(config.name, 1, 1, inherit),
            TopicConfig(names.OFFSET_MOVED_TOPIC, 1, 1, _READ_WRITE),
            TopicConfig(names.SCHEDULE_TOPIC, levels, levels, _READ_WRITE),
            TopicConfig(names.reply_topic(config.cluster), 1, 1, _READ_WRITE),
            TopicConfig(names.HALF_TOPIC, 1, 1, _READ_WRITE),
            TopicConfig(names.HALF_OP_TOPIC, 1, 1, _READ_WRITE),
            TopicConfig(names.TIMER_TOPIC, 1, 1, _READ_WRITE),
        ]
        if config.auto_create_topic:
            queues = config.default_topic_queues
            topics.append(TopicConfig(names.AUTO_CREATE_TOPIC, queues, queues, inherit))
        if config.trace_topic_enabled:
            topics.append(TopicConfig(config.trace_topic, 1, 1, _READ_WRITE))
        return topics

    # -- looking up --------------------------------------------------------------------------------------------------------

    def get(self, name: str) -> TopicConfig | None:
        return self.table.get(name)

    def existing(self, name: str) -> TopicConfig:
        topic = self.table.get(name)
        if topic is None:
            raise TopicNotFound(
                f"topic[{name}] not exist, apply first please! Create it with `kappamq topic create {name}` or mqadmin updateTopic"
            )
        return topic

    def readable(self, name: str) -> TopicConfig:
        topic = self.existing(name)
        if not topic.permission & PERMISSION_READ:
            raise NoPermission(f"the topic[{name}] pulling message is forbidden")
        return topic

    def first_offset(self, name: str, queue_id: int) -> int:
        """The offset of a queue's first message: 0 unless the topic was deleted and created again."""
        ends = self.deleted.get(name)
        return ends.get(queue_id, 0) if ends is not None else 0

    def is_system(self, name: str) -> bool:
        return names.is_system_topic(name, self.own_system)

    # -- changing ----------------------------------------------------------------------------------------------------------

    def for_send(self, header: SendMessage, retry_topic: Callable[[str], TopicConfig] | None = None) -> TopicConfig:
        """The topic of a send, created if settings allow it. Raises the error for the sender.

        `retry_topic` creates the retry topic of a group, which is not created from a template."""
        name = header.topic
        if not name.strip():
            raise InvalidParameter("the topic of the message is blank")
        names.check_topic(name)
        if not names.is_sendable(name):
            raise NoPermission(f"the topic[{name}] is a system topic: clients may not send to it")
        topic = self.table.get(name)
        if topic is None and self._config.writable:
            topic = self._create_for_send(header, retry_topic or self.existing)
        if topic is None or not topic.permission & PERMISSION_WRITE or not self._config.writable:
            raise NoPermission(
                f"the broker[{self._config.name}] sending message is forbidden: topic {name} has no write permission"
            )
        return topic

    def _create_for_send(self, header: SendMessage, retry_topic: Callable[[str], TopicConfig]) -> TopicConfig:
        if names.is_retry_topic(header.topic):
            return retry_topic(header.topic)
        template = self.table.get(header.default_topic)
        if template is None or not template.permission & PERMISSION_INHERIT or not self._config.auto_create_topic:
            return self.existing(header.topic)
        if len(self.table) >= self._config.topics_max:
            raise NoPermission(
                f"there are {len(self.table)} topics already (topics_max): delete some, or raise the limit"
            )
        queues = max(1, min(header.default_topic_queues, template.write_queues))
        return self.update(
            TopicConfig(header.topic, queues, queues, template.permission & ~PERMISSION_INHERIT, template.filter_type)
        )

    def update(self, topic: TopicConfig) -> TopicConfig:
        """Create or change a topic. The change is appended to the log when this returns."""
        known = self.table.get(topic.name)
        if known == topic:
            return topic
        self._check(topic)
        return self._update(topic)

    def _check(self, topic: TopicConfig) -> None:
        if topic.name not in self.table and len(self.table) >= self._config.topics_max:
            raise InvalidParameter(f"there are {len(self.table)} topics already (topics_max)")
        for count in (topic.read_queues, topic.write_queues):
            if not 0 <= count <= self._config.topic_queues_max:
                raise InvalidParameter(f"a topic has 0 to {self._config.topic_queues_max} queues, not {count}")

    def _update(self, topic: TopicConfig, *, anyway: bool = False) -> TopicConfig:
        self._commit(CHANGED_KIND, topic.to_json(), anyway=anyway)
        changed = self.table[topic.name]
        self._events.publish(TopicChanged(changed))
        return changed

    def delete(self, name: str) -> bool:
        """Remove a topic; its numbering continues if it is created again."""
        if name not in self.table:
            return False
        ends = {queue_id: self._kernel.queue_state(name, queue_id).next for queue_id in self._kernel.queue_ids(name)}
        at = self._kernel.append_offset
        self._commit(DELETED_KIND, _deletion(name, ends, at))
        self._events.publish(TopicDeleted(name))
        return True

    def settings_changed(self, event: SettingsChanged) -> None:
        if "broker.permission" in event.fields:
            self.permission_changed()
        if event.fields & {"broker.auto_create_topic", "broker.default_topic_queues"}:
            self.template_changed()

    def permission_changed(self) -> None:
        """The permission of the broker as a whole has changed, and with it what the kernel may do with every topic."""
        for topic in self.table.values():
            self._tell_kernel(topic)
        with suppress(NotMaster):
            self._commit(_PERMISSION_KIND, None, anyway=True)  # name servers compare versions

    def template_changed(self) -> None:
        """Whether sends may create topics, or with how many queues, has changed."""
        if self._config.auto_create_topic:
            queues = self._config.default_topic_queues
            with suppress(NotMaster):  # the template is a topic like others: only the master changes it
                self.update(TopicConfig(names.AUTO_CREATE_TOPIC, queues, queues, _READ_WRITE | PERMISSION_INHERIT))

    def make_ordered(self, topics: Iterable[str]) -> None:
        """Name servers say that messages of these topics are sent and consumed in order."""
        for name in topics:
            topic = self.table.get(name)
            if topic is not None and not topic.order:
                changed = TopicConfig.from_json(topic.to_json())
                changed.order = True
                with suppress(NotMaster):  # the master hears it from the name servers, too
                    self.update(changed)

    def ensure(
        self, name: str, queues: int, permission: int = _READ_WRITE, *, order: bool = False, sys_flag: int = 0
    ) -> TopicConfig:
        """Create a topic that the broker itself needs, such as a retry topic. Raises NotMaster if this node may not create it."""
        topic = self.table.get(name)
        if topic is None:
            topic = TopicConfig(name, queues, queues, permission, order=order, sys_flag=sys_flag)
            self._check(topic)
            topic = self._update(topic, anyway=True)  # if the log takes no records it is created again after a restart
        return topic

    def forget_deleted(self, log_min: int) -> None:
        """The log now begins later: forget deleted topics whose last message was deleted with its beginning."""
        for name in [name for name in self.deleted if name not in self.table]:
            # Records of earlier versions do not contain the offset: then it is taken when first needed.
            if name not in self._deleted_at:
                self._commit(DELETED_KIND, _deletion(name, {}, self._kernel.append_offset), anyway=True)
            if self._deleted_at[name] <= log_min and self._kernel.forget_topic(name):
                try:
                    self._commit(FORGOTTEN_KIND, name, anyway=True)
                except NotMaster:  # the role has just ended: undo; try again when the log is next shortened
                    for queue_id, end in self.deleted[name].items():
                        self._kernel.set_queue(name, queue_id, end, end)
                    raise
                self._events.publish(TopicForgotten(name))

    def _removed(self, name: str, ends: dict[int, int], at: int | None) -> None:
        self.table.pop(name, None)
        self.deleted[name] = {**self.deleted.get(name, {}), **ends}
        if at is not None:
            self._deleted_at[name] = at
        self._kernel.set_topic(name, 0, 0, 0)

    def _put(self, topic: TopicConfig) -> None:
        self.table[topic.name] = topic
        self._tell_kernel(topic)

    def _tell_kernel(self, topic: TopicConfig) -> None:
        plain = (
            not topic.attributes.get("queue.type", "").startswith("Batch")
            and topic.attributes.get("cleanup.policy") != "COMPACTION"
        )
        sendable = (
            names.is_sendable(topic.name)
            and not names.is_retry_topic(topic.name)
            and not names.is_dlq_topic(topic.name)
        )
        flags = 0
        if (
            plain
            and sendable
            and topic.permission & PERMISSION_WRITE
            and self._config.writable
            and topic.filter_type == "SINGLE_TAG"
        ):
            flags |= TOPIC_SEND
        if topic.permission & PERMISSION_READ and self._config.readable:
            flags |= TOPIC_PULL
        self._kernel.set_topic(topic.name, topic.write_queues, topic.read_queues, flags)

    # -- fold --------------------------------------------------------------------------------------------------------------

    def to_snapshot(self) -> dict[str, Any]:
        return self.freeze()()

    def freeze(self) -> Callable[[], dict[str, Any]]:
        # The settings of a topic are replaced, never changed, and so are the ends of deleted ones: copying the dictionaries is enough.
        return partial(_snapshot, dict(self.table), self.version, dict(self.deleted), dict(self._deleted_at))

    def from_snapshot(self, table: dict[str, Any]) -> None:
        loaded = TopicTable.from_json(table)
        self.version = loaded.data_version
        for name, topic in loaded.topics.items():
            topic.name = name
            self._put(topic)
        for name, ends in (table.get(DELETED) or {}).items():
            self.deleted[name] = {int(queue_id): int(end) for queue_id, end in ends.items()}
        for name, at in (table.get(_DELETED_AT) or {}).items():
            self._deleted_at[name] = int(at)

    def hide_deleted(self, *, ours: bool = True) -> list[str]:
        """After loading: messages from before a deletion stay deleted, also in queues rebuilt from the log.
        Returns the deleted topics that have not been created again. `ours`: this node records changes of them itself."""
        for name, ends in list(self.deleted.items()):
            for queue_id, end in ends.items():
                low, known_end, _next, _stored = self._kernel.queue_state(name, queue_id)
                if known_end < end or name not in self.table:
                    begin = max(end, known_end)
                    self._hide_below(name, queue_id, begin)
                    if ours and begin > end:  # sent later, to a topic whose creation was lost
                        self._commit(DELETED_KIND, _deletion(name, {queue_id: begin}, None))
                elif low < end:
                    self._kernel.set_queue_min(name, queue_id, end)
        return [name for name in self.deleted if name not in self.table]

    def followed(self, kind: str, change: Any) -> None:
        """The master has recorded this change, and the table has applied it: publish it."""
        if kind == CHANGED_KIND:
            topic = self.table.get(TopicConfig.from_json(change).name)
            if topic is not None:
                self._events.publish(TopicChanged(topic))
        elif kind == DELETED_KIND:
            self._hide_followed(str(change["topicName"]))

    def hide_followed(self) -> None:
        """The same for all deleted topics: their records arrived behind the tables."""
        for name in list(self.deleted):
            self._hide_followed(name)

    def _hide_followed(self, name: str) -> None:
        """As `hide_deleted`, for one topic; messages sent to it later lie behind this change and stay."""
        for queue_id, end in self.deleted.get(name, {}).items():
            self._hide_below(name, queue_id, end)

    def _hide_below(self, name: str, queue_id: int, begin: int) -> None:
        """Messages that are in the log but not in the queue yet keep their numbers: the topic may have been created again."""
        low, end, numbered, _stored = self._kernel.queue_state(name, queue_id)
        if numbered == end <= begin:
            if low < begin:
                self._kernel.set_queue(name, queue_id, begin, begin)
        elif low < begin:
            self._kernel.set_queue_min(name, queue_id, min(begin, end))

    def add_ends(self, ends: Mapping[str, Mapping[int, int]]) -> None:
        """After loading: topics that are not in the table, and have queue ends but no messages, count as deleted.
        If one is created again, its messages continue at these numbers; otherwise it is forgotten in time."""
        for name, queues in ends.items():
            # The queue of these metadata records does not belong to a topic that a client could have deleted.
            if name not in self.table and name not in self.deleted and name != names.METADATA_TOPIC:
                self._commit(DELETED_KIND, _deletion(name, queues, None))

    def reset(self) -> None:
        for name in self.table:
            self._kernel.set_topic(name, 0, 0, 0)
        self.table.clear()
        self.deleted.clear()
        self._deleted_at.clear()
        self.version = DataVersion(timestamp=self._now_ms())
        for topic in self._built_in():
            self._put(topic)

    def apply(self, kind: str, change: Any) -> None:
        if kind == CHANGED_KIND:
            self._put(TopicConfig.from_json(change))
        elif kind == FORGOTTEN_KIND:
            self.deleted.pop(str(change), None)
            self._deleted_at.pop(str(change), None)
        elif kind == DELETED_KIND:
            ends = {int(queue_id): int(end) for queue_id, end in change["ends"].items()}
            at = change.get("at")
            self._removed(str(change["topicName"]), ends, None if at is None else int(at))
        self.version = self.version.next(self._now_ms())


def _deletion(name: str, ends: Mapping[int, int], at: int | None) -> dict[str, Any]:
    change = {"topicName": name, "ends": {str(queue_id): end for queue_id, end in ends.items()}}
    return change if at is None else change | {"at": at}


def _snapshot(
    topics: dict[str, TopicConfig],
    version: DataVersion,
    deleted: Mapping[str, Mapping[int, int]],
    deleted_at: dict[str, int],
) -> dict[str, Any]:
    ends = {name: {str(queue_id): end for queue_id, end in queues.items()} for name, queues in deleted.items()}
    table = TopicTable(topics=topics, data_version=version).to_json()
    return {**table, DELETED: ends, _DELETED_AT: deleted_at}
