"""The port for copies: strangers, wrong secrets and nonsense get a reason or are closed, and nobody else notices."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from kappamq.broker.broker import Broker
from kappamq.config.copies import SYNC_MASTER, CopiesConfig
from kappamq.replication.frames import OPENING, VERSION, Frames, Kind, Report, content_of, frame, text_frame, values_of
from kappamq.replication.greeting import proof, whole
from tests.broker.copies.copying import caught_up, same_logs, slave_of
from tests.broker.running import run, running, speaking
from tests.waiting import eventually_async


async def said(master: Broker, data: bytes) -> list[tuple[Kind, bytes]]:
    """What the master answers to these bytes until it closes the connection, behind its version."""
    reader, writer = await asyncio.open_connection("127.0.0.1", master.port + 1)
    try:
        writer.write(data)
        came = b""
        with suppress(ConnectionResetError):
            while part := await asyncio.wait_for(reader.read(1 << 16), 10):
                came += part
        return list(Frames(crc32).feed(came.removeprefix(OPENING.pack(-VERSION))))
    finally:
        writer.close()


def hello(master: Broker, **changes: Any) -> bytes:
    ours = replace(master.copies.greeting(), broker_id=7, nonce="00", **changes)
    return OPENING.pack(-VERSION) + text_frame(Kind.HELLO, ours.values(), crc32)


async def refusal(master: Broker, data: bytes) -> str:
    ((kind, content),) = await said(master, data)
    assert kind is Kind.REFUSED
    return str(values_of(content)["why"])


def test_a_copy_that_does_not_fit_hears_why(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "m") as master, speaking(master) as speaker:
            await speaker.send("tea", b"1")
            master.writer.end_turn()
            end = master.store.log.end
            assert "cannot follow" in await refusal(master, hello(master, name="x"))
            assert "mappedFileSizeCommitLog" in await refusal(master, hello(master, segment_bytes=4096))
            assert "the master has lost messages" in await refusal(master, hello(master, end=end + 1))
            assert "the two logs differ" in await refusal(master, hello(master, end=end, crc=1))
            assert "version 9" in await refusal(master, OPENING.pack(-9))

    run(test())


def test_a_broker_that_is_no_master_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "m") as master, slave_of(master, tmp_path / "s") as slave:
            assert "not the master now" in await refusal(slave, hello(slave))

    run(test())


def test_nonsense_is_closed_and_nobody_else_notices(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    dice = random.Random(1)

    async def test() -> None:
        async with AsyncExitStack() as stack:
            master = await stack.enter_async_context(running(tmp_path / "m"))
            slave = await stack.enter_async_context(slave_of(master, tmp_path / "s"))
            await eventually_async(lambda: slave.copies.following.is_connected, text="the slave follows")
            good = hello(master)
            report = frame(Kind.REPORT, Report(0, 0, 0, 0).encode(), crc32)
            for bad in (
                OPENING.pack(-VERSION) + b"\xff" * 64,
                OPENING.pack(-VERSION) + report,
                OPENING.pack(-VERSION) + text_frame(Kind.HELLO, {"cluster": 5}, crc32),
                good + good[8:],
                good + frame(Kind.REPORT, Report(0, 0, 1 << 60, 0).encode(), crc32),
                good + frame(Kind.LOG, b"", crc32),
                *(dice.randbytes(200) for _ in range(20)),
                *(OPENING.pack(-VERSION) + dice.randbytes(200) for _ in range(20)),
            ):
                answers = await asyncio.wait_for(said(master, bad), 15)
                assert all(kind in (Kind.REFUSED, Kind.WELCOME, Kind.LOG) for kind, _content in answers)
            async with speaking(master) as speaker:
                assert (await speaker.send("tea", b"1")).code == 0
            await caught_up(master, slave)
            same_logs(master, slave)

    run(test())
    assert any("connection" in record.message for record in caplog.records)


def test_a_follower_reports_and_may_not_say_anything_long(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is kept for the rest of a frame that no report is."""

    async def test() -> None:
        async with running(tmp_path / "m") as master:
            head = struct.pack(">IIB", 60 << 20, 0, Kind.REPORT)
            answers = await said(master, hello(master) + head)
            assert [kind for kind, _content in answers][:1] == [Kind.WELCOME]

    run(test())
    assert f"a frame of {60 << 20} bytes" in caplog.text


