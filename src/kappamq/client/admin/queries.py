"""Message queries: by key, by id, by time."""

from __future__ import annotations

import asyncio
import datetime
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from kappamq.client.consumer.pull_consumer import AsyncPullConsumer
from kappamq.client.core import arguments
from kappamq.client.core.core import ClientCore
from kappamq.client.core.routes import MASTER_ID, Route
from kappamq.client.group.offsets import Offsets, time_ms
from kappamq.client.pulling.pulling import messages_in
from kappamq.errors import BrokerError, InvalidParameter, KappaError, ProtocolError, QueryNotFound
from kappamq.message import MessageQueue, ReceivedMessage
from kappamq.protocol.address import join, unpack_ip
from kappamq.protocol.bodies.topics import ClusterInfo
from kappamq.protocol.headers.client import QueryMessage, QueryMessageResponse, ViewMessage
from kappamq.protocol.names import TOOLS_GROUP
from kappamq.protocol.records.ids import OffsetId, could_be_id, parse_offset_id

COUNT_MAX: Final = 64
"""The most messages a broker returns for a query by key."""
WHOLE_BYTES_MAX: Final = 4 << 20
"""Our broker ends an answer before the message that would exceed 8 MiB, and a message may have 4 MiB."""
FOREVER_MS: Final = (1 << 63) - 1
NAME_THE_TOPIC: Final = "name the topic (--topic) if a producer gave this id; "


@dataclass(frozen=True, slots=True)
class Indexed:
    """The index entries of a key at one broker; they may include other keys with the same hash."""

    places: tuple[tuple[MessageQueue, int], ...]
    log_offset: int  # how far the log is indexed
    whole: bool  # False: there may be more than fit into an answer


