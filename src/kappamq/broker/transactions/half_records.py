"""What half messages, their copies, op records and committed messages look like in the log. Pure translation.

The bytes are those of a RocketMQ broker, which could go on with them. On top: a copy of a half names its root in the
record's field for that, an op record names the root and says what has happened, and a copy says when the root was stored.
"""

from __future__ import annotations

from typing import Final

from kappamq.broker.sending.appending import SYS_COMMIT, Draft
from kappamq.broker.transactions.open_transactions import Half, Op, Outcome
from kappamq.native.layout import SYS_TRANSACTION
from kappamq.protocol import names
from kappamq.protocol.records import properties
from kappamq.protocol.records.record import Record

GROUP: Final = names.TRANSACTION_GROUP
_TAG: Final = "d"
_OUTCOMES: Final = frozenset(outcome.value for outcome in Outcome)
_SECONDS_MAX: Final = 10**9
_DEMANDED: Final = frozenset({properties.PRODUCER_GROUP, properties.REAL_TOPIC, properties.REAL_QUEUE_ID})


def is_half(pairs: dict[str, str], reconsume_times: int) -> bool:
    """Does a message with these properties begin a transaction? One that a consumer sends back for later does not, though it
    still looks like it."""
    if pairs.get(properties.TRANSACTION_PREPARED, "").lower() != "true":
        return False
    return not (reconsume_times > 0 and pairs.get(properties.DELAY, "0") != "0")


def prepare(draft: Draft, group: str) -> None:
    """Turn a message into a half message; `group` is its producer group, unless the message itself names one."""
    pairs = draft.properties
    for name in (properties.TRANSACTION_CHECK_TIMES, properties.PREPARED_QUEUE_OFFSET, properties.HALF_SINCE):
        pairs.pop(name, None)
    pairs[properties.REAL_TOPIC], pairs[properties.REAL_QUEUE_ID] = draft.topic, str(draft.queue_id)
    pairs.setdefault(properties.PRODUCER_GROUP, group)
    unique = pairs.get(properties.UNIQUE_KEY)
    if unique:
        pairs[properties.TRANSACTION_ID] = unique
    draft.topic, draft.queue_id = names.HALF_TOPIC, 0
    draft.sys_flag &= ~SYS_TRANSACTION


def opened(draft: Draft, log_offset: int, queue_offset: int, size: int, now_ms: int) -> Half:
    """The transaction that a prepared draft opened when it was stored."""
    return _opened(draft.properties, draft.source, log_offset, queue_offset, size, now_ms)


def _opened(pairs: dict[str, str], source: int, log_offset: int, queue_offset: int, size: int, now_ms: int) -> Half:
    return Half(
        source or log_offset,
        log_offset,
        queue_offset,
        size,
        pairs[properties.PRODUCER_GROUP],
        pairs[properties.REAL_TOPIC],
        _number(pairs.get(properties.HALF_SINCE), now_ms),
        _immune_ms(pairs.get(properties.CHECK_IMMUNITY_SECONDS)),
        _number(pairs.get(properties.TRANSACTION_CHECK_TIMES), 0),
    )


def read_half(record: Record, pairs: dict[str, str], size: int) -> Half | None:
    """The transaction that a record of the half queue, with these properties, stands for; None if it makes no sense as one."""
    if not pairs.keys() >= _DEMANDED:
        return None
    return _opened(pairs, record.prepared_offset, record.log_offset, record.queue_offset, size, record.stored_ms)


def is_nameless_copy(record: Record, pairs: dict[str, str]) -> bool:
    """Is this a copy that a Java broker made? It does not name its root."""
    copied = properties.TRANSACTION_CHECK_TIMES in pairs or properties.PREPARED_QUEUE_OFFSET in pairs
    return copied and not record.prepared_offset


def copied(half: Half, record: Record, checks: int) -> Draft:
    """The next copy of a half, for the end of the half queue."""
    draft = Draft.of(record)
    draft.source = half.root
    pairs = draft.properties
    # A Java broker takes an op record for the place named here as the end of the transaction; it is the old place's only.
    pairs.pop(properties.PREPARED_QUEUE_OFFSET, None)
    pairs[properties.HALF_SINCE] = str(half.since_ms)
    if checks:
        pairs[properties.TRANSACTION_CHECK_TIMES] = str(checks)
    else:
        pairs.pop(properties.TRANSACTION_CHECK_TIMES, None)
    return draft


def committed(half: Half, record: Record) -> Draft:
    """What consumers get. As RocketMQ does it, the text still says where the message came from."""
    draft = Draft.of(record)
    draft.source = half.root
    draft.properties.pop(properties.HALF_SINCE, None)
    draft.topic = draft.properties[properties.REAL_TOPIC]
    draft.queue_id = _number(draft.properties.get(properties.REAL_QUEUE_ID), 0)
    draft.sys_flag = draft.sys_flag & ~SYS_TRANSACTION | SYS_COMMIT
    return draft


def given_up(half: Half, record: Record) -> Draft:
    """For the topic of halves that nobody has decided about; an operator can have them asked about again."""
    draft = Draft.of(record)
    draft.source = half.root
    draft.topic, draft.queue_id = names.TRANSACTION_GIVEN_UP_TOPIC, 0
    return draft


def op_record(half: Half, outcome: Outcome, now_ms: int, born: bytes) -> Draft:
    """Settles the place where `half` lies now."""
    pairs = {properties.TAGS: _TAG, properties.TRANSACTION_OUTCOME: outcome.value}
    body = b"%d," % half.queue_offset
    return Draft(names.HALF_OP_TOPIC, 0, body, pairs, born_ms=now_ms, born=born, source=half.root)


def read_op(record: Record, size: int) -> Op | None:
    """Return the content of an op record, ours or a Java broker's; None if it is not one."""
    pairs = record.property_map()
    if pairs.get(properties.TAGS) != _TAG:
        return None
    try:
        settled = tuple(int(piece) for piece in record.body.split(b",") if piece.strip())
    except ValueError:
        return None
    said = pairs.get(properties.TRANSACTION_OUTCOME, "")
    outcome = Outcome(said) if said in _OUTCOMES else None
    return Op(record.queue_offset, settled, record.prepared_offset, outcome, record.log_offset + size)


def _immune_ms(text: str | None) -> int | None:
    seconds = _number(text, -1)
    return None if seconds < 0 else min(seconds, _SECONDS_MAX) * 1000


def _number(text: str | None, default: int) -> int:
    """Parse a property that should be a number; anything else means the default, as in RocketMQ."""
    try:
        return default if text is None else int(text)
    except ValueError:
        return default
