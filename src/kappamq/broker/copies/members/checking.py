"""Checks a leader's messages before the Raft node uses them: a forged or wrong one closes the sender's connection."""

from __future__ import annotations

from kappamq.broker.copies.members.reading import require_good
from kappamq.errors import ForeignBytes
from kappamq.raft import Append, Message, Node
from kappamq.replication.frames import BadStream
from kappamq.store.message_store import MessageStore


def checked(store: MessageStore, node: Node, message: Message, data: memoryview) -> memoryview:
    """`data`, which came with the message. Raises BadStream if our log cannot go on with it, or may not be cut as it says."""
    if isinstance(message, Append) and data and message.start == store.log.end:
        try:
            require_good(store, message.start, data)
        except ForeignBytes as error:
            raise BadStream(f"{message.source} sends what no leader has: {error}") from None
    wrong = node.contradiction(message)
    if wrong is not None:
        raise BadStream(f"{message.source} says what no leader would: {wrong}")
    return data
