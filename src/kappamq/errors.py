"""Every error KappaMQ raises, in one tree.

    KappaError
    |- BrokerError and friends    a server answered with a response code: one class per code, see `KappaError.by_code`
    |- ProtocolError              the peer (or a file) sent bytes that are not what they claim to be
    |  |- FrameTooLarge
    |  `- HeaderError
    |- ConfigError                an option, property or configuration file is wrong: nothing was started
    |  `- NoSuchTopic             an option names a topic that does not exist; also a TopicNotFound
    |- DataLoss                   messages that a reader should have read are gone from their queue
    |- StoreError                 the data directory cannot be used, or not as asked
    |  `- StoreLocked StoreDamaged StoreReadOnly StoreFormatError DiskFull FlushFailed
    `- ClientError                this side gave up before any server gave an answer
       `- SendTimeout RequestTimeout NoRoute (UnknownTopic) NotConnected (NotUnderstood) ClientClosed TooManyRequests

Two questions have their answer on the class, so that no caller keeps lists of codes: which response code stands for the
error on the wire (`code`), and whether trying again can help (`retry`).
"""

from __future__ import annotations

import enum
from typing import ClassVar

from kappamq.protocol.codes import ResponseCode


class Retry(enum.Enum):
    """What a caller may do with a request that failed."""

    NEVER = "never"  # the request itself is wrong, or repeating it could do harm
    ELSEWHERE = "elsewhere"  # this broker cannot; another one that has the topic may
    AFTER_ROUTE_REFRESH = "after route refresh"  # we asked the wrong place: look the route up again first
    LATER = "later"  # the same place, after a pause


