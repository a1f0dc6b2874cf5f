"""Every error KappaMQ raises, in one tree.

    KappaError
    |- BrokerError and others     a server answered with a response code: one class per code, see `KappaError.by_code`
    |- ProtocolError              the peer (or a file) sent bytes that are not what they claim to be
    |  |- FrameTooLarge
    |  |- ForeignBytes
    |  `- HeaderError
    |- ConfigError                an option, property or configuration file is wrong: nothing was started
    |  `- NoSuchTopic             an option names a topic that does not exist; also a TopicNotFound
    |- DataLoss                   messages that a reader should have read are gone from their queue
    |- StoreError                 the data directory cannot be used as requested
    |  `- StoreLocked StoreDamaged StoreReadOnly StoreFormatError DiskFull FlushFailed
    `- ClientError                the client gave up before a server answered
       `- SendTimeout RequestTimeout NoRoute (NoMaster UnknownTopic) NotConnected (NotUnderstood) ClientClosed TooManyRequests

Two attributes of the class spare callers lists of codes: `code`, the response code that represents the error on the wire,
and `retry`, whether a retry can help.
"""

from __future__ import annotations

import enum
from typing import ClassVar

from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.leader_hint import leader_of, not_known, speaks_of_leader, speaks_of_not_known


class Retry(enum.Enum):
    """What a caller may do after a failed request."""

    NEVER = "never"  # the request itself is wrong, or repeating it could do harm
    ELSEWHERE = "elsewhere"  # this broker cannot serve it; another one that has the topic may
    AFTER_ROUTE_REFRESH = "after route refresh"  # it was sent to the wrong broker: refresh the route first
    LATER = "later"  # the same broker, after a pause


