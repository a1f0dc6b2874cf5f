"""Who is given bytes of the log, and which: copies that know the secret, what is confirmed, and nothing that is damaged here."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.copies.mending.fetching import Fetching
from kappamq.broker.copies.mending.giving import RangeGiver
from kappamq.config.copies import CopiesConfig
from kappamq.errors import KappaError
from kappamq.replication.frames import BadStream
from kappamq.replication.greeting import Refusal
from kappamq.replication.ranges import RangeQuestion
from tests.broker.copies.copying import copies_port, log_bytes
from tests.broker.copies.mending.test_mender import STORE, is_confirmed, place_of, spoil
from tests.broker.running import run, running, speaking
from tests.broker.upkeep.test_damage import fill
from tests.waiting import eventually_async

SECRET = "a long enough one"


def question(broker: Broker, start: int, end: int, **changes: Any) -> RangeQuestion:
    ours = replace(broker.copies._who(), who="1", start=start, end=end, nonce="00")
    return replace(ours, **changes)


async def fetched(broker: Broker, asked: RangeQuestion, secret: str | None = None) -> bytes:
    fetching = await Fetching.begin(copies_port(broker), secret, crc32)
    try:
        return b"".join([bytes(piece.data) async for piece in fetching.pieces(asked)])
    finally:
        fetching.end()


def test_the_bytes_of_a_stretch_come_and_nothing_else_does(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, store=STORE) as broker, speaking(broker) as speaker:
            await fill(speaker, 400)
            await is_confirmed(broker)
            end, size = broker.store.log.end, broker.store_config.segment_bytes
            (start, _), (last, length) = place_of(broker, 3), place_of(broker, 60)
            data = log_bytes(broker, 0, end)
            assert await fetched(broker, question(broker, start, last + length)) == data[start : last + length]
            assert await fetched(broker, question(broker, start, size)) == data[start:size], (
                "with the end mark of the file"
            )
            crc = broker.store.kernel_module.crc32(data[start - 64 : start])
            same = question(broker, start, last, before=64, before_crc=crc)
            assert await fetched(broker, same) == data[start:last]
            for wrong, text in (
                (replace(same, before_crc=crc + 1), "the two logs differ at"),
                (question(broker, end - end % size, end - end % size + size), "here are 0 to"),
                (question(broker, start, last, cluster="x"), "brokerClusterName"),
                (question(broker, start, last, who=str(broker.config.broker_id)), "does not ask itself"),
                (question(broker, start + 1, last), "is damaged at"),
                (question(broker, start, last - 1), "is damaged at"),
            ):
                with pytest.raises(Refusal, match=text):
                    await fetched(broker, wrong)
            spoil(broker, start + 200, b"\xff")
            with pytest.raises(Refusal, match=f"the log is damaged at {start} here, too"):
                await fetched(broker, question(broker, start, last))

    run(test())


def test_who_does_not_know_the_secret_gets_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        copies = CopiesConfig(secret=SECRET)
        async with running(tmp_path, store=STORE, copies=copies) as broker, speaking(broker) as speaker:
            await fill(speaker, 20)
            await is_confirmed(broker)
            start, size = place_of(broker, 3)
            asked = question(broker, start, start + size)
            assert await fetched(broker, asked, SECRET) == log_bytes(broker, start, start + size)
            with pytest.raises(Refusal, match="replicationSecret"):
                await fetched(broker, asked, "another long one")
            with pytest.raises(Refusal, match="asks for the secret"):
                await fetched(broker, asked)

    run(test())


def test_there_is_room_for_so_many_and_who_is_being_given_something_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with running(tmp_path, store=STORE) as broker, speaking(broker) as speaker:
            await fill(speaker, 20)
            await is_confirmed(broker)
            stopped = asyncio.Event()

            async def never(*_arguments: object) -> None:
                await stopped.wait()

            monkeypatch.setattr(RangeGiver, "give", never)
            asked = question(broker, *place_of(broker, 3))
            asked = replace(asked, end=asked.start + asked.end)
            tasks = [asyncio.create_task(fetched(broker, asked)) for _ in range(12)]
            await eventually_async(lambda: sum(task.done() for task in tasks) == 4, text="the last ones are let go")
            assert len(broker.copies.ranges._links) == 8
            broker.copies.ranges.stop()
            stopped.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, EOFError | OSError | KappaError) for result in results)

    run(test())


def test_a_question_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, store=STORE) as broker:
            with pytest.raises((Refusal, BadStream), match="nobody can ask for"):
                await fetched(broker, question(broker, 10, 5))

    run(test())