def test_an_address_that_is_no_text_does_not_hide_the_others(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "m") as master:
            ours = {**replace(master.copies.greeting(), broker_id=7).values(), "address": "\ud800:1"}
            assert await said(master, OPENING.pack(-VERSION) + text_frame(Kind.HELLO, ours, crc32)) == []

    run(test())


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        ("s3cret-word", "wrong-word", "does not know the secret"),
        ("s3cret-word", None, "asks for the secret"),
        (None, "s3cret-word", "does not know the secret of this group"),
    ],
)
def test_without_the_right_secret_nobody_follows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ours: str | None, theirs: str | None, text: str
) -> None:
    async def test() -> None:
        async with (
            running(tmp_path / "m", copies=CopiesConfig(secret=ours)) as master,
            slave_of(master, tmp_path / "s", copies={"secret": theirs}) as slave,
        ):
            await eventually_async(lambda: text in caplog.text, text="the slave hears why")
            assert not slave.copies.following.is_connected
            assert slave.store.log.end == 0

    run(test())
    assert "s3cret-word" not in caplog.text


def test_with_the_right_secret_it_does(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            running(tmp_path / "m", copies=CopiesConfig(secret="s3cret-word")) as master,
            slave_of(master, tmp_path / "s", copies={"secret": "s3cret-word"}) as slave,
            speaking(master) as speaker,
        ):
            await speaker.send("tea", b"1")
            await caught_up(master, slave)
            same_logs(master, slave)

    run(test())


def test_a_slave_that_is_frozen_is_let_go_and_one_that_is_idle_is_not(tmp_path: Path) -> None:
    async def test() -> None:
        copies = CopiesConfig(role=SYNC_MASTER, slave_timeout_ms=60_000)
        async with running(tmp_path / "m", copies=copies) as master, slave_of(master, tmp_path / "s") as slave:
            followers = master.copies.followers
            await eventually_async(lambda: followers.held.missing() is None, text="the slave follows")
            (idle,) = followers.following
            # Connected, and as silent as a machine that has lost its power.
            _reader, out = await asyncio.open_connection("127.0.0.1", master.port + 1)
            out.write(hello(master))
            await eventually_async(lambda: len(followers.following) == 2, text="the second follows")
            await eventually_async(lambda: len(followers.following) == 1, timeout=20, text="it is let go")
            assert followers.following == [idle]
            assert slave.copies.following.is_connected
            out.transport.abort()

    run(test())


def test_a_greeting_that_was_changed_on_its_way_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        secret = "s3cret-word"
        async with running(tmp_path / "m", copies=CopiesConfig(secret=secret)) as master:
            honest = replace(master.copies.greeting(), broker_id=7, nonce="00").values()
            for sent, text in (
                (honest, ""),
                (honest | {"address": "6.6.6.6:666", "broker_id": 9}, "does not know the secret"),
            ):
                reader, out = await asyncio.open_connection("127.0.0.1", master.port + 1)
                out.write(OPENING.pack(-VERSION) + text_frame(Kind.HELLO, sent, crc32))
                frames = Frames(crc32)
                async with asyncio.timeout(20):
                    await reader.readexactly(OPENING.size)
                    ((kind, content),) = frames.feed(await reader.read(1 << 16))
                    assert kind is Kind.CHALLENGE
                    proved = proof(secret, "follower", whole(content_of(honest)), values_of(content)["nonce"])
                    out.write(text_frame(Kind.PROOF, {"proof": proved}, crc32))
                    kind, content = next(iter(frames.feed(await reader.read(1 << 16))))
                assert kind is (Kind.REFUSED if text else Kind.WELCOME)
                assert text in str(values_of(content).get("why", ""))
                out.transport.abort()

    run(test())


def test_what_a_copy_brings_along_counts_when_it_says_that_it_is_on_its_disk(tmp_path: Path) -> None:
    async def test() -> None:
        copies, store = CopiesConfig(role=SYNC_MASTER), {"flush": "sync"}
        async with running(tmp_path / "m", copies=copies, store=store) as master, speaking(master) as speaker:
            await speaker.send("tea", b"1")
            end, followers = master.store.log.end, master.copies.followers
            reader, writer = await asyncio.open_connection("127.0.0.1", master.port + 1)
            writer.write(hello(master))
            await eventually_async(lambda: followers.following, text="it follows")
            assert master.store.log.end == end
            assert followers.held.held() < end, "it has the messages, perhaps in its page cache"
            writer.write(frame(Kind.REPORT, Report(0, 0, end, end).encode(), crc32))
            await eventually_async(lambda: followers.held.held() == end, text="now it is a copy")
            writer.close()
            await reader.read()

    run(test())
