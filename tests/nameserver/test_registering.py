"""Registrations of many topics: others are served meanwhile, and on one connection everything keeps its order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import Any

import pytest

from kappamq.clock import VirtualClock
from kappamq.config.nameserver import NameServerConfig
from kappamq.config.net import NetConfig
from kappamq.errors import BrokerError, TopicNotFound
from kappamq.nameserver import registering
from kappamq.nameserver.service import NameService
from kappamq.protocol.bodies.all import RegisterBrokerBody
from kappamq.protocol.frame import Frame, request
from kappamq.protocol.headers import nameserver as h
from kappamq.protocol.headers.header import Header
from tests.nameserver.samples import body, header
from tests.nameserver.test_service import FakePeer

MANY = [f"topic_{number}" for number in range(1000)]
SIGN_OFF = h.UnregisterBroker(broker_name="b", broker_address="10.0.0.1:10911", cluster="c", broker_id=0)


class Held:
    """Decoding waits until it is let go, on the thread that does it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.begun = threading.Event()
        self.threads: list[threading.Thread] = []
        decode = registering._decoded

        def slow(frame: Frame, header: h.RegisterBroker, net: NetConfig) -> RegisterBrokerBody:
            self.threads.append(threading.current_thread())
            self.begun.set()
            assert self.go_on.wait(30)
            return decode(frame, header, net)

        monkeypatch.setattr(registering, "_decoded", slow)


def service(**options: Any) -> NameService:
    return NameService(NameServerConfig(**options), VirtualClock())


def ask(to: NameService, what: Header, data: bytes = b"", by: FakePeer | None = None) -> asyncio.Future[Frame | None]:
    async def now(answer: Any) -> Any:
        return answer

    answer = to.handle(by or FakePeer(), request(what, data))
    return asyncio.ensure_future(answer if isinstance(answer, Awaitable) else now(answer))


def known(to: NameService) -> int:
    return len(to.routes.topics())


def test_others_are_served_while_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        held, server, broker = Held(monkeypatch), service(), FakePeer()
        small = ask(server, header("small", "10.0.0.2:1"), body(["T", "U"]).encode())
        assert (await small) is not None
        big = ask(server, header(), body(MANY).encode(), broker)
        await asyncio.to_thread(held.begun.wait, 30)
        assert (await ask(server, h.GetRoute(topic="T"))) is not None
        assert not big.done()
        held.go_on.set()
        answer = await big
        assert answer is not None
        assert answer.code == 0
        assert threading.current_thread() not in held.threads
        assert known(server) == len(MANY) + 2
        assert not server._registering._lines, "nothing is left of it"

    asyncio.run(main())


def test_it_is_entered_in_parts() -> None:
    async def main() -> None:
        server = service()
        big = ask(server, header(), body(MANY).encode())
        seen = set()
        while not big.done():
            seen.add(known(server))
            await asyncio.sleep(0)
        assert {registering.TOPICS_AT_ONCE, 2 * registering.TOPICS_AT_ONCE} <= seen
        assert known(server) == len(MANY)
        # The same again, and then with one more: what is known is not entered once more, what is new is.
        for topics, counter in ((MANY, 0), ([*MANY, "new"], 1)):
            assert await ask(server, header(), body(topics, counter=counter).encode()) is not None
            assert known(server) == len(topics)

    asyncio.run(main())


def test_what_comes_on_the_same_connection_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        held, server, broker = Held(monkeypatch), service(), FakePeer()
        answers = [
            ask(server, header(), body(MANY).encode(), broker),
            ask(server, header(), body(["one more"], counter=1).encode(), broker),
            ask(server, header(), body(MANY, counter=2).encode(), broker),
            ask(server, SIGN_OFF, by=broker),
        ]
        held.go_on.set()
        assert [answer is not None and answer.code for answer in await asyncio.gather(*answers)] == [0, 0, 0, 0]
        assert known(server) == 0, "it signed off last"
        assert not server._registering._lines

    asyncio.run(main())


def test_a_connection_that_is_lost_meanwhile_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        held, server, broker = Held(monkeypatch), service(), FakePeer()
        waiting = [ask(server, header(), body(MANY).encode(), broker), ask(server, header(), body().encode(), broker)]
        await asyncio.to_thread(held.begun.wait, 30)
        server.connection_lost(broker)
        held.go_on.set()
        assert await asyncio.gather(*waiting) == [None, None]
        assert known(server) == 0
        # And lost while it is entered.
        big = ask(server, header(), body(MANY).encode(), broker)
        for _ in iter(lambda: known(server), registering.TOPICS_AT_ONCE):
            await asyncio.sleep(0)
        assert known(server) < len(MANY)
        server.connection_lost(broker)
        assert await big is None
        assert known(server) == 0
        with pytest.raises(TopicNotFound):
            await ask(server, h.GetRoute(topic=MANY[0]))

    asyncio.run(main())


def test_what_is_wrong_with_it_is_told() -> None:
    async def main() -> None:
        server = service()
        with pytest.raises(BrokerError, match="a topic name must have 1 to 255 characters, not 300"):
            await ask(server, header(), body([*MANY, "x" * 300]).encode())
        with pytest.raises(BrokerError, match="exceed the limit of 999"):
            await ask(service(topics_max=999), header(), body(MANY).encode())
        assert known(server) == 0
        assert not server._registering._lines

    asyncio.run(main())


def test_a_registration_that_is_refused_leaves_no_place_in_the_line() -> None:
    async def main() -> None:
        server, broker = service(), FakePeer()
        for _ in range(2):
            refused = server.handle(broker, request(header(), body(MANY).encode()))
            assert isinstance(refused, asyncio.Task)
            refused.cancel()  # as Unfinished does, before it has begun
            await asyncio.wait([refused])
        assert not server._registering._lines
        answer = await ask(server, header(), body(MANY).encode(), broker)
        assert answer is not None
        assert answer.code == 0

    asyncio.run(main())
