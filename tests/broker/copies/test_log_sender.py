from __future__ import annotations

import asyncio
from pathlib import Path

from kappamq.broker.broker import Broker
from kappamq.broker.copies.log_sender import LogSender
from kappamq.config.copies import SYNC_MASTER, CopiesConfig
from kappamq.replication.classic import HEAD, REPORT
from kappamq.replication.gathering import GATHERED_BYTES_MAX
from tests.broker.copies.copying import caught_up, same_logs, slave_of
from tests.broker.running import run, running, speaking
from tests.waiting import eventually_async


def test_no_more_is_sent_than_the_window_allows(tmp_path: Path) -> None:
    """To a follower of either protocol that reports nothing: what is sent, and has to be kept for it, is bounded."""

    async def test() -> None:
        window = 64 << 10
        async with running(tmp_path / "m", copies=CopiesConfig(window_bytes=window)) as master, speaking(master) as to:
            for _ in range(5):
                assert (await to.send("tea", b"x" * 100_000)).code == 0
            end = master.store.log.end
            reader, out = await asyncio.open_connection("127.0.0.1", master.port + 1)
            out.write(REPORT.pack(0))
            at = 0
            while at < end:
                async with asyncio.timeout(20):
                    _offset, size = HEAD.unpack(await reader.readexactly(HEAD.size))
                    at += len(await reader.readexactly(size))
                (link,) = master.copies.followers.following
                assert link.feed is not None
                assert link.feed.sent - link.feed.written <= window
                if at == link.feed.sent:
                    out.write(REPORT.pack(at))
            await eventually_async(lambda: link.feed is not None and link.feed.written == end)
            out.transport.abort()

    run(test())


def paused_report(master: Broker) -> LogSender:
    """The link of the only slave, as if a report of a near slave were under way."""
    (link,) = master.copies.followers.following
    assert link.feed is not None
    assert link._gathering is not None
    link._gathering.sent(0, 0.0)
    link._gathering.reported(0, 0.0001)
    link.feed.received -= 1
    return link


def test_turns_share_a_piece_while_a_report_is_under_way(tmp_path: Path) -> None:
    async def test() -> None:
        copies = CopiesConfig(role=SYNC_MASTER)
        async with (
            running(tmp_path / "m", copies=copies) as master,
            slave_of(master, tmp_path / "s") as slave,
            speaking(master) as speaker,
        ):
            await eventually_async(lambda: master.copies.followers.held.missing() is None, text="the slave follows")
            assert (await speaker.send("tea", b"1")).code == 0
            await caught_up(master, slave)
            link = paused_report(master)
            assert link.feed is not None
            sent = link.feed.sent
            for number in range(3):
                link.written(sent + 4 * number, b"turn")
            assert link.feed.sent == sent, "they wait for the report"
            link.written(sent + 4 * 5, b"not what comes next")
            await eventually_async(lambda: link._catching_up is None, text="nothing is missing")
            assert link.feed.sent == sent, "what was gathered is forgotten, and read from the log"
            link.feed.received = max(link.feed.received, sent)
            sends = [asyncio.create_task(speaker.send("tea", b"x" * 10)) for _ in range(20)]
            assert {(await answer).code for answer in sends} == {0}
            await caught_up(master, slave)
            same_logs(master, slave)

    run(test())


def test_what_is_gathered_leaves_behind_the_report(tmp_path: Path) -> None:
    async def test() -> None:
        copies = CopiesConfig(role=SYNC_MASTER)
        async with (
            running(tmp_path / "m", copies=copies) as master,
            slave_of(master, tmp_path / "s") as slave,
            speaking(master) as speaker,
        ):
            await eventually_async(lambda: master.copies.followers.held.missing() is None, text="the slave follows")
            assert (await speaker.send("tea", b"1")).code == 0
            await caught_up(master, slave)
            link = paused_report(master)
            assert link.feed is not None
            sent = link.feed.sent
            answer = asyncio.create_task(speaker.send("tea", b"2"))
            await eventually_async(lambda: master.store.log.end > sent, text="the message is written")
            link.feed.received = max(link.feed.received, sent)
            link.catch_up()  # also what a tick does, should the report not come
            assert link.feed.sent == master.store.log.end
            assert (await answer).code == 0
            await caught_up(master, slave)
            same_logs(master, slave)

    run(test())


def test_more_than_fits_leaves_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        copies = CopiesConfig(role=SYNC_MASTER)
        async with (
            running(tmp_path / "m", copies=copies) as master,
            slave_of(master, tmp_path / "s") as slave,
            speaking(master) as speaker,
        ):
            await eventually_async(lambda: master.copies.followers.held.missing() is None, text="the slave follows")
            assert (await speaker.send("tea", b"1")).code == 0
            await caught_up(master, slave)
            link = paused_report(master)
            assert link.feed is not None
            answer = await speaker.send("tea", b"x" * GATHERED_BYTES_MAX)
            assert answer.code == 0
            assert link.feed.written == master.store.log.end

    run(test())
