"""A connection by itself, on a wire made of Python: what comes in pieces, what has to wait, what is asked of the peer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kappamq.errors import NotConnected, RequestTimeout
from kappamq.net.channel import Channel
from kappamq.net.serving.connection import READ_IN_ROW_BYTES, Connection, host_bytes
from kappamq.net.serving.strangers import Strangers
from kappamq.protocol.frame import Frame, decode, reply
from tests.net.openings import HELLO_H2, V1, V2, V2_IPV6
from tests.net.running import Echo, connected, frame_server, run
from tests.waiting import eventually_async as eventually


class Wire(asyncio.Transport):
    """A transport that notes what is done to it."""

    def __init__(self, peer: Any = ("10.0.0.7", 4711)) -> None:
        super().__init__({"peername": peer, "sockname": ("10.0.0.1", 10911)})
        self.written = b""
        self.reading = True
        self.closing = self.aborted = False

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True


class Host:
    """Server and receiver in one: takes whole frames, and counts what it is told."""

    frame_bytes_max = 1 << 20
    write_pause_bytes = 1000
    owed_bytes_max = 100

    def __init__(self) -> None:
        self.receiver = self
        self.now = 100.0
        self.admits = self.takes_proxied = True
        self.strangers = Strangers()
        self.bytes_max = 1 << 20
        self.kept = 0
        self.calls = self.told_unsent = 0
        self.frames: list[Frame] = []
        self.left: list[Connection] = []
        self.lost_ones: list[Connection] = []
        self.on_frame: Callable[[Connection], None] = lambda connection: None

    def admit(self, connection: Connection) -> bool:
        return self.admits

    def proxied(self, connection: Connection) -> bool:
        return self.takes_proxied

    def leave(self, connection: Connection) -> None:
        self.left.append(connection)

    def buffered(self, connection: Connection, more: int) -> bool:
        self.kept += more
        return self.kept <= self.bytes_max

    def unsent(self, connection: Connection) -> None:
        self.told_unsent += 1

    def received(self, connection: Connection, data: bytes | bytearray) -> int:
        self.calls += 1
        position = 0
        while len(data) - position >= 4:
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            if end > len(data):
                break
            self.frames.append(decode(bytes(data[position:end])))
            position = end
            self.on_frame(connection)
        return position

    def lost(self, connection: Connection) -> None:
        self.lost_ones.append(connection)


def joined(host: Host) -> tuple[Connection, Wire]:
    connection, wire = Connection(host), Wire()
    connection.connection_made(wire)
    return connection, wire


THREE = [
    Frame(code=1, opaque=1, body=b"first"),
    Frame(code=2, opaque=2, ext={"a": "b" * 50}, binary=True),
    Frame(code=3, opaque=3, body=bytes(300)),
]
BYTES = b"".join(frame.encode() for frame in THREE)


# -- the first bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_a_proxy_header_names_the_peer(header: bytes, piece: int) -> None:
    host = Host()
    connection, _wire = joined(host)
    data = header + BYTES
    for position in range(0, len(data), piece):
        connection.data_received(data[position : position + piece])
    assert len(host.frames) == 3
    assert connection.peer == ("192.0.2.7", 56324)
    assert connection.born == host_bytes(("192.0.2.7", 56324))
    assert repr(connection) == "192.0.2.7:56324 (through 10.0.0.7:4711)"


def test_an_ipv6_client_behind_an_ipv4_proxy() -> None:
    connection, _wire = joined(Host())
    connection.data_received(V2_IPV6)
    assert (connection.peer[0], len(connection.born)) == ("2001:db8::7", 20)
    assert not connection.spoken, "a header is no frame: the deadline for the first one still runs"


def test_a_proxy_that_speaks_for_itself_is_the_peer() -> None:
    host = Host()
    connection, _wire = joined(host)
    connection.data_received(b"PROXY UNKNOWN\r\n" + BYTES)
    assert (connection.peer, connection.proxy, len(host.frames)) == (("10.0.0.7", 4711), None, 3)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"PROXY TCP4 nobody nowhere 1 2\r\n", "malformed PROXY header"),
        (V1 + V2, "a second PROXY header"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "it speaks HTTP/2: it is probably a gRPC client"),
        (V1 + HELLO_H2, "ALPN h2"),
        (b"GET / HTTP/1.1\r\n\r\n", "this port is for RocketMQ clients"),
    ],
)
def test_what_cannot_be_served_is_told_and_cut(data: bytes, told: str, caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    connection, wire = joined(host)
    for byte in data:
        if not wire.aborted:
            connection.data_received(bytes([byte]))
    assert wire.aborted
    assert host.calls == 0
    assert [(record.levelname, told in record.message) for record in caplog.records] == [("WARNING", True)]
    assert "10.0.0.7" in caplog.text, "by its own address, not by one that it claims"


def test_a_proxied_peer_that_may_not_come_is_cut() -> None:
    host = Host()
    host.takes_proxied = False
    connection, wire = joined(host)
    connection.data_received(V1 + BYTES)
    assert (wire.aborted, host.calls) == (True, 0)


# -- pieces ----------------------------------------------------------------------------------------------------------------


def test_frames_byte_by_byte() -> None:
    host = Host()
    connection, _wire = joined(host)
    for position in range(len(BYTES)):
        connection.data_received(BYTES[position : position + 1])
    assert [(frame.opaque, frame.body) for frame in host.frames] == [(1, b"first"), (2, b""), (3, bytes(300))]
    assert host.calls <= 3 * len(THREE), "a long frame in small pieces must not be looked at once per piece"
    assert host.kept == 0
    assert connection.partial_since is None


def test_frames_cut_anywhere() -> None:
    for cut in range(len(BYTES) + 1):
        host = Host()
        connection, _wire = joined(host)
        host.now = 101.0
        connection.data_received(BYTES[:cut])
        whole = len(host.frames)
        assert connection.spoken == (whole > 0)
        assert host.kept == len(BYTES[:cut]) - sum(len(frame.encode()) for frame in THREE[:whole])
        assert (connection.partial_since is None) == (host.kept == 0)
        host.now = 102.0
        connection.data_received(BYTES[cut:])
        assert [frame.opaque for frame in host.frames] == [1, 2, 3], cut
        assert (host.kept, connection.partial_since, connection.last_read) == (0, None, 102.0)


def test_bytes_trickling_in_do_not_make_a_frame_younger() -> None:
    host = Host()
    connection, _wire = joined(host)
    connection.data_received(BYTES[:10])
    for position in range(10, 40):
        host.now += 1
        connection.data_received(BYTES[position : position + 1])
    assert connection.partial_since == 100.0
    assert connection.last_read == 130.0


# -- waiting ---------------------------------------------------------------------------------------------------------------


def test_what_comes_in_a_pause_is_kept_in_order() -> None:
    host = Host()
    connection, wire = joined(host)
    connection.pause()
    assert not wire.reading
    assert connection.is_held
    for position in range(0, len(BYTES), 100):  # what was read before the pause may still arrive
        connection.data_received(BYTES[position : position + 100])
    assert (host.calls, host.kept) == (0, len(BYTES))
    connection.resume()
    assert [frame.opaque for frame in host.frames] == [1, 2, 3]
    assert (wire.reading, connection.is_held, host.kept) == (True, False, 0)
    connection.resume()  # nothing happens the second time
    assert host.calls == 1


def test_a_receiver_may_pause_from_within() -> None:
    host = Host()
    host.on_frame = lambda connection: connection.pause()
    connection, wire = joined(host)
    connection.data_received(BYTES[:-1])
    assert ([frame.opaque for frame in host.frames], wire.reading) == ([1, 2], False)
    connection.data_received(BYTES[-1:])
    assert len(host.frames) == 2
    connection.resume()
    assert [frame.opaque for frame in host.frames] == [1, 2, 3]
    assert not wire.reading, "paused again by its last frame"


def test_reading_goes_on_when_every_reason_to_wait_is_gone() -> None:
    host = Host()
    connection, wire = joined(host)
    connection.pause_writing()
    assert (connection.is_stalled, connection.write_stalled_since, wire.reading) == (True, 100.0, False)
    assert not connection.is_held, "that it does not read is its own fault"
    connection.pause()
    connection.owe(101)
    connection.resume()
    assert not wire.reading
    connection.settle(101)
    assert not wire.reading
    connection.resume_writing()
    assert wire.reading
    assert (connection.is_stalled, connection.write_stalled_since) == (False, None)


def test_who_owes_too_much_is_not_read_until_half_of_it_is_settled() -> None:
    host = Host()
    connection, wire = joined(host)
    connection.owe(100)
    assert wire.reading
    connection.owe(1)
    assert (wire.reading, connection.is_held) == (False, True)
    connection.settle(50)
    assert not wire.reading, "51 are still owed: reading does not flap around the limit"
    connection.settle(1)
    assert (wire.reading, connection.is_held) == (True, False)


def test_nothing_is_begun_for_who_has_to_take_answers_first() -> None:
    host = Host()
    connection, _wire = joined(host)
    connection.pause_writing()
    connection.data_received(BYTES)  # it was on its way when we stopped reading
    assert not host.frames
    order: list[str] = []
    connection.on_writable.append(lambda connection: order.append("waited longer"))
    host.on_frame = lambda connection: order.append("frame")
    connection.resume_writing()
    assert order == ["waited longer", "frame", "frame", "frame"]
    connection.pause_writing()
    connection.resume_writing()
    assert order.count("waited longer") == 1


def test_what_waits_for_who_reads_slowly_is_told_as_it_grows() -> None:
    host = Host()
    connection, _wire = joined(host)
    connection.send(b"taken at once")
    assert host.told_unsent == 0
    connection.pause_writing()
    connection.send(b"added")
    assert host.told_unsent == 2
    connection.resume_writing()
    assert host.told_unsent == 3


def test_who_owes_too_much_goes_on_after_the_turn_in_which_it_was_settled() -> None:
    async def test() -> None:
        host = Host()
        connection, _wire = joined(host)
        connection.owe(101)
        connection.data_received(BYTES)
        assert not host.frames
        connection.settle(101)
        assert not host.frames, "who settles may be reading these very bytes"
        await asyncio.sleep(0)
        assert len(host.frames) == 3

    asyncio.run(test())


def test_a_pause_of_ours_is_not_held_against_the_peer() -> None:
    host = Host()
    connection, _wire = joined(host)
    connection.data_received(BYTES[:10])
    connection.pause()
    host.now = 500.0
    connection.resume()
    assert (connection.last_read, connection.partial_since) == (500.0, 500.0)


def test_a_large_frame_lets_others_go_first_now_and_then() -> None:
    async def test() -> None:
        host = Host()
        host.frame_bytes_max = host.bytes_max = 8 << 20
        connection, wire = joined(host)
        connection.data_received((4 << 20).to_bytes(4, "big") + bytes(1000))
        begun = connection.partial_since
        host.now += 5
        for _ in range(4):
            assert wire.reading
            connection.data_received(bytes(READ_IN_ROW_BYTES // 4 + 1))
        assert not wire.reading
        await asyncio.sleep(0)
        assert wire.reading, "in the next turn it is read on"
        assert connection.partial_since == begun, "that is no excuse for a peer that is slow"
        for _ in range(4):
            connection.data_received(bytes(READ_IN_ROW_BYTES // 4 + 1))
        connection.pause()
        await asyncio.sleep(0)
        assert not wire.reading, "it is paused for another reason now"
        connection.resume()
        assert wire.reading

    asyncio.run(test())


def test_too_many_unfinished_bytes_drop_who_has_many_of_them() -> None:
    host = Host()
    host.bytes_max = 10
    small, small_wire = joined(host)
    small.data_received((1 << 19).to_bytes(4, "big") + bytes(1000))
    assert not small_wire.aborted, "there is too much, but little of it is its fault"
    large, large_wire = joined(host)
    large.data_received((1 << 19).to_bytes(4, "big") + bytes(1000))
    large.data_received(bytes(70_000))
    assert large_wire.aborted
    large.connection_lost(None)
    small.connection_lost(None)
    assert host.kept == 0, "and what it had is not counted for ever"


# -- coming and going ------------------------------------------------------------------------------------------------------


def test_addresses_and_limits_at_the_beginning() -> None:
    connection, wire = joined(Host())
    assert (connection.peer, connection.local, wire.high) == (("10.0.0.7", 4711), ("10.0.0.1", 10911), 1000)
    assert connection.born == bytes((10, 0, 0, 7)) + (4711).to_bytes(4, "big")
    assert repr(connection) == "10.0.0.7:4711"


def test_who_is_refused_is_never_heard_of_again() -> None:
    host = Host()
    host.admits = False
    connection, wire = joined(host)
    connection.on_lost.append(host.lost)
    assert wire.aborted
    connection.connection_lost(None)
    assert (host.left, host.lost_ones) == ([], [])


def test_who_is_gone_before_we_look() -> None:
    host = Host()
    connection, wire = Connection(host), Wire(peer=None)
    connection.connection_made(wire)
    connection.connection_lost(None)
    assert (wire.aborted, host.left) == (True, [])


def test_everybody_who_cares_hears_of_the_end_once() -> None:
    host = Host()
    connection, wire = joined(host)
    heard: list[Connection] = []
    connection.on_lost.append(heard.append)
    connection.connection_lost(None)
    assert (host.left, heard, host.lost_ones) == ([connection], [connection], [connection])
    assert not connection.is_open
    connection.send(b"into the void")
    connection.close("late")
    connection.abort("later")
    connection.pause()
    connection.resume()
    connection.settle(0)
    assert (wire.written, wire.closing, connection.unsent_bytes) == (b"", False, 0)


@pytest.mark.parametrize(
    ("ip", "packed"),
    [
        ("1.2.3.4", bytes((1, 2, 3, 4))),
        ("::1", bytes(15) + b"\x01"),
        ("::ffff:1.2.3.4", bytes((1, 2, 3, 4))),  # IPv4 on a dual-stack socket
        ("fe80::1%eth0", b"\xfe\x80" + bytes(13) + b"\x01"),
    ],
)
def test_host_bytes(ip: str, packed: bytes) -> None:
    assert host_bytes((ip, 0x01020304)) == packed + b"\x01\x02\x03\x04"


# -- asking the peer -------------------------------------------------------------------------------------------------------


def test_answers_in_any_order_reach_who_asked() -> None:
    async def test() -> None:
        connection, wire = joined(Host())
        first = asyncio.ensure_future(connection.request(Frame(code=40), 5))
        second = asyncio.ensure_future(connection.request(Frame(code=41), 5))
        await asyncio.sleep(0)
        cut = 4 + int.from_bytes(wire.written[:4], "big")
        asked = [decode(wire.written[:cut]), decode(wire.written[cut:])]
        assert [frame.code for frame in asked] == [40, 41]
        assert asked[0].opaque != asked[1].opaque
        connection.answered(Frame(code=0, opaque=999, flag=1, body=b"to nobody"))
        connection.answered(reply(asked[1], body=b"second"))
        connection.answered(reply(asked[1], body=b"second again"))
        connection.answered(reply(asked[0], body=b"first"))
        assert [(await first).body, (await second).body] == [b"first", b"second"]
        assert not connection._calls

    run(test())


def test_no_answer_is_a_time_out_and_a_late_one_is_dropped() -> None:
    async def test() -> None:
        connection, wire = joined(Host())
        with pytest.raises(RequestTimeout, match=r"10\.0\.0\.7:4711 did not answer request 40 within 0\.01 s"):
            await connection.request(Frame(code=40), 0.01)
        connection.answered(reply(decode(wire.written), body=b"late"))
        assert not connection._calls

    run(test())


def test_a_peer_that_goes_answers_nothing() -> None:
    async def test() -> None:
        connection, wire = joined(Host())
        asked = asyncio.ensure_future(connection.request(Frame(code=40), 5))
        cancelled = asyncio.ensure_future(connection.request(Frame(code=41), 5))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert len(connection._calls) == 1, "who gave up is forgotten"
        connection.connection_lost(None)
        with pytest.raises(NotConnected, match="closed before it answered"):
            await asked
        with pytest.raises(NotConnected, match="is closed"):
            await connection.request(Frame(code=40), 5)
        other, wire = joined(Host())
        wire.closing = True
        with pytest.raises(NotConnected):
            await other.request(Frame(code=40), 5)

    run(test())


def test_a_real_client_is_asked_while_it_asks() -> None:
    """Over sockets: the server asks the client who asks it, and answers with what it heard."""

    async def ask_back(connection: Connection, frame: Frame) -> Frame:
        back = await connection.request(Frame(code=77, body=frame.body), 5)
        return reply(frame, body=back.body * 2)

    async def test() -> None:
        async with frame_server(Echo(ask_back)) as (server, port):
            channel = await Channel.connect(
                f"127.0.0.1:{port}", on_request=lambda channel, frame: reply(frame, body=b"<" + frame.body + b">")
            )
            answers = await asyncio.gather(*(channel.request(Frame(code=5, body=b"%d" % n)) for n in range(20)))
            assert [answer.body for answer in answers] == [b"<%d>" % n * 2 for n in range(20)]
            channel.close()
            await eventually(lambda: not server.connections)

    run(test())


def test_a_real_peer_that_does_not_read_is_not_read_either() -> None:
    async def test() -> None:
        service = Echo(lambda connection, frame: reply(frame, body=bytes(100_000)))
        async with frame_server(service, write_pause_bytes=50_000) as (server, port), connected(port, 4096) as peer:
            for number in range(300):
                peer.writer.write(Frame(code=1, opaque=number, body=bytes(20_000)).encode())
            connection = await eventually(lambda: next(iter(server.connections), None))
            await eventually(lambda: connection.is_stalled)
            assert len(service.seen) < 300, "what it asks stays in its socket, not in our memory"
            for number in range(300):
                assert (await peer.frame()).opaque == number
            assert not connection.is_stalled

    run(test())
