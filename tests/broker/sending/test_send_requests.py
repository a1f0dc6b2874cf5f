"""Sends over the remoting protocol: which of them are batches, and when they are answered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.requests.request import Request
from kappamq.broker.sending.send import Sent
from kappamq.broker.sending.send_requests import sent_by
from kappamq.clock import VirtualClock
from kappamq.protocol.codes import RequestCode, ResponseCode
from kappamq.protocol.frame import Frame, request
from kappamq.protocol.records import batch
from kappamq.protocol.records.batch import Member
from tests.broker.operating import make_topic, on_broker
from tests.broker.running import MODES, Speaker, run, running, speaking
from tests.store.faulty import SlowFlusher
from tests.waiting import eventually_async as eventually


def test_what_a_request_brings() -> None:
    header = Speaker.send_header("t", 0, None).plain()
    connection: Any = SimpleNamespace(born=bytes(8))
    came = Request(header, connection, Frame(RequestCode.SEND_MESSAGE, body=b"body", version=401))
    assert sent_by(came) == Sent(header, b"body", bytes(8), 401)


@on_broker()
async def test_a_batch_by_its_flag_or_by_its_code(broker: Broker, client: Speaker) -> None:
    await make_topic(client, "t")
    members = batch.encode([Member(b"a", ""), Member(b"b", "")])
    flagged = client.send_header("t", 0, "UNIQ_KEY\x01B", batch=True)
    assert (await client.ask(flagged, members)).code == 0
    assert (await client.ask(client.send_header("t", 0, ""), members, code=RequestCode.SEND_BATCH_MESSAGE)).code == 0
    assert [record.body for record in await client.read("t")] == [b"a", b"b"] * 2
    for body, text in ((b"", "empty"), (bytes((256 << 10) + 1), "the limit is 262144")):
        answer = await client.send_batch("t", body)
        assert (answer.code, text in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True), answer.remark


# -- when it is answered ---------------------------------------------------------------------------------------------------


def test_a_fresh_topic_is_answered_when_the_name_servers_know_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker, speaking(broker) as client:
            told = asyncio.Event()

            async def wait() -> None:
                await told.wait()

            broker.delivery.sends.announced = wait
            first = asyncio.ensure_future(client.send("t", b"first"))
            await eventually(lambda: broker.kernel.queue_state("t", 0).end == 1, text="stored")
            assert (await client.send("t", b"second")).ext["queueOffset"] == "1", (
                "the topic is there for everybody else"
            )
            assert not first.done()
            told.set()
            answer = await asyncio.wait_for(first, 30)
            assert (answer.code, answer.ext["queueOffset"]) == (0, "0")

    run(test())


@pytest.mark.parametrize("mode", MODES)
def test_who_does_not_want_to_wait_for_the_disk_does_not(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        options: dict[str, Any] = {"clock": VirtualClock(), "flusher": SlowFlusher, "store": {"flush": "sync"}}
        async with running(tmp_path, mode, **options) as broker, speaking(broker) as client:
            making = asyncio.ensure_future(make_topic(client, "t"))
            while not making.done():
                SlowFlusher.made.sync()
                await asyncio.sleep(0)
            await making
            patient = asyncio.ensure_future(client.send("t", b"patient"))
            members = batch.encode([Member(b"a", "WAIT\x01false"), Member(b"b", "WAIT\x01false")])
            assert (await client.send("t", b"hasty", properties="UNIQ_KEY\x01W\x02WAIT\x01false")).code == 0
            assert (await client.send_batch("t", members)).code == 0
            assert not patient.done()
            SlowFlusher.made.sync()
            assert (await asyncio.wait_for(patient, 5)).code == 0
            assert {record.body for record in await client.read("t")} == {b"patient", b"hasty", b"a", b"b"}
            SlowFlusher.made.keep_up()

    run(test())


@on_broker()
async def test_oneway_sends_are_stored_and_refused_in_silence(broker: Broker, client: Speaker) -> None:
    for topic, queue_id, properties in (("fresh", 0, "own\x01x"), ("fresh", 99, ""), ("a/b", 0, "")):
        frame = request(client.send_header(topic, queue_id, properties), b"x", oneway=True)
        await client.channel.oneway(frame)
    answer = await client.send("fresh", b"y")
    assert answer.ext["queueOffset"] == "1"
    assert [record.body for record in await client.read("fresh")] == [b"x", b"y"]
