"""Requests for what this version does not do: refused with a text that says so, never taken and forgotten.

Slaves and tools also ask for tables that would belong to these features. They get them, empty.
"""

from __future__ import annotations

from kappamq.broker.requests.bursts import Handler
from kappamq.errors import NotSupported
from kappamq.net.serving.connection import Connection
from kappamq.protocol import fastjson
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame, reply

_POP = "POP consumption is not supported by this version of the broker: use a push or pull consumer"
_COPIES = "slaves and copies are not supported by this version of the broker: it runs as a single master"
_ACCESS = "users and access control are not supported by this version of the broker"

REFUSED: dict[int, str] = {
    RequestCode.CHECK_TRANSACTION_STATE: "a broker asks producers about transactions, not the other way round",
    RequestCode.POP_MESSAGE: _POP,
    RequestCode.ACK_MESSAGE: _POP,
    RequestCode.BATCH_ACK_MESSAGE: _POP,
    RequestCode.PEEK_MESSAGE: _POP,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _POP,
    RequestCode.NOTIFICATION: _POP,
    RequestCode.POLLING_INFO: _POP,
    RequestCode.QUERY_ASSIGNMENT: "the broker does not assign queues in this version: the clients of a group share them",
    RequestCode.SET_MESSAGE_REQUEST_MODE: _POP,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: "static topics are not supported by this version of the broker",
    RequestCode.TRIGGER_DELETE_FILES: "use DELETE_EXPIRED_COMMITLOG (329, mqadmin deleteExpiredCommitLog) instead",
    RequestCode.EXCHANGE_BROKER_HA_INFO: _COPIES,
    RequestCode.GET_BROKER_HA_STATUS: _COPIES,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: _COPIES,
    RequestCode.GET_BROKER_EPOCH_CACHE: _COPIES,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _COPIES,
    **dict.fromkeys(range(2001, 2005), "limits for readers of cold data are not supported by this version of the broker"),
    **dict.fromkeys(range(3001, 3011), _ACCESS),
}  # fmt: skip


class NotYet:
    def handlers(self) -> dict[int, Handler]:
        return {
            **dict.fromkeys(REFUSED, self.refuse),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.request_modes,
        }

    def refuse(self, connection: Connection, frame: Frame) -> Frame:
        raise NotSupported(f" request type {frame.code} not supported: {REFUSED[frame.code]}")

    def request_modes(self, connection: Connection, frame: Frame) -> Frame:
        return reply(frame, body=fastjson.dumps({"messageRequestModeMap": {}}))
