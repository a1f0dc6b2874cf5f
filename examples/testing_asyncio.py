"""Test an asyncio application without changing it: its own clients, consumers that start before their topics, hours that pass at once.

python examples/testing_asyncio.py
"""

from __future__ import annotations

import asyncio

from kappamq import RETRY, AsyncConsumer, AsyncProducer, Message, ReceivedMessage, Redeliver
from kappamq.testing import BrokerKit


class Reminders:
    """The application. It knows nothing of tests: all it is given is the address of a name server."""

    def __init__(self, nameserver: str) -> None:
        self.sent: list[str] = []
        self._producer = AsyncProducer(nameserver, group="reminders")
        self._consumer = AsyncConsumer(nameserver, group="mailer", topics="reminders", listener=self._mail)

    async def __aenter__(self) -> Reminders:
        await self._consumer.start()  # nobody has created the topic yet
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.close()
        await self._producer.close()

    async def remind(self, text: str, hours: float) -> None:
        await self._producer.send(Message("reminders", text.encode(), delay=hours * 3600))

    async def _mail(self, message: ReceivedMessage) -> Redeliver | None:
        if message.reconsume_times == 0:
            return RETRY  # the mail server is down: the message comes again in ten seconds
        self.sent.append(message.text)
        return None


async def main() -> None:
    async with BrokerKit() as broker, Reminders(broker.nameserver) as application:
        await application.remind("call mum", hours=0)
        await application.remind("water the tea bush", hours=24)
        await broker.settle_async()  # everybody has done what can be done now: the first try has failed
        assert application.sent == []
        await broker.clock.advance_async("10s")
        print("after ten seconds:", application.sent)
        await broker.clock.advance_async("1d")
        print("a day later:", application.sent)


if __name__ == "__main__":
    asyncio.run(main())
