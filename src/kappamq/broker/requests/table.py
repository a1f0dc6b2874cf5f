"""Every request that a broker serves or refuses, declared once: header, size, the rights it needs, and what it does.

The handlers are methods of the other rooms: each room has `handlers()`, which maps codes to methods, and a broker starts only if the
two sides agree. Headers are decoded by this table (Bursts), sizes are checked by it before a body is read, and docs/REQUESTS.md is
made from it. Rights are not enforced yet.

To add a request: a code in protocol/codes.py, its header in protocol/headers (and its body, if it has one, in protocol/bodies), a row
here, and a handler in the room that it belongs to; `python -m tests.broker.requests.test_table` writes the page anew.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, Final

from kappamq.broker.requests.declaration import Action, Declaration, RequestTable, Resource, Right
from kappamq.broker.requests.sizes import ANSWERED_BY_A_MESSAGE, ANSWERED_BY_MESSAGES, FIELDS, MESSAGE, json_body
from kappamq.broker.requests.unsupported import refusals
from kappamq.net.requests.sizes import RequestLimit
from kappamq.protocol.bodies.batches import ChunkList, FinishedBatches
from kappamq.protocol.bodies.clients import (
    CheckClientBody,
    GroupConfigList,
    HeartbeatData,
    LockBatch,
    SubscriptionGroupConfig,
)
from kappamq.protocol.bodies.topics import TopicConfigList
from kappamq.protocol.codes import RequestCode as Code
from kappamq.protocol.headers import admin, batches, client
from kappamq.protocol.headers.header import Header

_LIST: Final = "list_bytes_max"
_TOPIC, _GROUP, _CLUSTER = Resource.TOPIC, Resource.GROUP, Resource.CLUSTER
_PUBLISH = Right(_TOPIC, Action.PUBLISH, "topic")
_SUBSCRIBE = Right(_TOPIC, Action.SUBSCRIBE, "topic")
_READ_TOPIC = Right(_TOPIC, Action.READ, "topic")
_READ_GROUP = Right(_GROUP, Action.READ, "group")
_READ_MEMBERS = Right(_GROUP, Action.READ, "consumer_group")
_JOIN_GROUP = Right(_GROUP, Action.SUBSCRIBE, "consumer_group")
_CHANGE_GROUP = Right(_GROUP, Action.CHANGE, "group")
_READ_CLUSTER = Right(_CLUSTER, Action.READ)
_CHANGE_CLUSTER = Right(_CLUSTER, Action.CHANGE)


def _plain(header: client.SendMessageV2) -> client.SendMessage:
    """Handlers do not care which names the fields had on the wire."""
    return header.plain()


def _served(
    header: type[Header],
    does: str,
    *rights: Right,
    size: RequestLimit = FIELDS,
    normalise: Callable[[Any], Header] | None = None,
    code: Code | None = None,
) -> Declaration:
    """`code` is needed only where several requests share a header: else the header says whose it is."""
    chosen = header.code if code is None else code
    assert chosen is not None, f"{header.__name__} is no header of a request"
    return Declaration(int(chosen), header, does, rights, size, normalise)


_SENDING = (
    _served(client.SendMessage, "Stores a message.", _PUBLISH, size=MESSAGE),
    _served(
        client.SendMessageV2,
        "Stores a message; the header fields have short names.",
        _PUBLISH,
        size=MESSAGE,
        normalise=_plain,
    ),
    _served(
        client.SendMessageV2,
        "Stores several messages of one topic: all of them or none.",
        _PUBLISH,
        size=MESSAGE,
        normalise=_plain,
        code=Code.SEND_BATCH_MESSAGE,
    ),
    _served(
        client.SendMessage,
        "Hands the reply of a request-reply call to the client that asked.",
        _PUBLISH,
        size=MESSAGE,
        code=Code.SEND_REPLY_MESSAGE,
    ),
    _served(
        client.SendMessageV2,
        "Does the same as 324; the header fields have short names.",
        _PUBLISH,
        size=MESSAGE,
        normalise=_plain,
        code=Code.SEND_REPLY_MESSAGE_V2,
    ),
    _served(client.EndTransaction, "Commits a transaction, rolls it back, or leaves it open.", _PUBLISH),
    _served(
        admin.ResumeCheckHalfMessage,
        "Has the producers of an open transaction asked again how it ended.",
        _CHANGE_CLUSTER,
    ),
    _served(client.RecallMessage, "Takes a timed message back before its time has come.", _PUBLISH),
)

_PUBLISH_BATCH = Right(_CLUSTER, Action.PUBLISH)
_BATCHES = (
    _served(batches.OpenScope, "Records a scope of batch transactions, or says who owns it.", _PUBLISH_BATCH),
    _served(batches.BeginBatch, "Begins a transaction for a batch of a scope.", _PUBLISH_BATCH),
    _served(
        batches.StageChunk, "Stores messages that are published if their batch is decided.", _PUBLISH, size=MESSAGE
    ),
    _served(
        batches.DecideBatch,
        "Decides that a batch is published, on all brokers.",
        _PUBLISH_BATCH,
        size=json_body(ChunkList, "decision_bytes_max"),
    ),
    _served(batches.AbortBatch, "Aborts a transaction: nothing of it is published.", _PUBLISH_BATCH),
    _served(batches.AwaitBatch, "Waits until a decided batch is published on all brokers.", _PUBLISH_BATCH),
    _served(
        batches.CheckChunks,
        "Checks that chunks are staged, before the coordinator decides.",
        _CHANGE_CLUSTER,
        size=json_body(ChunkList, "decision_bytes_max"),
    ),
    _served(batches.SettleScope, "Has a broker ask the coordinator of a scope what was decided.", _CHANGE_CLUSTER),
    _served(
        batches.AskDecisions,
        "Says what a broker has published of a scope, and returns what else it should publish.",
        _CHANGE_CLUSTER,
        size=json_body(FinishedBatches, _LIST),
    ),
    _served(
        admin.ChangeMembers,
        "Adds a member to a Raft group, removes one, or gives one another address.",
        _CHANGE_CLUSTER,
    ),
    _served(admin.TransferLeader, "Has another member of a Raft group lead.", _CHANGE_CLUSTER),
    _served(batches.QueryScopes, "Lists scopes of batch transactions.", _READ_CLUSTER),
    _served(batches.RemoveScope, "Forgets a scope, so that another owner can use its name.", _CHANGE_CLUSTER),
)

_CONSUMING = (
    _served(
        client.PullMessage, "Reads messages of a queue; waits for one if there is none yet.", _SUBSCRIBE, _JOIN_GROUP
    ),
    _served(
        client.PullMessage,
        "Does the same as 11, for consumers that choose their queues themselves.",
        _SUBSCRIBE,
        _JOIN_GROUP,
        code=Code.LITE_PULL_MESSAGE,
    ),
    _served(
        client.SendBack,
        "Has a message delivered again later, since its consumer failed.",
        Right(_GROUP, Action.SUBSCRIBE, "group"),
    ),
    _served(
        client.QueryConsumerOffset,
        "Returns the offset that a group has committed for a queue.",
        _READ_TOPIC,
        _READ_MEMBERS,
    ),
    _served(client.UpdateConsumerOffset, "Commits an offset of a group for a queue.", _SUBSCRIBE, _JOIN_GROUP),
    _served(client.GetMaxOffset, "Returns the offset that the next message of a queue gets.", _READ_TOPIC),
    _served(client.GetMinOffset, "Returns the offset of the first message of a queue.", _READ_TOPIC),
    _served(client.SearchOffset, "Returns the offset of the message that was stored at a time.", _READ_TOPIC),
    _served(client.GetEarliestStoreTime, "Returns when the first message of a queue was stored.", _READ_TOPIC),
)

_CLIENTS = (
    _served(
        client.HeartBeat,
        "Says which groups a client is a member of and what they subscribe to.",
        Right(_GROUP, Action.SUBSCRIBE, named_by="consumerDataSet in the body"),
        Right(_TOPIC, Action.SUBSCRIBE, named_by="subscriptionDataSet in the body"),
        size=json_body(HeartbeatData, "heartbeat_bytes_max"),
    ),
    _served(client.UnregisterClient, "Takes a client out of its groups.", _JOIN_GROUP),
    _served(client.GetConsumerList, "Lists the client ids of the members of a group.", _READ_MEMBERS),
    _served(
        client.CheckClientConfig,
        "Checks a subscription before a consumer begins to use it.",
        Right(_TOPIC, Action.SUBSCRIBE, named_by="subscriptionData in the body"),
        size=json_body(CheckClientBody, _LIST),
    ),
    _served(
        client.LockQueues,
        "Locks queues for one consumer of a group that consumes in order.",
        Right(_GROUP, Action.SUBSCRIBE, named_by="consumerGroup in the body"),
        size=json_body(LockBatch, _LIST),
    ),
    _served(
        client.UnlockQueues,
        "Gives locks of queues back.",
        Right(_GROUP, Action.SUBSCRIBE, named_by="consumerGroup in the body"),
        size=json_body(LockBatch, _LIST),
    ),
)

_MESSAGES = (
    _served(
        client.QueryMessage,
        "Finds messages of a topic by a key, or by their unique id.",
        _READ_TOPIC,
        size=ANSWERED_BY_MESSAGES,
    ),
    _served(
        client.ViewMessage,
        "Returns the message at a log offset.",
        Right(_TOPIC, Action.READ, named_by="the message that is found"),
        size=ANSWERED_BY_A_MESSAGE,
    ),
)

_ADMIN_TOPICS = (
    _served(admin.UpdateTopic, "Creates or changes a topic.", Right(_TOPIC, Action.CHANGE, "topic")),
    _served(
        admin.UpdateTopicList,
        "Creates or changes several topics: all of them or none.",
        Right(_TOPIC, Action.CHANGE, named_by="topicConfigList in the body"),
        size=json_body(TopicConfigList, _LIST),
    ),
    _served(admin.DeleteTopic, "Deletes a topic and its messages.", Right(_TOPIC, Action.DELETE, "topic")),
    _served(admin.GetTopicConfig, "Returns the settings of a topic.", _READ_TOPIC),
    _served(admin.GetAllTopicConfig, "Returns the settings of all topics, or a page of them.", _READ_CLUSTER),
    _served(admin.GetSystemTopicsFromBroker, "Lists the topics that belong to the system.", _READ_CLUSTER),
    _served(
        admin.GetTopicStats, "Returns offsets and the time of the last message for each queue of a topic.", _READ_TOPIC
    ),
    _served(admin.QueryConsumeQueue, "Returns entries of a queue as they are on disk.", _READ_TOPIC),
)

_ADMIN_GROUPS = (
    _served(
        admin.UpdateGroup,
        "Creates or changes a group.",
        Right(_GROUP, Action.CHANGE, named_by="groupName in the body"),
        size=json_body(SubscriptionGroupConfig),
    ),
    _served(
        admin.UpdateGroupList,
        "Creates or changes several groups: all of them or none.",
        Right(_GROUP, Action.CHANGE, named_by="groupConfigList in the body"),
        size=json_body(GroupConfigList, _LIST),
    ),
    _served(
        admin.DeleteGroup,
        "Deletes a group, and its offsets if that is asked for.",
        Right(_GROUP, Action.DELETE, "group"),
    ),
    _served(admin.ForbidGroup, "Forbids or allows a group to read a topic.", _CHANGE_GROUP, _READ_TOPIC),
    _served(admin.GetGroup, "Returns the settings of a group.", _READ_GROUP),
    _served(admin.GetAllGroups, "Returns the settings of all groups, or a page of them.", _READ_CLUSTER),
)

_ADMIN_CLIENTS = (
    _served(admin.GetConsumerConnections, "Lists the connections and subscriptions of a group.", _READ_MEMBERS),
    _served(admin.GetProducerConnections, "Lists the connections of a group of producers.", _READ_CLUSTER),
    _served(admin.GetAllProducers, "Lists all producers that are connected.", _READ_CLUSTER),
    _served(admin.QueryGroupsOfTopic, "Lists the groups that read a topic.", _READ_TOPIC),
    _served(admin.QueryTopicsOfGroup, "Lists the topics that a group has read.", _READ_GROUP),
    _served(admin.QuerySubscription, "Returns what a group subscribes to in a topic.", _READ_GROUP, _READ_TOPIC),
    _served(client.GetRunningInfo, "Asks a consumer about its state.", _READ_MEMBERS),
    _served(
        client.ConsumeDirectly,
        "Has a consumer consume one message at once.",
        Right(_GROUP, Action.CHANGE, "consumer_group"),
        Right(_TOPIC, Action.READ, named_by="the message that is found"),
    ),
    _served(
        admin.GetConsumerStatusByBroker,
        "Asks the consumers of a group for their offsets in a topic.",
        _READ_GROUP,
        _READ_TOPIC,
    ),
)

_ADMIN_PROGRESS = (
    _served(admin.GetConsumeStats, "Returns offsets and lag of a group for each queue.", _READ_MEMBERS),
    _served(admin.GetBrokerConsumeStats, "Returns offsets and lag of all groups.", _READ_CLUSTER),
    _served(
        admin.QueryConsumeTimeSpan,
        "Returns by how much time a group is behind in each queue of a topic.",
        _READ_TOPIC,
        _READ_GROUP,
    ),
    _served(admin.GetAllConsumerOffsets, "Returns the offsets of all groups.", _READ_CLUSTER),
    _served(
        admin.QueryCorrectionOffset,
        "Returns the smallest offset of the groups that read a topic, for each queue.",
        _READ_TOPIC,
    ),
    _served(
        admin.ResetOffsetByBroker,
        "Resets the offsets of a group to a time or to an offset.",
        _CHANGE_GROUP,
        _READ_TOPIC,
    ),
    _served(
        admin.CloneGroupOffset,
        "Resets the offsets of a group to those of another group.",
        Right(_GROUP, Action.READ, "source_group"),
        Right(_GROUP, Action.CHANGE, "target_group"),
    ),
)

_ADMIN_BROKER = (
    _served(admin.UpdateBrokerConfig, "Changes settings while the broker runs.", _CHANGE_CLUSTER),
    _served(admin.GetBrokerConfig, "Returns the settings of the broker.", _READ_CLUSTER),
    _served(
        admin.GetBrokerRuntimeInfo, "Returns figures about the broker: disk, rates, connections, timers.", _READ_CLUSTER
    ),
    _served(admin.ViewBrokerStats, "Returns the rates of one counter over a minute, an hour and a day.", _READ_CLUSTER),
    _served(admin.DeleteExpiredLog, "Deletes log files past their retention time.", _CHANGE_CLUSTER),
    _served(admin.CleanExpiredQueues, "Deletes what queue and index files hold of deleted log files.", _CHANGE_CLUSTER),
    _served(admin.CleanUnusedTopics, "Deletes queue files of topics that no longer exist.", _CHANGE_CLUSTER),
    _served(admin.GetAllDelayOffsets, "Returns the position of each delay level.", _READ_CLUSTER),
    _served(admin.GetTimerCheckpoint, "Returns the checkpoint of the timer files.", _READ_CLUSTER),
    _served(admin.GetHaStatus, "Returns how far each slave has got, or how far this slave is.", _READ_CLUSTER),
    _served(admin.GetBrokerEpochs, "Returns where in the log each term of a master began.", _READ_CLUSTER),
    _served(admin.GetTimerMetrics, "Returns how many timed messages are pending for each topic.", _READ_CLUSTER),
    _served(admin.GetAllMessageRequestModes, "Returns which groups use POP: none.", _READ_CLUSTER),
)

SECTIONS: Final[dict[str, tuple[Declaration, ...]]] = {
    "Sending": _SENDING,
    "Batch transactions": _BATCHES,
    "Consuming": _CONSUMING,
    "Clients and groups": _CLIENTS,
    "Finding messages": _MESSAGES,
    "Administration of topics": _ADMIN_TOPICS,
    "Administration of groups": _ADMIN_GROUPS,
    "Administration of clients": _ADMIN_CLIENTS,
    "Offsets and lag": _ADMIN_PROGRESS,
    "Administration of the broker": _ADMIN_BROKER,
    "Refused": tuple(refusals()),
}

REQUESTS: Final = RequestTable(chain.from_iterable(SECTIONS.values()))
REQUEST_SIZES: Final[dict[int, RequestLimit]] = {
    **dict.fromkeys(Code, FIELDS),  # also for codes that a broker does not know
    **{code: declared.size for code, declared in REQUESTS.items()},
}
