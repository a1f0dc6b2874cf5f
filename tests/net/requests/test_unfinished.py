"""Requests that are answered later are limited, for one address and in all, at every server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from kappamq.config.net import NetConfig
from kappamq.errors import NotConnected
from kappamq.net.requests.unfinished import Unfinished
from kappamq.net.serving.connection import BUSY, Connection
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame, decode, reply
from tests.net.running import Echo, connected, frame_server, run
from tests.waiting import eventually_async

KIB = 1024


class Peer:
    def __init__(self, address: str = "10.0.0.1") -> None:
        self.counted_as = address
        self.is_open = True
        self.owed = 0
        self.paused = 0
        self.answers: list[Frame] = []

    def owe(self, size: int) -> None:
        self.owed += size

    def settle(self, size: int) -> None:
        self.owed -= size

    def pause(self, reason: int) -> None:
        self.paused |= reason

    def resume(self, reason: int) -> None:
        self.paused &= ~reason

    def send(self, data: bytes) -> None:
        self.answers.append(decode(data))


def add(unfinished: Unfinished, peer: Peer, answer: Awaitable[Any], size: int = 20 * KIB, flag: int = 0) -> None:
    unfinished.add(cast(Connection, peer), Frame(code=1, opaque=7, flag=flag), answer, size, in_order=True)


def test_one_address_cannot_take_all_and_all_cannot_take_more_than_there_is() -> None:
    async def test() -> None:
        unfinished = Unfinished(NetConfig(inflight_bytes_max=100 * KIB))
        go_on = asyncio.Event()

        async def later() -> Frame:
            await go_on.wait()
            return Frame(code=0, opaque=7, flag=1)

        def refused(address: str, flag: int = 0) -> str | None:
            peer = Peer(address)
            peers.append(peer)
            add(unfinished, peer, later(), flag=flag)
            if peer.paused == BUSY:
                return None
            if flag:
                return str(peer.answers)
            assert peer.answers[0].code == ResponseCode.SYSTEM_BUSY
            return peer.answers[0].remark

        peers: list[Peer] = []
        assert [refused("10.6.6.6") for _ in range(2)] == [None, None]
        assert refused("10.6.6.6") == "2 requests from 10.6.6.6 with 40960 bytes are being processed: try again later"
        assert refused("10.6.6.6", flag=2) == "[]", "a one-way request gets no answer"
        assert [refused("10.0.0.1") for _ in range(2)] == [None, None]
        assert refused("10.0.0.2") is None
        assert refused("10.0.0.3") == "5 requests with 102400 bytes are being processed: try again later"
        assert len(unfinished) == 5
        go_on.set()
        await eventually_async(lambda: not unfinished)
        assert not any(peer.owed or peer.paused for peer in peers)
        assert not unfinished._address_bytes
        assert not unfinished._address_requests
        assert refused("10.6.6.6") is None, "there is room again"
        await eventually_async(lambda: not unfinished)

    run(test())


def test_who_has_gone_needs_no_answer_and_no_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        unfinished = Unfinished(NetConfig())

        async def dropped() -> Frame:
            raise NotConnected("it was closed")

        gone, here = Peer(), Peer()
        gone.is_open = False
        add(unfinished, gone, dropped())
        await eventually_async(lambda: not unfinished)
        assert not gone.answers
        assert not [record for record in caplog.records if record.name.startswith("kappamq.net")]
        add(unfinished, here, dropped())
        await eventually_async(lambda: not unfinished)
        assert here.answers[0].code == ResponseCode.SYSTEM_ERROR

    with caplog.at_level(logging.WARNING):
        run(test())


def test_a_server_of_frames_has_these_limits() -> None:
    async def test() -> None:
        go_on = asyncio.Event()

        async def later(frame: Frame) -> Frame:
            await go_on.wait()
            return reply(frame)

        answer: Callable[[Connection, Frame], Awaitable[Frame]] = lambda connection, frame: later(frame)  # noqa: E731
        async with (
            frame_server(Echo(answer), inflight_bytes_max=64 * KIB) as (_server, port),
            connected(port) as first,
            connected(port) as second,
        ):
            await first.say(Frame(code=1, opaque=1, body=bytes(30 * KIB)).encode())
            await first.say(Frame(code=1, opaque=2, body=bytes(30 * KIB)).encode())
            assert (await first.frame()).code == ResponseCode.SYSTEM_BUSY
            await second.say(Frame(code=1, opaque=3, body=bytes(30 * KIB)).encode())
            assert (await second.frame()).code == ResponseCode.SYSTEM_BUSY
            go_on.set()
            answered = await first.frame()
            assert (answered.opaque, answered.code) == (1, 0)

    run(test())
