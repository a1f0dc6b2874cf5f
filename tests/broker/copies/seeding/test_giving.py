"""Who asks to be seeded: strangers are refused, and log files stay for whoever was given snapshots."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest

from kappamq.broker.broker import Broker
from kappamq.broker.copies.seeding import giving
from kappamq.broker.copies.seeding.asking import Conversation
from kappamq.config.copies import CopiesConfig
from kappamq.errors import KappaError
from kappamq.replication.greeting import Refusal
from kappamq.replication.seeding import Asking, FilePiece, Offer
from tests.broker.copies.copying import copies_port
from tests.broker.copies.shortened import SMALL, fill, shorten, with_a_past
from tests.broker.running import on_disk, run, running, speaking
from tests.store.faulty import SlowFlusher
from tests.waiting import eventually_async

SECRET = "a long enough one"


def question(master: Broker, **changes: object) -> Asking:
    return replace(master.seeding.asking(), **({"who": "1"} | changes))  # type: ignore[arg-type]


async def ask(
    master: Broker, asking: Asking, secret: str | None = None, *, only: bool = False
) -> tuple[Offer, list[FilePiece]]:
    conversation = await Conversation.begin(copies_port(master), secret, crc32)
    try:
        offer = await conversation.ask(asking, only=only)
        return offer, [] if only else [piece async for piece in conversation.pieces(offer)]
    finally:
        conversation.end()


def test_files_come_as_they_are_and_only_to_those_who_need_them(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, store=SMALL) as master, speaking(master) as speaker:
            offer, pieces = await ask(master, question(master))
            assert (offer.begin, offer.files, pieces) == (0, 0, []), "the log is whole: it says everything"
            await with_a_past(master, speaker)
            begin = master.store.log.min
            offer, pieces = await ask(master, question(master, reaches=begin + 1))
            assert (offer.begin, offer.files, pieces) == (begin, 0, [])
            offer, pieces = await ask(master, question(master, reaches=begin), only=True)
            assert offer.files > 0
            offer, pieces = await ask(master, question(master, reaches=begin))
            assert offer.begin == begin
            assert sum(len(piece.data) for piece in pieces) == offer.bytes
            assert len(pieces) == offer.files
            for piece in pieces:
                assert bytes(piece.data) == (tmp_path / "config" / piece.name).read_bytes(), piece.name
            assert {"topics.json", "consumerOffset.json"} <= {piece.name for piece in pieces}
            assert "kappamq.settings.json" not in {piece.name for piece in pieces}, "settings are a node's own"

    run(test())


def test_log_files_stay_for_whoever_was_given_snapshots(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, store=SMALL) as master, speaking(master) as speaker:
            await with_a_past(master, speaker)
            begin = master.store.log.min
            await ask(master, question(master))
            await fill(speaker)
            with pytest.raises(AssertionError, match="nothing was deleted"):
                await shorten(master)
            assert master.store.log.min == begin == master.copies.seeds.needed_from

    run(test())


def test_they_stay_up_to_a_limit(tmp_path: Path) -> None:
    async def test() -> None:
        copies = CopiesConfig(keep_bytes_max=64 << 10)
        async with running(tmp_path, store=SMALL, copies=copies) as master, speaking(master) as speaker:
            await with_a_past(master, speaker)
            begin = master.store.log.min
            await ask(master, question(master))
            await fill(speaker)
            assert await shorten(master) > begin

    run(test())


def test_a_stranger_gets_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, store=SMALL, copies=CopiesConfig(secret=SECRET)) as master:
            for secret, text in ((None, "asks for the secret"), ("another one", "does not know the secret")):
                with pytest.raises(Refusal, match=text):
                    await ask(master, question(master, wanted=1), secret)
            with pytest.raises(Refusal, match="brokerName"):
                await ask(master, question(master, name="x", wanted=1), SECRET)
            offer, pieces = await ask(master, question(master, wanted=1), SECRET)
            assert offer.files == len(pieces) > 0
        async with running(tmp_path / "open", store=SMALL) as master:
            with pytest.raises(Refusal, match="does not know the secret"):
                await ask(master, question(master, wanted=1), SECRET)

    run(test())


def test_who_is_not_the_master_gives_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, store=SMALL) as master:
            await master.end_role()
            with pytest.raises(Refusal, match="not the master"):
                await ask(master, question(master, wanted=1))

    run(test())


def test_who_has_lost_the_role_meanwhile_gives_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with running(tmp_path, store=SMALL) as master:
            renew = master.upkeep.renew_snapshots

            async def deposed() -> int:
                await master.end_role()
                return await renew()

            monkeypatch.setattr(master.upkeep, "renew_snapshots", deposed)
            with pytest.raises(Refusal, match="not the master"):
                await ask(master, question(master, wanted=1))

    run(test())


def test_what_may_still_be_lost_is_not_promised(tmp_path: Path) -> None:
    async def test() -> None:
        never = SMALL | {"flush_interval_ms": 3_600_000}
        async with running(tmp_path, store=never, flusher=SlowFlusher) as master, speaking(master) as speaker:
            assert (await speaker.send("tea", b"kept")).code == 0
            master.store.request_flush()
            SlowFlusher.made.sync()
            await on_disk(master)
            confirmed = master.store.marks.confirmed.offset
            assert (await speaker.send("tea", b"lost")).code == 0
            assert 0 < confirmed < master.store.log.end
            for only in (True, False):
                offer, _pieces = await ask(master, question(master, wanted=1), only=only)
                assert offer.end == confirmed
            SlowFlusher.made.keep_up()

    run(test())


def test_many_who_ask_and_say_nothing_more_cost_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, store=SMALL, copies=CopiesConfig(secret=SECRET)) as master:
            idle = []
            for _ in range(40):
                conversation = await Conversation.begin(copies_port(master), None, crc32)
                with pytest.raises(KappaError):
                    await conversation.ask(question(master, wanted=1))
                idle.append(conversation)
            offer, _pieces = await asyncio.wait_for(ask(master, question(master, wanted=1), SECRET), 20)
            assert offer.files > 0
            for conversation in idle:
                conversation.end()

    run(test())


def test_whoever_is_being_seeded_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many strangers ask: they have to show that they know the secret before they count."""
    monkeypatch.setattr(giving, "_LINKS_MAX", 2)

    async def test() -> None:
        async with running(tmp_path, store=SMALL, copies=CopiesConfig(secret=SECRET)) as master:
            seeded = await Conversation.begin(copies_port(master), SECRET, crc32)
            offer = await seeded.ask(question(master, wanted=1))
            idle = []
            for _ in range(10):
                conversation = await Conversation.begin(copies_port(master), None, crc32)
                with suppress(KappaError, OSError, EOFError):
                    await conversation.ask(question(master, wanted=1))
                idle.append(conversation)
            assert len([piece async for piece in seeded.pieces(offer)]) == offer.files > 0
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await seeded._next(10)
            for conversation in (seeded, *idle):
                conversation.end()

    run(test())


def test_whoever_has_got_everything_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving, "_LINKS_MAX", 2)

    async def test() -> None:
        async with running(tmp_path, store=SMALL) as master:
            answered = []
            for _ in range(5):
                conversation = await Conversation.begin(copies_port(master), None, crc32)
                offer = await conversation.ask(question(master, wanted=1))
                assert len([piece async for piece in conversation.pieces(offer)]) == offer.files > 0
                answered.append(conversation)  # and says nothing more
                links = master.copies.seeds._links
                await eventually_async(lambda: not any(link.is_giving for link in links), text="all is given")  # noqa: B023
            for conversation in answered:
                conversation.end()

    run(test())


def test_what_strangers_say_of_themselves_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving, "_HELD_MAX", 3)

    async def test() -> None:
        async with running(tmp_path, store=SMALL) as master:
            with pytest.raises(Refusal, match="no broker id"):
                await ask(master, question(master, wanted=1, who="x" * 100_000))
            for number in range(5):
                await ask(master, question(master, wanted=1, who=f"{number + 1}"))
            assert list(master.copies.seeds._held) == ["3", "4", "5"]

    run(test())
