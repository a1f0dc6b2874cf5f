"""Sends failed messages back to the broker, which redelivers them later or moves them to the dead-letter queue.

Preferably the broker copies the record it has (code 36). If that broker is not available, the message is sent anew to
the group's retry topic, on any broker that accepts it.
"""

from __future__ import annotations

import logging
import random
from typing import Final

from kappamq.client.core.core import ClientCore
from kappamq.client.producer.outgoing import packed
from kappamq.errors import KappaError
from kappamq.message import ReceivedMessage
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.client import SendBack, SendMessageV2
from kappamq.protocol.names import retry_topic
from kappamq.protocol.records import properties

log = logging.getLogger(__name__)

RECONSUME_MAX: Final = 16
"""The default of RocketMQ's clients."""
NO_LIMIT: Final = 2**31 - 2
FIRST_LEVEL: Final = 3
"""The delay level of the first redelivery; each further one uses the next level."""
PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
_TRIES: Final = 3
# These describe the record that was read, so a copy must not carry them.
_NOT_COPIED: Final = frozenset(
    {
        *properties.BROKER_ONLY,
        properties.TRANSACTION_PREPARED,
        properties.MIN_OFFSET,
        properties.MAX_OFFSET,
        properties.RECONSUME_TIME,
        properties.MAX_RECONSUME_TIMES,
    }
)
# The message is stored, even if a stronger guarantee (flush, replica) was not met in time.
_STORED: Final = frozenset(
    map(
        int,
        (
            ResponseCode.SUCCESS,
            ResponseCode.FLUSH_DISK_TIMEOUT,
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
            ResponseCode.SLAVE_NOT_AVAILABLE,
        ),
    )
)


class Redelivery:
    """For one consumer group. `reconsume_max`: redeliveries before a message goes to the dead-letter queue."""

    def __init__(self, core: ClientCore, group: str, reconsume_max: int) -> None:
        self._core = core
        self.group = group
        self.reconsume_max = reconsume_max

    async def give_back(self, message: ReceivedMessage, level: int = 0) -> None:
        """Have the message redelivered. `level`: 0 lets the broker choose the delay, -1 means the dead-letter queue.

        Raises KappaError if no broker accepts it.
        """
        header = SendBack(
            log_offset=message.log_offset,
            group=self.group,
            delay_level=level,
            origin_message_id=message.message_id,
            origin_topic=message.topic,
            unit_mode=False,
            max_reconsume_times=self.reconsume_max,
            logical_broker=message.queue.broker,
        )
        try:
            await self._core.ask_master(message.queue.topic, message.queue.broker, header)
        except KappaError as error:
            log.info(
                "the broker of message %s does not take it back (%s); sending a copy to the retry topic",
                message.message_id,
                error,
            )
            times = self.reconsume_max + 1 if level < 0 else message.reconsume_times + 1
            await self.send_again(message, times, level if level > 0 else FIRST_LEVEL + message.reconsume_times)

    async def bury(self, message: ReceivedMessage) -> None:
        """Send a copy to the dead-letter queue, as a normal send: for ordered groups. Raises KappaError."""
        await self.send_again(message, self.reconsume_max + 1, FIRST_LEVEL + message.reconsume_times)

    async def send_again(self, message: ReceivedMessage, reconsume_times: int, level: int) -> None:
        """Send a copy to the retry topic; beyond `reconsume_max` the broker moves it to the dead-letter queue."""
        topic, core = retry_topic(self.group), self._core
        body, sys_flag = message.body, 0
        if len(body) >= core.config.compress_over_bytes:
            body, sys_flag = packed(body, core.config)
        named = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
        named.setdefault(properties.RETRY_TOPIC, message.topic)
        named.setdefault(properties.ORIGIN_MESSAGE_ID, message.offset_id or message.message_id)
        named[properties.DELAY] = str(level)
        route = await core.routes.find(topic)
        queues = list(route.publish)
        failure: KappaError | None = None
        for queue in random.sample(queues, min(len(queues), _TRIES)):
            header = SendMessageV2(
                producer_group=PRODUCER_GROUP,
                topic=topic,
                default_topic=core.config.default_topic,
                default_topic_queues=core.config.default_topic_queues,
                queue_id=queue.queue_id,
                sys_flag=sys_flag,
                born_ms=message.born_ms,
                flag=message.flag,
                properties=properties.encode(named),
                reconsume_times=reconsume_times,
                unit_mode=False,
                max_reconsume_times=self.reconsume_max,
                batch=False,
                broker_name=queue.broker,
            )
            try:
                await core.ask_master(topic, queue.broker, header, body, accept=_STORED, patient=False)
                return
            except KappaError as error:
                failure = error
        raise failure or KappaError(f"topic {topic} has no writable queue at the moment")
