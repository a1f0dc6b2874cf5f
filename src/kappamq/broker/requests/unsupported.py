"""Requests for what this version does not do: refused with a text that says so, never taken and forgotten.

Slaves and tools also ask for tables that would belong to these features. They get them, empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kappamq.broker.requests.declaration import Declaration
from kappamq.broker.requests.request import Handler, Request
from kappamq.protocol import fastjson
from kappamq.protocol.codes import RequestCode
from kappamq.protocol.frame import Frame
from kappamq.protocol.headers.admin import GetAllMessageRequestModes
from kappamq.protocol.headers.header import Header

_POP = "POP consumption is not supported by this version of the broker: use a push or pull consumer"
_CONTROLLER = (
    "this broker takes no orders from an Apache controller: its role is configured, or elected by its own group"
)
_ACCESS = "users and access control are not supported by this version of the broker"
_COLD = "limits for readers of cold data are not supported by this version of the broker"
_ASSIGNMENT = "the broker does not assign queues in this version: the clients of a group share them"

_REFUSED: Final[dict[int, tuple[str, str]]] = {
    RequestCode.CHECK_TRANSACTION_STATE: (
        "Asks a producer how a transaction ended.",
        "a broker asks producers about transactions, not the other way round",
    ),
    RequestCode.POP_MESSAGE: ("Takes messages of a queue without owning it.", _POP),
    RequestCode.ACK_MESSAGE: ("Acknowledges a message taken by POP.", _POP),
    RequestCode.BATCH_ACK_MESSAGE: ("Acknowledges several messages taken by POP.", _POP),
    RequestCode.PEEK_MESSAGE: ("Reads messages that POP would take.", _POP),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ("Changes how long a message taken by POP stays invisible.", _POP),
    RequestCode.NOTIFICATION: ("Waits until POP has something to take.", _POP),
    RequestCode.POLLING_INFO: ("Returns how many POP requests wait.", _POP),
    RequestCode.QUERY_ASSIGNMENT: ("Asks the broker which queues a consumer should read.", _ASSIGNMENT),
    RequestCode.SET_MESSAGE_REQUEST_MODE: ("Chooses between pulling and POP for a group.", _POP),
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: (
        "Creates or changes a topic whose queues are mapped to brokers.",
        "static topics are not supported by this version of the broker",
    ),
    RequestCode.TRIGGER_DELETE_FILES: (
        "Deletes log files past their time.",
        "use DELETE_EXPIRED_COMMITLOG (329, mqadmin deleteExpiredCommitLog) instead",
    ),
    RequestCode.EXCHANGE_BROKER_HA_INFO: ("Exchanges addresses and offsets between master and slave.", _CONTROLLER),
    RequestCode.RESET_MASTER_FLUSH_OFFSET: ("Tells a slave how far the master has flushed.", _CONTROLLER),
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: ("Tells a broker its new role.", _CONTROLLER),
    **dict.fromkeys(range(2001, 2005), ("Changes or lists limits for readers of cold data.", _COLD)),
    **dict.fromkeys(range(3001, 3011), ("Changes or lists users and access rules.", _ACCESS)),
}


def refusals() -> Iterator[Declaration]:
    """A declaration for each code that is refused."""
    for code, (does, refusal) in _REFUSED.items():
        header = Header.requests.get(RequestCode(code)) if code in RequestCode._value2member_map_ else None
        yield Declaration(code, header, does, refusal=refusal)


class EmptyTables:
    """Tables that belong to features which are not here."""

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.request_modes}

    def request_modes(self, request: Request[GetAllMessageRequestModes]) -> Frame:
        return request.reply(body=fastjson.dumps({"messageRequestModeMap": {}}))