class KappaError(Exception):
    """Base of all our errors. `code` is the response code that represents it, None if it is never sent."""

    code: ClassVar[ResponseCode | None] = None
    retry: ClassVar[Retry] = Retry.NEVER
    by_code: ClassVar[dict[ResponseCode, type[KappaError]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # A subclass without a code of its own inherits the code for answering, but does not register for it.
        own = cls.__dict__.get("code")
        if own is not None:
            other = KappaError.by_code.setdefault(own, cls)
            assert other is cls, f"{cls.__name__} and {other.__name__} both claim {own!r}"

    def __init__(self, message: str = "", *, response_code: int | None = None) -> None:
        super().__init__(message)
        # The code received; differs from `code` only for codes without a class.
        self.response_code: int | None = self.code if response_code is None else response_code

    @property
    def message(self) -> str:
        return str(self)


# --- a server answered with a response code ---------------------------------------------------------------------------


class BrokerError(KappaError):
    """The server failed without a more specific code."""

    code, retry = ResponseCode.SYSTEM_ERROR, Retry.ELSEWHERE


class Busy(KappaError):
    """Refused before anything was stored, because the server is overloaded."""

    code, retry = ResponseCode.SYSTEM_BUSY, Retry.ELSEWHERE


class NotSupported(KappaError):
    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class TransactionFailed(KappaError):
    code = ResponseCode.TRANSACTION_FAILED


class FlushTimeout(KappaError):
    """Stored, but not confirmed to be on disk. Sending it again would store it twice."""

    code = ResponseCode.FLUSH_DISK_TIMEOUT


class SlaveNotAvailable(KappaError):
    """Stored, but there is no slave to replicate to. Sending it again would store it twice."""

    code = ResponseCode.SLAVE_NOT_AVAILABLE


class SlaveTimeout(KappaError):
    """Stored, but not replicated in time. Sending it again would store it twice."""

    code = ResponseCode.FLUSH_SLAVE_TIMEOUT


class IllegalMessage(KappaError):
    code = ResponseCode.MESSAGE_ILLEGAL


class NotAvailable(KappaError):
    """The broker cannot store messages now: disk full, read-only, shutting down, or a slave."""

    code, retry = ResponseCode.SERVICE_NOT_AVAILABLE, Retry.ELSEWHERE


class NotMaster(NotAvailable):
    """This node does not have the right to write: it takes neither messages nor changes of its tables, whatever the reason.

    Nothing was stored. The text may name the node that has it."""

    retry = Retry.AFTER_ROUTE_REFRESH

    @property
    def leader(self) -> str | None:
        """The address of the master, if the node that refused knows it."""
        return leader_of(self.message)


class MaybeStored(NotAvailable):
    """The broker has taken the message, or the change, and cannot say whether it is stored: its leadership has ended meanwhile, no
    majority has confirmed it in time, or the disk has failed. Sending it again may store it twice."""

    retry = Retry.AFTER_ROUTE_REFRESH

    @classmethod
    def because(cls, why: str) -> MaybeStored:
        return cls(not_known(why))


class VersionNotSupported(KappaError):
    code = ResponseCode.VERSION_NOT_SUPPORTED


class NoPermission(KappaError):
    code, retry = ResponseCode.NO_PERMISSION, Retry.ELSEWHERE


class TopicNotFound(KappaError):
    code, retry = ResponseCode.TOPIC_NOT_EXIST, Retry.AFTER_ROUTE_REFRESH


class TopicExists(KappaError):
    code = ResponseCode.TOPIC_EXIST_ALREADY


class OffsetMoved(KappaError):
    """The requested offset is outside the queue; the answer says where to continue."""

    code = ResponseCode.PULL_OFFSET_MOVED


class QueryNotFound(KappaError):
    code = ResponseCode.QUERY_NOT_FOUND


class SubscriptionInvalid(KappaError):
    """The filter expression cannot be parsed."""

    code = ResponseCode.SUBSCRIPTION_PARSE_FAILED


class SubscriptionUnknown(KappaError):
    """The broker has not received this consumer's heartbeat yet, or the group does not subscribe to the topic."""

    code, retry = ResponseCode.SUBSCRIPTION_NOT_EXIST, Retry.LATER


class SubscriptionOutdated(KappaError):
    """The broker has an older subscription than the pull; the next heartbeat updates it."""

    code, retry = ResponseCode.SUBSCRIPTION_NOT_LATEST, Retry.LATER


class GroupNotFound(KappaError):
    code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class FilterUnknown(KappaError):
    code, retry = ResponseCode.FILTER_DATA_NOT_EXIST, Retry.LATER


class FilterOutdated(KappaError):
    code, retry = ResponseCode.FILTER_DATA_NOT_LATEST, Retry.LATER


class InvalidParameter(KappaError):
    code = ResponseCode.INVALID_PARAMETER


class ConsumerOffline(KappaError):
    code, retry = ResponseCode.CONSUMER_NOT_ONLINE, Retry.LATER


class ConsumeTimeout(KappaError):
    code, retry = ResponseCode.CONSUME_MSG_TIMEOUT, Retry.LATER


class BrokerNotFound(KappaError):
    code, retry = ResponseCode.BROKER_NOT_EXIST, Retry.AFTER_ROUTE_REFRESH


class FlowControlled(KappaError):
    code, retry = ResponseCode.FLOW_CONTROL, Retry.LATER


class NotLeader(KappaError):
    code, retry = ResponseCode.NOT_LEADER_FOR_QUEUE, Retry.AFTER_ROUTE_REFRESH


class IllegalOperation(KappaError):
    code = ResponseCode.ILLEGAL_OPERATION


class GoingAway(KappaError):
    """The server is shutting down gracefully: use another connection."""

    code, retry = ResponseCode.GO_AWAY, Retry.ELSEWHERE


# --- errors without a response code -----------------------------------------------------------------------------------


class ProtocolError(KappaError):
    """Malformed bytes. The connection they came from can no longer be used."""


class FrameTooLarge(ProtocolError):
    """A length field exceeds the limit. Raised before anything is allocated for it."""


class HeaderError(ProtocolError):
    """A request's header lacks a field or has an invalid one. The connection stays usable."""


class ForeignBytes(ProtocolError):
    """Bytes of another broker's log with which ours cannot go on. Nothing of them was taken."""


class ConfigError(KappaError):
    """An option, property or configuration file is wrong."""


class NoSuchTopic(ConfigError, TopicNotFound):
    """An option names a topic that does not exist. Retrying does not help: fix the name, or create the topic."""

    retry = Retry.NEVER


class DataLoss(KappaError):
    """Messages that a reader should have read are gone from their queue: retention deleted them, or the queue was truncated.

    Reading again does not bring them back; a reader may be configured to continue after them."""


class StoreError(KappaError):
    """The data directory cannot be used as requested."""


class StoreLocked(StoreError):
    """Another process has the data directory open."""


class StoreDamaged(StoreError):
    """Data that had been flushed to disk has changed. Nothing was truncated."""


class StoreFormatError(StoreError):
    """A file has a name or size that does not match the configuration, or is not part of a store."""


class StoreReadOnly(StoreError):
    """The store accepts no writes until the broker is restarted, or was opened read-only."""

    retry = Retry.ELSEWHERE


class FlushFailed(StoreReadOnly):
    """fdatasync reported an error: unflushed data may be lost, and continuing to write would hide that."""


class DiskFull(StoreError):
    """The disk is too full for user writes. Reads continue, and writes resume once there is space."""

    retry = Retry.ELSEWHERE


class ClientError(KappaError):
    """The client gave up before a server answered the request."""


class SendTimeout(ClientError, TimeoutError):
    """No answer in time. The message may have been stored."""


class RequestTimeout(ClientError, TimeoutError):
    """No answer in time to a request other than a send."""

    retry = Retry.LATER


class NoRoute(ClientError):
    """No name server could be reached, or none knows a broker for the topic."""

    retry = Retry.AFTER_ROUTE_REFRESH


class NoMaster(NoRoute):
    """The brokers of the queue are known, but none of them is the master at the moment: one is about to be elected, or restarted."""


class UnknownTopic(NoRoute):
    """The name servers answered, and none knows the topic."""


class NotConnected(ClientError, ConnectionError):
    """The connection could not be established, or was lost before the answer came."""

    retry = Retry.ELSEWHERE


class NotUnderstood(NotConnected):
    """The server at the address cannot be used: only one side uses TLS, a certificate is not trusted, or it does not speak
    RocketMQ's protocol."""


class ClientClosed(ClientError):
    """The producer, consumer or admin was closed, or never started."""


class TooManyRequests(ClientError):
    """The limit of requests in flight is reached; slow down, or raise the limit."""

    retry = Retry.LATER


def for_code(code: int, remark: str | None = None) -> KappaError:
    """Return (not raise) the error for a response code other than SUCCESS.

    Codes without a class become a BrokerError with the number in `response_code`: the error of a newer server must stay
    readable.
    """
    kind: type[KappaError] | None = None
    name = f"code {code}"
    try:
        known = ResponseCode(code)
    except ValueError:
        pass
    else:
        kind = KappaError.by_code.get(known)
        name = known.name
    text = remark.strip() if remark else ""
    if kind is NotAvailable:
        if speaks_of_not_known(text):
            kind = MaybeStored
        elif speaks_of_leader(text):
            kind = NotMaster
    return (kind or BrokerError)(text or f"the server answered {name} without an explanation", response_code=code)
