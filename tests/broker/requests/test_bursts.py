"""One read of a socket: what the kernel answers and what it leaves, in any mixture; answers that change their mind."""

from __future__ import annotations

import asyncio
import ipaddress
from pathlib import Path
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.events import ConnectionLost
from kappamq.broker.requests.request import Handler, Request
from kappamq.errors import InvalidParameter
from kappamq.net.requests import unfinished
from kappamq.net.serving.connection import Connection
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, request
from kappamq.protocol.headers.client import GetMaxOffset
from kappamq.protocol.records import batch
from kappamq.protocol.records.batch import Member
from tests.broker.operating import make_topic, on_broker
from tests.broker.running import MODES, Speaker, run, running, speaking
from tests.net.openings import V1, V2, V2_IPV6
from tests.net.running import connected
from tests.waiting import eventually_async as eventually

# Codes whose handlers are replaced: their headers are empty.
NOW, LATER = RequestCode.GET_BROKER_CONFIG, RequestCode.GET_ALL_DELAY_OFFSET
NEVER, BUG = RequestCode.GET_TIMER_METRICS, RequestCode.CLEAN_UNUSED_TOPIC

# -- through a proxy -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [V1, V2, V2_IPV6], ids=["v1", "v2", "ipv6"])
@pytest.mark.parametrize("mode", MODES)
def test_messages_are_born_where_a_proxy_header_says(tmp_path: Path, mode: str, header: bytes) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker, connected(broker.port) as peer, speaking(broker) as direct:
            assert (await direct.send("t", b"direct")).code == 0
            await peer.say(header + request(Speaker.send_header("t", 0, None), b"proxied").encode())
            assert (await peer.frame()).code == 0
            born = {record.body: (record.born_host, record.born_port) for record in await direct.read("t")}
            source = ipaddress.ip_address("2001:db8::7" if header is V2_IPV6 else "192.0.2.7")
            assert born[b"proxied"] == (source.packed, 56324)
            assert born[b"direct"][0] == bytes([127, 0, 0, 1])

    run(test())


# -- what the kernel leaves ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("piece", [1 << 20, 97], ids=["at once", "in pieces"])
def test_a_mixture_in_one_read(tmp_path: Path, mode: str, binary: bool, piece: int) -> None:
    async def test() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            frames: list[Frame] = []
            for number in range(30):
                frames.append(request(client.send_header("t", 0, f"UNIQ_KEY\x01U{number}"), b"%d" % number))
                frames.append(Frame(code=31_999))
                frames.append(request(client.send_header("t", 99, "UNIQ_KEY\x01X"), b"no such queue"))
                frames.append(request(client.send_header("t", 1, "UNIQ_KEY\x01Y"), b"oneway", oneway=True))
                frames.append(request(GetMaxOffset(topic="t", queue_id=7)))
                frames.append(Frame(code=0, flag=1))  # an answer to nobody
            for opaque, frame in enumerate(frames):
                frame.opaque, frame.binary = opaque, binary
            data = b"".join(frame.encode() for frame in frames)
            async with connected(broker.port) as peer:
                for position in range(0, len(data), piece):
                    await peer.say(data[position : position + piece])
                    if piece < 1000:
                        await asyncio.sleep(0)
                answers = {(answer := await peer.frame()).opaque: answer for _ in range(30 * 4)}
            for number in range(30):
                sent, strange, wrong, silent, asked, response = range(number * 6, number * 6 + 6)
                assert (answers[sent].code, answers[sent].ext["queueOffset"]) == (0, str(number))
                assert answers[strange].code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                assert answers[wrong].code == ResponseCode.INVALID_PARAMETER
                assert (answers[asked].code, answers[asked].ext["offset"]) == (0, "0")
                assert silent not in answers
                assert response not in answers
            assert {answer.binary for answer in answers.values()} == {binary}
            assert [int(record.body) for record in await client.read("t", 0)] == list(range(30))
            assert len(await client.read("t", 1)) == 30

    run(test())


