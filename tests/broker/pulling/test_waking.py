"""Woken pulls: a peer that does not take its answers waits on, and many of them share the turns of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from kappamq.broker.pulling import waking
from kappamq.broker.pulling.long_poll import OWNER_QUEUE_MAX
from kappamq.broker.pulling.waking import PullRequest, Waking
from kappamq.net.requests.fair_turns import FairTurns
from kappamq.net.serving.connection import Connection
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame, FrameDecoder
from tests.broker.running import MODES, run, running, speaking
from tests.waiting import eventually_async as eventually


class Peer:
    """Takes so many answers before it is stalled."""

    def __init__(self, takes: int = 1 << 30) -> None:
        self.takes = takes
        self.is_open = True
        self.answers: list[int] = []
        self.on_writable: list[Callable[[Any], None]] = []

    @property
    def is_stalled(self) -> bool:
        return len(self.answers) >= self.takes

    def take_more(self, count: int) -> None:
        self.takes += count
        callbacks, self.on_writable = self.on_writable, []
        for callback in callbacks:
            callback(self)


def pulls(peer: Peer, count: int) -> list[PullRequest]:
    return [
        PullRequest(cast(Connection, peer), "g", "t", 0, 0, 32, None, 1000, number, False, answer)
        for number in range(count)
    ]


def answer(request: PullRequest) -> None:
    cast(Any, request.connection).answers.append(request.opaque)


def never(job: Coroutine[Any, Any, None]) -> None:
    job.close()
    raise AssertionError("there was time for all of them")


def test_who_does_not_take_its_answers_gets_no_more_until_it_does() -> None:
    async def test() -> None:
        wakes = Waking(FairTurns(), never)
        slow, quick, gone = Peer(takes=1), Peer(), Peer()
        gone.is_open = False
        wakes.wake([*pulls(slow, 4), *pulls(gone, 2), *pulls(quick, 3)])
        assert (slow.answers, quick.answers, gone.answers) == ([0], [0, 1, 2], [])
        slow.take_more(2)
        assert slow.answers == [0, 1, 2], "then it is stalled again"
        slow.take_more(2)
        assert slow.answers == [0, 1, 2, 3]
        slow.takes = 0
        wakes.wake(pulls(slow, 2))
        wakes.lost(cast(Connection, slow))
        slow.take_more(10)
        assert slow.answers == [0, 1, 2, 3], "who is lost is forgotten"
        assert not wakes._aside

    run(test())


def test_many_that_take_long_share_the_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "SLICE_S", -1.0)

    async def test() -> None:
        jobs: list[asyncio.Task[None]] = []
        wakes = Waking(FairTurns(), lambda job: jobs.append(asyncio.ensure_future(job)))
        peer = Peer()
        wakes.wake(pulls(peer, 5))
        assert peer.answers == [0], "the slice of this turn is used up"
        await asyncio.gather(*jobs)
        assert peer.answers == [0, 1, 2, 3, 4]

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_a_message_is_not_copied_for_a_peer_that_takes_nothing(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        net = {"write_pause_bytes": 64 << 10}
        async with running(tmp_path, mode, net=net) as broker, speaking(broker) as client:
            assert (await client.send("t", b"x")).code == 0
            await client.subscribe("g", "t")
            pull = {"consumerGroup": "g", "topic": "t", "queueId": "0", "queueOffset": "1", "maxMsgNums": "32", "sysFlag": "2",
                    "commitOffset": "0", "suspendTimeoutMillis": "60000", "subVersion": "1"}  # fmt: skip
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port, limit=4096)
            count = OWNER_QUEUE_MAX + 3
            writer.write(b"".join(Frame(code=11, opaque=number, ext=pull).encode() for number in range(count)))
            await eventually(lambda: broker.pulls.waiting.count == OWNER_QUEUE_MAX)
            port = writer.get_extra_info("sockname")[1]
            connection = next(each for each in broker.server.connections if each.peer[1] == port)
            assert (await client.send("t", bytes(250_000))).code == 0
            await eventually(lambda: connection.is_stalled)
            assert connection.unsent_bytes < 600_000, "it has to take one before the next one is made"
            assert broker.pulls.waiting.count == 0
            decoder, answers = FrameDecoder(16 << 20), list[Frame]()
            while len(answers) < count:
                answers += decoder.feed(await asyncio.wait_for(reader.read(1 << 16), 30))
            refused = [each for each in answers if each.code == ResponseCode.SYSTEM_BUSY]
            assert len(refused) == 3
            assert refused[0].remark == (
                f"{OWNER_QUEUE_MAX} pulls of this connection wait for t/0, no more may: take their answers first"
            )
            assert sum(len(each.body) > 250_000 for each in answers) == OWNER_QUEUE_MAX, "all get it in the end"
            writer.close()

    run(test())
