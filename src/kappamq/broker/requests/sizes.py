"""How large each request to a broker may be: every code, in one table. See net/requests/sizes.py."""

from __future__ import annotations

from typing import Final

from kappamq.net.requests.sizes import RequestLimit
from kappamq.protocol.bodies.clients import (
    CheckClientBody,
    GroupConfigList,
    HeartbeatData,
    LockBatch,
    SubscriptionGroupConfig,
)
from kappamq.protocol.bodies.topics import TopicConfigList
from kappamq.protocol.codes import RequestCode

# The store and the kernel look at what a message has: up to a frame. Its properties stand in the header.
_MESSAGE = RequestLimit("frame_bytes_max", "header_bytes_max")
_NOTHING_BUT_FIELDS = RequestLimit()
# Whole messages are the answer. They are read by workers, and a peer must not have any number of them read and not take them.
_ONE_MESSAGE = RequestLimit(answer_bytes=4 << 20)
_MESSAGES = RequestLimit(answer_bytes=8 << 20)

REQUEST_SIZES: Final[dict[int, RequestLimit]] = {
    **dict.fromkeys(RequestCode, _NOTHING_BUT_FIELDS),
    RequestCode.SEND_MESSAGE: _MESSAGE,
    RequestCode.SEND_MESSAGE_V2: _MESSAGE,
    RequestCode.SEND_BATCH_MESSAGE: _MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE: _MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2: _MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID: _ONE_MESSAGE,
    RequestCode.QUERY_MESSAGE: _MESSAGES,
    RequestCode.HEART_BEAT: RequestLimit("heartbeat_bytes_max", kind=HeartbeatData),
    RequestCode.CHECK_CLIENT_CONFIG: RequestLimit("list_bytes_max", kind=CheckClientBody),
    RequestCode.LOCK_BATCH_MQ: RequestLimit("list_bytes_max", kind=LockBatch),
    RequestCode.UNLOCK_BATCH_MQ: RequestLimit("list_bytes_max", kind=LockBatch),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: RequestLimit("list_bytes_max", kind=TopicConfigList),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: RequestLimit(kind=SubscriptionGroupConfig),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: RequestLimit("list_bytes_max", kind=GroupConfigList),
}