@on_broker()
async def test_what_is_stored_is_answered_before_the_next_slow_request(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    unwritten: list[int] = []

    def slow(request: Request[Any]) -> Frame:
        unwritten.append(broker.store.kernel.append_offset - broker.store.log.end)
        while broker.writer.latency.turn_s < 0.002:
            pass
        return request.reply()

    broker.bursts.handlers[NOW] = slow
    frames = [request(client.send_header("t", 0, "UNIQ_KEY\x01U"), b"stored"), Frame(code=NOW), Frame(code=NOW)]
    async with connected(broker.port) as peer:
        await peer.say(b"".join(frame.encode() for frame in frames))
        assert [(await peer.frame()).code for _ in frames] == [0, 0, 0]
    assert unwritten[1] == 0


@on_broker()
async def test_handlers_answer_now_later_never_or_fail(broker: Broker, client: Speaker) -> None:
    release = asyncio.Event()

    async def later(request: Request[Any]) -> Frame:
        await release.wait()
        if request.body:
            raise InvalidParameter("not like this")
        return request.reply(body=b"later")

    async def never(request: Request[Any]) -> None:
        request.connection.send(request.reply(body=b"by another way").encode())

    def bug(request: Request[Any]) -> Frame:
        raise ZeroDivisionError("a bug")

    handlers: dict[int, Handler] = {
        NOW: lambda request: request.reply(body=b"now"),
        LATER: later,
        NEVER: never,
        BUG: bug,
    }
    broker.bursts.handlers.update(handlers)
    slow = [asyncio.ensure_future(client.channel.request(Frame(code=LATER, body=body))) for body in (b"", b"x")]
    assert (await client.channel.request(Frame(code=NOW))).body == b"now", "nobody waits for the slow ones"
    assert (await client.channel.request(Frame(code=NEVER))).body == b"by another way"
    answer = await client.channel.request(Frame(code=BUG))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: a bug")
    connection = next(iter(broker.server.connections))
    assert connection._owed_bytes > 0, "what waits is counted"
    release.set()
    good, bad = await asyncio.gather(*slow)
    assert good.body == b"later"
    assert (bad.code, bad.remark) == (ResponseCode.INVALID_PARAMETER, "not like this")
    await eventually(lambda: connection._owed_bytes == 0 and not broker.bursts.unfinished)


def test_too_many_slow_requests_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished, "REQUESTS_MAX", 2 * unfinished.ADDRESS_SHARE)

    async def test() -> None:
        release = asyncio.Event()

        async def later(request: Request[Any]) -> Frame:
            await release.wait()
            return request.reply()

        async with running(tmp_path) as broker, speaking(broker) as client:
            broker.bursts.handlers[LATER] = later
            waiting = [asyncio.ensure_future(client.channel.request(Frame(code=LATER))) for _ in range(2)]
            await eventually(lambda: len(broker.bursts.unfinished) == 2)
            answer = await client.channel.request(Frame(code=LATER))
            assert (answer.code, "try again later" in (answer.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
            release.set()
            assert [(await future).code for future in waiting] == [0, 0]
            assert (await client.channel.request(Frame(code=LATER))).code == 0

    run(test())


@on_broker()
async def test_a_broker_that_stops_says_so(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    broker.bursts.stop()
    answer = await client.ask(GetMaxOffset(topic="t", queue_id=0))
    assert (answer.code, answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is shutting down")
    broker.bursts._stopping = False


@on_broker()
async def test_whoever_cares_hears_of_lost_connections(broker: Broker, client: Speaker) -> None:
    lost: list[Connection] = []
    broker.events.on(ConnectionLost, lambda event: lost.append(event.connection))
    async with connected(broker.port):
        await eventually(lambda: len(broker.server.connections) == 2)
    await eventually(lambda: len(lost) == 1)


@pytest.mark.parametrize("mode", MODES)
def test_more_than_a_whole_log_file(tmp_path: Path, mode: str) -> None:
    """A batch of tiny messages is small on the wire and large in the log."""

    async def test() -> None:
        store = {"segment_bytes": 128 << 10, "message_bytes_max": 100 << 10}
        async with running(tmp_path, mode, store=store) as broker, speaking(broker) as client:
            assert (await client.send("t", b"before")).code == 0
            tiny = batch.encode([Member(b"x", "") for _ in range(3000)])
            answer = await client.send_batch("t", tiny)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "does not fit into a log file of 131072 bytes" in (answer.remark or "")
            some = batch.encode([Member(b"x", "") for _ in range(500)])
            for _ in range(3):
                assert (await client.send_batch("t", some)).code == 0
            assert (await client.send("t", b"after")).code == 0
            records = await client.read("t")
            assert (records[0].body, len(records), records[-1].body) == (b"before", 1502, b"after")

    run(test())