class MessageQueries(ABC):
    """The methods of an admin that find messages."""

    @abstractmethod
    def start(self) -> ClientCore: ...

    @abstractmethod
    async def cluster(self) -> ClusterInfo: ...

    async def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        count: int = 32,
        begin: int | datetime.datetime = 0,
        end: int | datetime.datetime = FOREVER_MS,
    ) -> list[ReceivedMessage]:
        """Return messages with this key that were stored between two times, oldest first."""
        arguments.text("key", key)
        found = await self._query(topic, key, count, time_ms(begin), time_ms(end), unique=False)
        # The index holds only hashes, so compare the keys here.
        return [message for message in found if key in message.keys][:count]

    async def query_by_id(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """Return the message with this id. Raises QueryNotFound.

        Accepts both kinds of id: the offset id contains the position; the producer's id needs the topic to search in.
        """
        arguments.text("message_id", message_id)
        if topic is not None:
            for message in await self.query_copies(message_id, topic):
                return message
        try:
            place = parse_offset_id(message_id)
        except ProtocolError as error:
            if topic is None and could_be_id(message_id):
                raise QueryNotFound(f"{message_id} was assigned by a producer: name its topic, too (--topic)") from None
            if could_be_id(message_id):
                raise QueryNotFound(
                    f"no message in topic {topic} has the id {message_id}: it may have been deleted"
                ) from None
            raise QueryNotFound(f"no message {message_id!r}: {error}") from None
        found = await self._view(message_id, place)
        if found is None:
            hint = "" if topic is not None else NAME_THE_TOPIC
            raise QueryNotFound(f"{hint}no broker has message {message_id}: it may have been deleted")
        return found

    async def query_copies(self, message_id: str, topic: str) -> list[ReceivedMessage]:
        """Return the messages of a topic with this producer-assigned id, oldest first; several if it was redelivered."""
        found = await self._query(topic, message_id, COUNT_MAX, 0, FOREVER_MS, unique=True)
        return [message for message in found if message.message_id == message_id]

    async def find_in_index(self, topic: str, key: str, *, unique: bool = False) -> dict[str, Indexed]:
        """Return for each broker of a topic the positions of messages with this key; `unique`: with this producer-assigned id.

        A broker that finds nothing does not report how far its index reaches, so it is left out."""
        arguments.text("key", key)
        core = self.start()
        route = await core.routes.find(topic)
        header = QueryMessage(
            topic=topic, key=key, count_max=COUNT_MAX, begin_ms=0, end_ms=FOREVER_MS, unique_key=unique or None
        )

        async def at(broker: str) -> Indexed | None:
            try:
                answer = await core.ask(route.reader(broker), header)
            except QueryNotFound:
                return None
            found = list(messages_in(answer.body, broker, core.damage, topic))
            whole = len(found) < COUNT_MAX and len(answer.body) < WHOLE_BYTES_MAX
            places = tuple((message.queue, message.queue_offset) for message in found if message.topic == topic)
            return Indexed(places, QueryMessageResponse.decode(answer.ext).index_log_offset, whole)

        brokers = sorted(route.addresses)
        answers = await asyncio.gather(*map(at, brokers))
        return {broker: answer for broker, answer in zip(brokers, answers, strict=True) if answer is not None}

    async def query_by_time(
        self,
        topic: str,
        begin: int | datetime.datetime,
        end: int | datetime.datetime = FOREVER_MS,
        *,
        count: int = 1000,
        tags: str = "*",
    ) -> list[ReceivedMessage]:
        """Return up to `count` messages of a topic stored from `begin` up to, not including, `end`, oldest first."""
        core = self.start()
        begin_ms, end_ms = time_ms(begin), time_ms(end)
        reader = AsyncPullConsumer(group=TOOLS_GROUP, config=core.config)
        async with reader:
            queues = (await core.routes.find(topic)).subscribe
            parts = await asyncio.gather(
                *(self._between(reader, queue, begin_ms, end_ms, count, tags) for queue in queues)
            )
        return sorted((message for part in parts for message in part), key=age)[:count]

    async def offsets_at(self, topic: str, moment: int | datetime.datetime) -> dict[MessageQueue, int]:
        """Return for each queue the offset of the first message stored at or after a time."""
        core = self.start()
        offsets = Offsets(core, TOOLS_GROUP)
        queues = (await core.routes.find(topic)).subscribe
        found = await asyncio.gather(*(offsets.search(queue, time_ms(moment)) for queue in queues))
        return dict(zip(queues, found, strict=True))

    async def _between(
        self, reader: AsyncPullConsumer, queue: MessageQueue, begin_ms: int, end_ms: int, count: int, tags: str
    ) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        start = await reader.search(queue, begin_ms)
        async for message in reader.read(queue, start, tags=tags):
            if message.stored_ms >= end_ms or len(found) >= count:
                break
            if message.stored_ms >= begin_ms:
                found.append(message)
        return found

    async def _query(
        self, topic: str, key: str, count: int, begin_ms: int, end_ms: int, *, unique: bool
    ) -> list[ReceivedMessage]:
        if not 1 <= count <= COUNT_MAX:
            raise InvalidParameter(f"a query by key returns 1 to {COUNT_MAX} messages, got count={count}")
        core = self.start()
        route = await core.routes.find(topic)
        header = QueryMessage(
            topic=topic, key=key, count_max=count, begin_ms=begin_ms, end_ms=end_ms, unique_key=unique or None
        )
        parts = await asyncio.gather(*(self._query_at(route, broker, header) for broker in sorted(route.addresses)))
        return sorted((message for part in parts for message in part if message.topic == topic), key=age)

    async def _query_at(self, route: Route, broker: str, header: QueryMessage) -> list[ReceivedMessage]:
        try:
            answer = await self.start().ask(route.reader(broker), header)
        except QueryNotFound:
            return []
        return list(messages_in(answer.body, broker, self.start().damage, header.topic))

    async def _view(self, message_id: str, place: OffsetId) -> ReceivedMessage | None:
        # Never connect to an address only because an id contains it: ask the known brokers, the named one first.
        named = join(unpack_ip(place.host), place.port)
        brokers = [
            (address, name)
            for name, broker in sorted((await self.cluster()).brokers.items())
            for number, address in sorted(broker.addresses.items())
            if number == MASTER_ID or address == named
        ]
        failure: KappaError | None = None
        for address, name in sorted(brokers, key=lambda broker: broker[0] != named):
            try:
                answer = await self.start().ask(address, ViewMessage(log_offset=place.log_offset))
            except (BrokerError, QueryNotFound):
                continue
            except KappaError as error:
                failure = error
                continue
            for message in messages_in(answer.body, name, self.start().damage):
                if message.offset_id == message_id.upper():
                    return message
        if failure is not None:
            raise failure
        return None


def age(message: ReceivedMessage) -> tuple[int, str, int]:
    """Sort key by store time; within a millisecond, by log order."""
    return message.stored_ms, message.queue.broker, message.log_offset