class KappaError(Exception):
    """Base of all our errors. `code` is the response code that carries it, None if it never travels."""

    code: ClassVar[ResponseCode | None] = None
    retry: ClassVar[Retry] = Retry.NEVER
    by_code: ClassVar[dict[ResponseCode, type[KappaError]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # A subclass without a code of its own inherits the number for answering, but does not claim it.
        own = cls.__dict__.get("code")
        if own is not None:
            other = KappaError.by_code.setdefault(own, cls)
            assert other is cls, f"{cls.__name__} and {other.__name__} both claim {own!r}"

    def __init__(self, message: str = "", *, response_code: int | None = None) -> None:
        super().__init__(message)
        # The number that came over the wire; it differs from `code` only for numbers we have no class for.
        self.response_code: int | None = self.code if response_code is None else response_code

    @property
    def message(self) -> str:
        return str(self)


# --- a server answered with a response code ---------------------------------------------------------------------------


class BrokerError(KappaError):
    """The server failed in a way it has no better code for."""

    code, retry = ResponseCode.SYSTEM_ERROR, Retry.ELSEWHERE


class Busy(KappaError):
    """Refused before anything was stored: too much is waiting already."""

    code, retry = ResponseCode.SYSTEM_BUSY, Retry.ELSEWHERE


class NotSupported(KappaError):
    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class TransactionFailed(KappaError):
    code = ResponseCode.TRANSACTION_FAILED


class FlushTimeout(KappaError):
    """Stored, but not known to be on disk. Sending it again would store it twice."""

    code = ResponseCode.FLUSH_DISK_TIMEOUT


class SlaveNotAvailable(KappaError):
    """Stored here, but no copy could be made. Sending it again would store it twice."""

    code = ResponseCode.SLAVE_NOT_AVAILABLE


class SlaveTimeout(KappaError):
    """Stored here, but no copy was confirmed in time. Sending it again would store it twice."""

    code = ResponseCode.FLUSH_SLAVE_TIMEOUT


class IllegalMessage(KappaError):
    code = ResponseCode.MESSAGE_ILLEGAL


class NotAvailable(KappaError):
    """The broker cannot store just now: disk full, read-only, shutting down or a slave."""

    code, retry = ResponseCode.SERVICE_NOT_AVAILABLE, Retry.ELSEWHERE


class VersionNotSupported(KappaError):
    code = ResponseCode.VERSION_NOT_SUPPORTED


class NoPermission(KappaError):
    code, retry = ResponseCode.NO_PERMISSION, Retry.ELSEWHERE


class TopicNotFound(KappaError):
    code, retry = ResponseCode.TOPIC_NOT_EXIST, Retry.AFTER_ROUTE_REFRESH


class TopicExists(KappaError):
    code = ResponseCode.TOPIC_EXIST_ALREADY


class OffsetMoved(KappaError):
    """The offset asked for lies outside the queue; the answer says where to go on."""

    code = ResponseCode.PULL_OFFSET_MOVED


class QueryNotFound(KappaError):
    code = ResponseCode.QUERY_NOT_FOUND


class SubscriptionInvalid(KappaError):
    """The filter expression cannot be parsed."""

    code = ResponseCode.SUBSCRIPTION_PARSE_FAILED


class SubscriptionUnknown(KappaError):
    """The broker has not had this consumer's heartbeat yet, or the group does not subscribe to the topic."""

    code, retry = ResponseCode.SUBSCRIPTION_NOT_EXIST, Retry.LATER


class SubscriptionOutdated(KappaError):
    """The broker knows an older subscription than the pull names; the next heartbeat brings the new one."""

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
    """The server is shutting down in good order: use another connection."""

    code, retry = ResponseCode.GO_AWAY, Retry.ELSEWHERE


# --- errors that never travel as a code of their own ------------------------------------------------------------------


class ProtocolError(KappaError):
    """Bytes that are not what they claim to be. The connection they came by cannot be trusted any further."""


class FrameTooLarge(ProtocolError):
    """A length field claims more than the limit. Raised before anything is allocated for it."""


class HeaderError(ProtocolError):
    """A request's header lacks a field or holds one that cannot be read. The connection itself is fine."""


class ConfigError(KappaError):
    """An option, property or configuration file is wrong."""


class NoSuchTopic(ConfigError, TopicNotFound):
    """An option names a topic that does not exist. To try again does not help: the name is wrong, or the topic must be created."""

    retry = Retry.NEVER


class DataLoss(KappaError):
    """Messages that a reader should have read are gone from their queue: retention was faster, or the queue lost its tail.

    Reading again does not bring them back; a reader may be told to go on behind them."""


class StoreError(KappaError):
    """The data directory cannot be used, or not in the way asked for."""


class StoreLocked(StoreError):
    """Another process has the data directory open."""


class StoreDamaged(StoreError):
    """Bytes that had been safely on disk are no longer what they were. Nothing was cut away."""


class StoreFormatError(StoreError):
    """A file has a name or size that does not fit the configuration, or is not ours."""


class StoreReadOnly(StoreError):
    """The store takes no more writes until the broker is started again, or was opened for reading only."""

    retry = Retry.ELSEWHERE


class FlushFailed(StoreReadOnly):
    """fdatasync reported an error: what was not yet flushed may be lost, and writing on would hide it."""


class DiskFull(StoreError):
    """The disk guard refuses user writes. Reads go on, and writing resumes by itself once there is space."""

    retry = Retry.ELSEWHERE


class ClientError(KappaError):
    """This side gave up; no server has said anything about the request."""


class SendTimeout(ClientError, TimeoutError):
    """No answer in time. The message may or may not have been stored."""


class RequestTimeout(ClientError, TimeoutError):
    """No answer in time to a request other than a send."""

    retry = Retry.LATER


class NoRoute(ClientError):
    """No name server could be asked, or none knows a broker for the topic."""

    retry = Retry.AFTER_ROUTE_REFRESH


class UnknownTopic(NoRoute):
    """The name servers were asked, and none knows the topic."""


class NotConnected(ClientError, ConnectionError):
    """The connection could not be made, or was lost before the answer came."""

    retry = Retry.ELSEWHERE


class NotUnderstood(NotConnected):
    """Somebody answers at the address, but we cannot talk: one side wants TLS and the other not, a certificate is not trusted,
    or it is not RocketMQ's protocol."""


class ClientClosed(ClientError):
    """The producer, consumer or admin was closed, or never started."""


class TooManyRequests(ClientError):
    """As many requests are waiting for answers as this client allows; slow down, or raise the limit."""

    retry = Retry.LATER


def for_code(code: int, remark: str | None = None) -> KappaError:
    """Return (not raise) the error that stands for a response code other than SUCCESS.

    Codes without a class of their own become a BrokerError that remembers the number in `response_code`: a server newer
    than this client must still give a readable error.
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
    return (kind or BrokerError)(text or f"the server answered {name} without an explanation", response_code=code)
