"""A batch is stored whole or not at all, wherever a crash cuts the log."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from kappamq.protocol import batch
from kappamq.protocol.batch import Member
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.record import Record
from tests.broker.operating import make_topic
from tests.broker.running import MODES, running, speaking

MEMBERS = 5


async def stored(root: Path) -> list[Record]:
    async with running(root, "twin") as broker, speaking(broker) as client:
        return await client.read("t")


def test_a_torn_batch_is_gone_at_every_place_it_may_be_torn(tmp_path: Path) -> None:
    async def main() -> None:
        photo = tmp_path / "photo"
        async with running(tmp_path / "live", "twin") as broker, speaking(broker) as client:
            await make_topic(client, "t", 1)
            assert (await client.send("t", b"before")).code == 0
            body = batch.encode(
                Member(b"m%d" % n * 40, f"UNIQ_KEY\x01u{n}\x02KEYS\x01k{n}\x02own\x01{n}") for n in range(MEMBERS)
            )
            answer = await client.send_batch("t", body)
            assert answer.code == 0
            starts = [int(one[16:], 16) for one in answer.ext["msgId"].split(",")]
            end = broker.kernel.append_offset
            shutil.copytree(tmp_path / "live", photo)  # what a kill -9 would leave; no clean stop has touched it
        whole = await stored(_copy(photo, tmp_path / "whole"))
        assert [record.body[:2] for record in whole[1:]] == [b"m%d" % n for n in range(MEMBERS)]
        assert [record.property_map()["KEYS"] for record in whole[1:]] == [f"k{n}" for n in range(MEMBERS)]
        assert [record.property_map()["own"] for record in whole[1:]] == [str(n) for n in range(MEMBERS)]
        assert [record.queue_offset for record in whole] == list(range(MEMBERS + 1))
        # Torn in the first bytes of each member, in its middle, right behind it, and in the last byte of all.
        cuts = sorted({*starts, *(start + 3 for start in starts), *(start + 60 for start in starts), end - 1})
        for number, cut in enumerate(cuts):
            root = _copy(photo, tmp_path / f"torn{number}", cut)
            assert [record.body for record in await stored(root)] == [b"before"], f"cut at {cut} of {starts}..{end}"
            shutil.rmtree(root)
        # The place is free again: the next batch is numbered as if the torn one had never been.
        async with running(_copy(photo, tmp_path / "on", end - 1), "twin") as broker, speaking(broker) as client:
            answer = await client.send_batch("t", body)
            assert (answer.code, answer.ext["queueOffset"]) == (0, "1")
            assert len(await client.read("t")) == MEMBERS + 1

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("mode", MODES)
def test_nothing_of_a_batch_that_is_delayed_or_transactional_is_stored(tmp_path: Path, mode: str) -> None:
    async def main() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            await make_topic(client, "t", 1)
            end = broker.kernel.append_offset
            good = Member(b"good", "UNIQ_KEY\x01x")
            for pairs, changes, text in [
                ("DELAY\x013", {}, "cannot be delayed"),
                ("TRAN_MSG\x01true", {}, "transaction"),
                ("", {"sys_flag": 4}, "transaction"),
            ]:
                answer = await client.send_batch("t", batch.encode([good, Member(b"bad", pairs)]), **changes)
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL, (pairs, answer.remark)
                assert text in (answer.remark or "")
            assert broker.kernel.append_offset == end
            assert (await client.send_batch("t", batch.encode([good, good]))).code == 0

    asyncio.run(asyncio.wait_for(main(), 60))


def _copy(photo: Path, root: Path, cut: int | None = None) -> Path:
    """A store as it is after a power cut that lost everything of the log behind `cut`."""
    shutil.copytree(photo, root)
    if cut is not None:
        (segment,) = (root / "commitlog").iterdir()
        with segment.open("r+b") as file:
            size = segment.stat().st_size
            file.truncate(cut)
            file.truncate(size)
    return root
