"""A listening server: limits of time, number and bytes; frames in, answers out."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from kappamq.clock import SystemClock, VirtualClock
from kappamq.config.net import NetConfig
from kappamq.errors import ConfigError, InvalidParameter
from kappamq.net.serving.connection import Connection
from kappamq.net.serving.server import FrameServer, Server, bind
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.frame import Frame, reply
from tests.net import certificates
from tests.net.running import Echo, Peer, byte_server, connected, frame_server, run
from tests.waiting import eventually_async as eventually


class Silent:
    """A receiver that takes everything and says nothing."""

    def received(self, connection: Connection, data: bytes | bytearray) -> int:
        return len(data)

    def lost(self, connection: Connection) -> None: ...


async def only(server: Server) -> Connection:
    return await eventually(lambda: next(iter(server.connections), None))


# -- listening -------------------------------------------------------------------------------------------------------------


def test_a_taken_port_says_so() -> None:
    taken = bind("127.0.0.1", 0, 1)
    port = taken.getsockname()[1]
    try:
        with pytest.raises(ConfigError, match=f"port {port} is in use"):
            bind("127.0.0.1", port, 1)
    finally:
        taken.close()
    bind("127.0.0.1", port, 1).close()


def test_an_address_that_is_not_ours_says_so() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:"):
        bind("192.0.2.1", 0, 1)


# -- proxies ---------------------------------------------------------------------------------------------------------------


def claims(ip: str) -> bytes:
    return f"PROXY TCP4 {ip} 127.0.0.1 1000 10911\r\n".encode() + Frame(code=1, body=b"x").encode()


def test_forged_headers_do_not_evade_the_limit_per_address() -> None:
    async def test() -> None:
        async with frame_server(Echo(), connections_per_ip_max=2) as (server, port):
            async with connected(port) as first, connected(port) as second:
                for number, peer in enumerate((first, second)):
                    await peer.say(claims(f"192.0.2.{number}"))
                    assert (await peer.frame()).body == b"x"
                async with connected(port) as third:
                    await third.say(claims("192.0.2.9"))
                    assert await third.closed()
                shown = sorted(connection.peer[0] for connection in server.connections)
                assert shown == ["192.0.2.0", "192.0.2.1"], "but what they claim is shown"
            await eventually(lambda: not server.connections)
            async with connected(port) as peer, connected(port) as other:
                for each in (peer, other):
                    await each.say(claims("192.0.2.9"))
                    assert (await each.frame()).body == b"x", "the places are free again"

    run(test())


def test_clients_of_a_trusted_proxy_are_counted_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        trusted = (ipaddress.ip_network("127.0.0.0/8"),)
        async with (
            frame_server(Echo(), connections_per_ip_max=2, proxies_trusted=trusted) as (server, port),
            contextlib.AsyncExitStack() as stack,
        ):
            for number in range(5):
                peer = await stack.enter_async_context(connected(port))
                await peer.say(claims(f"192.0.2.{number}"))
                assert (await peer.frame()).body == b"x"
            again = await stack.enter_async_context(connected(port))
            await again.say(claims("192.0.2.0"))
            assert (await again.frame()).body == b"x"
            once_more = await stack.enter_async_context(connected(port))
            await once_more.say(claims("192.0.2.0"))
            assert await once_more.closed()
            await eventually(lambda: len(server.connections) == 6)
        assert server._limits.total == 0

    run(test())
    assert "2 connections from 192.0.2.0 already" in caplog.text


def test_two_ports_one_receiver() -> None:
    async def test() -> None:
        service = Echo()
        async with frame_server(service) as (server, first):
            second = await server.start("127.0.0.1", 0)
            assert second != first
            for port in (first, second):
                async with connected(port) as peer:
                    await peer.say(Frame(code=1, opaque=port, body=b"x").encode())
                    assert (await peer.frame()).opaque == port
            assert len(service.seen) == 2

    run(test())


def test_who_is_connected_stays_when_nobody_new_may_come() -> None:
    async def test() -> None:
        service = Echo()
        async with frame_server(service) as (server, port), connected(port) as peer:
            await only(server)
            await server.stop_listening()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            await peer.say(Frame(code=1, opaque=7).encode())
            assert (await peer.frame()).opaque == 7
            await server.stop()
            assert await peer.closed()
            assert len(service.lost) == 1
            bind("127.0.0.1", port, 1).close()

    run(test())


def test_a_stop_lets_the_last_answers_leave_and_does_not_wait_for_who_never_reads() -> None:
    async def test() -> None:
        server = FrameServer(Echo(), NetConfig(), SystemClock())
        port = await server.start("127.0.0.1", 0)
        async with connected(port) as good, connected(port, 4096):
            await eventually(lambda: len(server.connections) == 2)
            for connection in server.connections:
                connection.send(bytes(8 << 20))
            reading = asyncio.ensure_future(good.reader.read(-1))
            await asyncio.wait_for(server.stop(), 30)
            await eventually(lambda: not server.connections)
            assert len(await reading) == 8 << 20

    run(test())


def test_too_many_connections_are_refused_and_it_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with frame_server(Echo(), connections_max=2) as (server, port):
            async with connected(port), connected(port):
                await eventually(lambda: len(server.connections) == 2)
                for _ in range(3):
                    async with connected(port) as third:
                        assert await third.closed()
                assert len(server.connections) == 2
            await eventually(lambda: not server.connections)
            async with connected(port) as later:
                await later.say(Frame(code=1, body=b"x").encode())
                assert (await later.frame()).body == b"x"

    with caplog.at_level(logging.WARNING):
        run(test())
    assert [record.message.count("connections_max") for record in caplog.records] == [1]


def offering_tls(folder: Path) -> dict[str, Path]:
    server = certificates.make(folder).server
    return {"tls_cert": server.cert, "tls_key": server.key}


BEGUN = b"\x16\x03\x01\x02\x00"  # a TLS record that promises 512 bytes


def test_sockets_that_are_no_connections_yet_count_for_their_address(tmp_path: Path) -> None:
    tls = offering_tls(tmp_path)

    async def test() -> None:
        async with (
            frame_server(Echo(), connections_per_ip_max=3, **tls) as (server, port),
            contextlib.AsyncExitStack() as stack,
        ):
            silent = [await stack.enter_async_context(connected(port)) for _ in range(5)]
            for peer in silent[:2]:
                assert await peer.closed(), "the oldest go"
            assert len(server._half_open) == 3
            plain = silent[2]
            await plain.say(Frame(code=1, opaque=7).encode())
            assert (await plain.frame()).opaque == 7, "who speaks takes the place that it had"
            assert (len(server._half_open), len(server.connections)) == (2, 1)
            for peer in silent[3:]:
                peer.writer.transport.abort()
            await eventually(lambda: not len(server._half_open))

    run(test())


def test_handshakes_that_are_not_finished_lock_nobody_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tls = offering_tls(tmp_path)

    async def test() -> None:
        async with (
            frame_server(Echo(), connections_max=3, **tls) as (server, port),
            contextlib.AsyncExitStack() as stack,
        ):
            second_port = await server.start("127.0.0.1", 0)
            begun = [await stack.enter_async_context(connected(port)) for _ in range(3)]
            for peer in begun:
                await peer.say(BEGUN)
            await eventually(
                lambda: (
                    [each.is_silent for each in server._half_open._sockets.get("127.0.0.1", {}).values()] == [False] * 3
                )
            )
            assert await (await stack.enter_async_context(connected(port))).closed()
            for number, there in enumerate((port, second_port)):
                honest = await stack.enter_async_context(connected(there, source="127.0.0.2"))
                await honest.say(Frame(code=1, opaque=7).encode())
                assert (await honest.frame()).opaque == 7
                assert await begun[number].closed(), "the oldest of the address that has most"

    run(test())
    assert "refusing 127.0.0.1: there are 3 connections already (connections_max)" in caplog.text


# -- time ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "passed", "goes"),
    [
        (b"", 59, False),  # a Java client keeps connections for later
        (b"", 61, True),  # nothing at all
        (b"\x00\x00\x01\x00 the beginning", 31, True),  # no whole frame
        (Frame(code=1).encode(), 61, False),
        (Frame(code=1).encode() + b"\x00\x00\x01\x00 the next", 29, False),
        (Frame(code=1).encode() + b"\x00\x00\x01\x00 the next", 31, True),
        (Frame(code=1).encode(), 119, False),
        (Frame(code=1).encode(), 121, True),
    ],
)
def test_who_keeps_us_waiting_has_to_go(said: bytes, passed: float, goes: bool) -> None:
    async def test() -> None:
        clock = VirtualClock()
        service = Echo(lambda connection, frame: None)
        async with frame_server(service, clock) as (server, port), connected(port) as peer:
            connection = await only(server)
            await peer.say(said)
            if said:
                await eventually(lambda: connection.spoken or connection.partial_since is not None)
            clock.advance(passed)
            if goes:
                assert await peer.closed()
            else:
                await eventually(lambda: server.now == clock.liveness())
                assert server._overdue(connection) is None

    run(test())


def test_who_is_held_by_us_is_not_overdue() -> None:
    async def test() -> None:
        clock = VirtualClock()
        async with byte_server(Silent(), clock) as (server, port), connected(port):
            connection = await only(server)
            connection.pause()
            clock.advance(1000)
            await eventually(lambda: server.now == clock.liveness())
            assert server._overdue(connection) is None
            connection.resume()
            assert server._overdue(connection) is not None, "it has never said anything"

    run(test())


def test_who_takes_nothing_of_what_we_have_for_it_has_to_go() -> None:
    async def test() -> None:
        clock = VirtualClock()
        async with byte_server(Silent(), clock, idle_s=0) as (server, port), connected(port, 4096) as peer:
            connection = await only(server)
            await peer.say(b"x")
            await eventually(lambda: connection.spoken)
            connection.send(bytes(8 << 20))
            assert connection.is_stalled
            await eventually(lambda: connection.unsent_seen == connection.unsent_bytes > 0)
            for _ in range(3):  # progress, however slow, is progress
                before = connection.unsent_bytes
                clock.advance(20)
                while connection.unsent_bytes == before:
                    await peer.reader.read(65_536)
                server.now = clock.liveness()
                assert server._overdue(connection) is None
            clock.advance(31)
            await eventually(lambda: not server.connections)

    run(test())


def test_too_much_waiting_for_one_peer() -> None:
    async def test() -> None:
        net = {"write_pending_bytes_max": 64 << 10, "write_pause_bytes": 32 << 10}
        async with byte_server(Silent(), **net) as (server, port), connected(port, 4096):
            connection = await only(server)
            connection.send(bytes(8 << 20))
            assert "write_pending_bytes_max" in str(server._overdue(connection))
            await eventually(lambda: not server.connections)

    run(test())


async def leaving_unsent(server: Server, peer: Peer, size: int) -> Connection:
    """Have so many bytes wait for a peer that reads nothing."""
    port = peer.writer.get_extra_info("sockname")[1]
    connection = await eventually(lambda: next((each for each in server.connections if each.peer[1] == port), None))
    assert connection._transport is not None
    connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    while connection.is_open and connection.unsent_bytes < size:
        connection.send(bytes(min(64 << 10, size)))
    return connection


def test_what_waits_to_be_written_is_limited_for_one_address_and_in_all(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        net = {"unsent_bytes_max": 2 << 20, "write_pause_bytes": 64 << 10}
        async with (
            byte_server(Silent(), **net) as (server, port),
            connected(port, 4096) as a,
            connected(port, 4096) as b,
            connected(port, 4096, source="127.0.0.2") as c,
            connected(port, 4096, source="127.0.0.3") as d,
        ):
            largest = await leaving_unsent(server, a, 700 << 10)
            other = await leaving_unsent(server, b, 500 << 10)
            assert (largest.is_open, other.is_open) == (False, True), "half of it for one address"
            alone = await leaving_unsent(server, c, 1200 << 10)
            assert alone.is_open, "who is alone may have more than half"
            last = await leaving_unsent(server, d, 500 << 10)
            assert (alone.is_open, other.is_open, last.is_open) == (False, True, True), "who holds most goes"
            for connection in (other, last):
                connection.abort()
            await eventually(lambda: not server.connections)
            assert server._unsent.total == 0

    with caplog.at_level(logging.INFO):
        run(test())
    assert caplog.text.count("(unsent_bytes_max)") == 2


def test_many_who_leave_a_little_are_counted_as_well() -> None:
    async def test() -> None:
        async with (
            byte_server(Silent(), unsent_bytes_max=1 << 20) as (server, port),
            contextlib.AsyncExitStack() as stack,
        ):
            for _ in range(8):  # none of them is stalled
                peer = await stack.enter_async_context(connected(port, 4096))
                assert not (await leaving_unsent(server, peer, 200 << 10)).is_stalled
            await eventually(lambda: len(server.connections) == 2)
            assert server._unsent.total <= 512 << 10

    run(test())


def test_who_takes_its_answers_slowly_goes_before_who_takes_them() -> None:
    async def test() -> None:
        clock = VirtualClock()
        net = {"unsent_bytes_max": 2 << 20, "write_pause_bytes": 64 << 10, "first_frame_s": 600}
        async with (
            byte_server(Silent(), clock, **net) as (server, port),
            connected(port, 4096) as a,
            connected(port, 4096) as b,
            connected(port, 4096) as c,
        ):
            slow = await leaving_unsent(server, a, 200 << 10)
            await eventually(lambda: slow.unsent_seen == slow.unsent_bytes)
            for _ in range(4):  # it takes a little each time, and is not cut off while there is room
                clock.advance(8.0)
                before = slow.unsent_bytes
                while slow.unsent_bytes == before:
                    await a.reader.read(4096)
                slow.unsent_seen = slow.unsent_bytes + 1
                server.now = clock.liveness()
                assert server._overdue(slow) is None
            large = await leaving_unsent(server, b, 600 << 10)
            assert (await leaving_unsent(server, c, 300 << 10)).is_open
            assert (slow.is_open, large.is_open) == (False, True)

    run(test())


def part_of_a_frame(size: int) -> bytes:
    return struct.pack(">i", 1 << 20) + bytes(size - 4)


def test_unfinished_requests_of_all_together_are_limited() -> None:
    async def test() -> None:
        service = Echo()
        async with frame_server(service, inflight_bytes_max=256 << 10) as (server, port):
            async with connected(port) as one, connected(port) as two:
                await one.say(part_of_a_frame(200 << 10))
                await eventually(
                    lambda: server._buffered_bytes == 200 << 10, text="one request alone may have more than half"
                )
                await two.say(part_of_a_frame(100 << 10))
                assert await one.closed(), "it holds most"
                await eventually(lambda: server._buffered_bytes == 100 << 10)
                assert len(server.connections) == 1
            await eventually(lambda: server._buffered_bytes == 0)

    run(test())


def test_who_holds_most_unfinished_bytes_goes_and_not_who_grows_next(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with (
            frame_server(Echo(), inflight_bytes_max=256 << 10) as (server, port),
            connected(port) as greedy,
            connected(port, source="127.0.0.3") as other,
            connected(port, source="127.0.0.2") as honest,
        ):
            await greedy.say(part_of_a_frame(127 << 10))
            await other.say(part_of_a_frame(100 << 10))
            await eventually(lambda: server._buffered_bytes == 227 << 10)
            request = Frame(code=1, opaque=7, body=bytes(65_000)).encode()
            await honest.say(request[:-1])
            assert await greedy.closed()
            await eventually(lambda: server._buffered_bytes == (100 << 10) + len(request) - 1)
            await honest.say(request[-1:])
            assert (await honest.frame()).opaque == 7

    with caplog.at_level(logging.INFO):
        run(test())
    assert "130048 from this connection, 130048 from its address" in caplog.text


def test_one_address_cannot_hold_all_the_unfinished_bytes() -> None:
    async def test() -> None:
        async with (
            frame_server(Echo(), inflight_bytes_max=256 << 10) as (server, port),
            contextlib.AsyncExitStack() as stack,
        ):
            for _ in range(20):  # each has little: too little to be cut off while its address keeps to its half
                await (await stack.enter_async_context(connected(port))).say(part_of_a_frame(20 << 10))
            await eventually(lambda: len(server.connections) == 6 and server._buffered_bytes == 120 << 10)
            honest = await stack.enter_async_context(connected(port, source="127.0.0.2"))
            request = Frame(code=1, opaque=7, body=bytes(65_000)).encode()
            await honest.say(request[:-1])
            await eventually(lambda: server._buffered_bytes == (120 << 10) + len(request) - 1)
            await honest.say(request[-1:])
            assert (await honest.frame()).opaque == 7
            assert len(server.connections) == 7

    run(test())


# -- frames ----------------------------------------------------------------------------------------------------------------


async def ask(peer: Peer, **frame: Any) -> Frame:
    await peer.say(Frame(**frame).encode())
    return await peer.frame()


def test_pipelined_frames_in_odd_pieces() -> None:
    async def test() -> None:
        async with frame_server(Echo()) as (_server, port), connected(port) as peer:
            data = b"".join(
                Frame(code=1, opaque=n, body=b"%d" % n * n, binary=bool(n % 2)).encode() for n in range(200)
            )
            for position in range(0, len(data), 777):
                await peer.say(data[position : position + 777])
                await asyncio.sleep(0)
            for number in range(200):
                answer = await peer.frame()
                assert (answer.opaque, answer.body) == (number, b"%d" % number * number)
                assert (answer.binary, answer.is_response) == (bool(number % 2), True)

    run(test())


def test_answers_that_take_time_do_not_hold_up_others() -> None:
    async def test() -> None:
        release = asyncio.Event()

        async def later(frame: Frame) -> Frame | None:
            await release.wait()
            if frame.code == 3:
                raise InvalidParameter("not like this")
            return reply(frame, body=b"late") if frame.code == 1 else None

        service = Echo(lambda connection, frame: later(frame) if frame.code else reply(frame, body=b"now"))
        async with frame_server(service) as (_server, port), connected(port) as peer:
            for number, code in enumerate((1, 2, 3, 0)):
                await peer.say(Frame(code=code, opaque=number).encode())
            assert (await peer.frame()).opaque == 3
            release.set()
            first, second = await peer.frame(), await peer.frame()
            assert {(answer.opaque, answer.code, answer.remark, answer.body) for answer in (first, second)} == {
                (0, 0, None, b"late"),
                (2, ResponseCode.INVALID_PARAMETER, "not like this", b""),
            }

    run(test())


def test_errors_are_answers_and_oneway_requests_get_none() -> None:
    def fail(connection: Connection, frame: Frame) -> Frame:
        if frame.code == 1:
            raise InvalidParameter("wrong")
        if frame.code == 2:
            raise ZeroDivisionError("a bug")
        return reply(frame)

    async def test() -> None:
        async with frame_server(Echo(fail)) as (_server, port), connected(port) as peer:
            for code in (0, 1, 2):
                await peer.say(Frame(code=code, flag=2).encode())
            answers = [await ask(peer, code=code, opaque=code) for code in (0, 1, 2)]
            assert [(answer.opaque, answer.code, answer.remark) for answer in answers] == [
                (0, 0, None),
                (1, ResponseCode.INVALID_PARAMETER, "wrong"),
                (2, ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: a bug"),
            ]

    run(test())


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", 1025) + bytes(1025),  # over the limit
        struct.pack(">i", -1),
        struct.pack(">i", 3) + b"abc",  # no room for the header's length
        struct.pack(">ii", 20, 17) + bytes(16),
        struct.pack(">ii", 10, 6) + b"{nope}",
    ],
)
def test_bytes_that_are_no_frame(data: bytes) -> None:
    async def test() -> None:
        async with (
            frame_server(Echo(), frame_bytes_max=1024) as (_server, port),
            connected(port) as bad,
            connected(port) as good,
        ):
            await bad.say(Frame(code=1, opaque=5).encode() + data)
            assert (await bad.frame()).opaque == 5, "what came before is answered"
            assert await bad.closed()
            assert (await ask(good, code=1, opaque=6)).opaque == 6

    run(test())


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6() -> None:
    async def test() -> None:
        server = FrameServer(Echo(), NetConfig(), SystemClock())
        try:
            port = await server.start("::1", 0)
        except ConfigError:
            pytest.skip("no IPv6 loopback here")
        reader, writer = await asyncio.open_connection("::1", port)
        connection = await only(server)
        assert (connection.peer[0], len(connection.born)) == ("::1", 20)
        writer.close()
        await server.stop()
        assert await reader.read() == b""

    run(test())
