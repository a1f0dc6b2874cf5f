"""Given-up transactions are opened again once, also after everything else about them was forgotten."""

from __future__ import annotations

from pathlib import Path

from kappamq.broker.transactions.reopened import KIND, Reopened
from kappamq.clock import VirtualClock
from kappamq.protocol.headers.admin import ResumeCheckHalfMessage
from kappamq.protocol.names import TRANSACTION_GIVEN_UP_TOPIC
from tests.broker.operating import make_topic, ok, refused
from tests.broker.running import run, running, speaking
from tests.broker.transacting import COMMIT, bodies, pass_time, producing


def test_the_table_is_a_fold() -> None:
    table = Reopened()
    for place in (5, 70, 900):
        table.apply(KIND, place)
    loaded = Reopened()
    loaded.from_snapshot(table.to_snapshot())
    assert loaded.places == {5, 70, 900}, "as earlier versions recorded them"
    loaded.apply(*loaded.change(1000, log_min=70))
    assert loaded.places == {70, 900, 1000}


def test_a_given_up_transaction_is_opened_again_once(tmp_path: Path) -> None:
    async def main() -> None:
        clock = VirtualClock()
        async with running(tmp_path, clock=clock, transaction_check_max=1) as broker, speaking(broker) as client:
            await make_topic(client, "t")
            async with producing(broker) as producer:
                await producer.begin("t", b"x")
                await pass_time(broker, clock, 60)
                (given_up,) = await client.read(TRANSACTION_GIVEN_UP_TOPIC)
                header = ResumeCheckHalfMessage(topic="t", message_id=given_up.offset_id)
                await ok(client, header)
                await pass_time(broker, clock, 60)
                first, second = await client.read(TRANSACTION_GIVEN_UP_TOPIC)
                await refused(client, header, 1, "was opened again before", "a newer one")
                await ok(client, ResumeCheckHalfMessage(topic="t", message_id=second.offset_id))
                await pass_time(broker, clock, 6)
                question = [await producer.asked() for _ in range(3)][-1]
                assert (await producer.end(question.begun, COMMIT, from_check=True)).code == 0
            broker.delivery.halves.halves._remembered.clear()  # many others were ended since
            await refused(client, header, 1, "was opened again before")
        async with running(tmp_path, clock=clock) as broker, speaking(broker) as client:
            broker.delivery.halves.halves._remembered.clear()
            for given_up in (first, second):
                header = ResumeCheckHalfMessage(topic="t", message_id=given_up.offset_id)
                await refused(client, header, 1, "was opened again before")
            assert len(broker.delivery.halves.halves) == 0
            assert bodies(await client.read("t")) == [b"x"]

    run(main())
