"""A batch is stored whole or not at all, wherever a crash cuts the log."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from kappamq.net.requests.sizes import BESIDE_BYTES
from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.records import batch
from kappamq.protocol.records.batch import Member
from kappamq.protocol.records.record import Record
from tests.broker.operating import make_topic
from tests.broker.running import MODES, appended, crash_copy, running, speaking

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
            await crash_copy(broker, photo)  # no clean stop has touched it
        whole = await stored(_copy(photo, tmp_path / "whole"))
        assert [record.body[:2] for record in whole[1:]] == [b"m%d" % n for n in range(MEMBERS)]
        assert [record.property_map()["KEYS"] for record in whole[1:]] == [f"k{n}" for n in range(MEMBERS)]
        assert [record.property_map()["own"] for record in whole[1:]] == [str(n) for n in range(MEMBERS)]
        assert [record.queue_offset for record in whole] == list(range(MEMBERS + 1))
        end = whole[-1].log_offset + whole[-1].size
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
            before = appended(broker)
            good = Member(b"good", "UNIQ_KEY\x01x")
            for pairs, changes, text in [
                ("DELAY\x013", {}, "cannot be delayed"),
                ("TRAN_MSG\x01true", {}, "transaction"),
                ("", {"sys_flag": 4}, "transaction"),
            ]:
                answer = await client.send_batch("t", batch.encode([good, Member(b"bad", pairs)]), **changes)
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL, (pairs, answer.remark)
                assert text in (answer.remark or "")
            assert appended(broker) == before
            assert (await client.send_batch("t", batch.encode([good, good]))).code == 0

    asyncio.run(asyncio.wait_for(main(), 60))


OURS = "MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"


@pytest.mark.parametrize("mode", MODES)
def test_members_inherit_what_the_batch_says_and_they_do_not(tmp_path: Path, mode: str) -> None:
    """As with RocketMQ's broker, except that members keep their own ids; the same bytes on every path."""

    async def main() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            await make_topic(client, "t", 1)
            own = "UNIQ_KEY\x01whole\x02color\x01red\x02size\x01XL\x02WAIT\x01true"
            for texts, expected in [
                (["UNIQ_KEY\x01a", "UNIQ_KEY\x01b\x02"], ["UNIQ_KEY\x01a\x02color\x01red\x02size\x01XL\x02WAIT\x01true\x02",
                                                         "UNIQ_KEY\x01b\x02color\x01red\x02size\x01XL\x02WAIT\x01true\x02"]),
                (["size\x01S", "color\x01blue\x02size\x01M\x02WAIT\x01true\x02"],
                 ["size\x01S\x02color\x01red\x02WAIT\x01true\x02", "color\x01blue\x02size\x01M\x02WAIT\x01true\x02"]),
                (["", "xsize\x01size"], ["color\x01red\x02size\x01XL\x02WAIT\x01true\x02",
                                              "xsize\x01size\x02color\x01red\x02size\x01XL\x02WAIT\x01true\x02"]),
            ]:  # fmt: skip
                body = batch.encode(Member(b"x", text) for text in texts)
                answer = await client.send_batch("t", body, properties=own)
                assert answer.code == 0, answer.remark
                first, second = (await client.read("t"))[-2:]
                assert first.properties.startswith(expected[0] + OURS + "__BATCH#\x01")
                assert second.properties == expected[1] + OURS
            assert (await client.send_batch("t", batch.encode([Member(b"x", "")]), properties=None)).code == 0
            assert (await client.read("t"))[-1].properties == OURS
            if mode != "slow":
                assert broker.kernel.left_frames == 2, "the making of the topic and the first pull"

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("mode", MODES)
def test_what_the_kernel_leaves_of_them(tmp_path: Path, mode: str) -> None:
    """Many properties, a name that comes twice, one that only a broker may give: the same members, by the slow path."""

    async def main() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            await make_topic(client, "t", 1)
            many = "".join(f"p{n}\x01{n}\x02" for n in range(40))
            for own, expected in [
                (many, many),
                ("a\x011\x02b\x012\x02a\x013", "a\x013\x02b\x012\x02"),
                ("CLUSTER\x01forged\x02REAL_TOPIC\x01x\x02b\x012", "b\x012\x02"),
            ]:
                assert (await client.send_batch("t", batch.encode([Member(b"x", "")]), properties=own)).code == 0
                assert (await client.read("t"))[-1].properties == expected + OURS

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("mode", MODES)
def test_a_small_request_does_not_become_a_huge_batch(tmp_path: Path, mode: str) -> None:
    async def main() -> None:
        async with running(tmp_path, mode) as broker, speaking(broker) as client:
            await make_topic(client, "t", 1)
            members = [Member(b"x", "") for _ in range(1000)]
            answer = await client.send_batch("t", batch.encode(members), properties="big\x01" + "b" * 20_000)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "each member gets the batch's own properties" in (answer.remark or "")
            assert await client.read("t") == [], "nothing of it is stored"
            answer = await client.send_batch("t", batch.encode(members[:9]), properties="big\x01" + "b" * 20_000)
            assert answer.code == 0, answer.remark
            for pairs in ("TRAN_MSG\x01true", "DELAY\x013"):
                answer = await client.send_batch("t", batch.encode(members[:2]), properties=pairs)
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL

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


def test_a_batch_that_was_stored_is_answered_without_waiting_for_the_work_of_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, "twin") as broker, speaking(broker) as client:
            await make_topic(client, "t", 1)
            body = batch.encode(Member(b"m" * 100, f"UNIQ_KEY\x01u{n}\x02CLUSTER\x01x\x02") for n in range(200))
            assert len(body) > BESIDE_BYTES
            beside = broker.bursts.reader.beside
            appended_before: list[int] = []
            plain_run = beside.run

            async def counted(*work: Any, **size: Any) -> Any:
                appended_before.append(broker.kernel.append_offset)
                return await plain_run(*work, **size)

            beside.run = counted  # type: ignore[method-assign]
            start = broker.kernel.append_offset
            answer = await client.send_batch("t", body)
            assert answer.code == 0
            assert len(answer.ext["msgId"].split(",")) == 200
            assert set(appended_before) <= {start}, "nothing is done beside the loop after the append"
            assert appended_before, "it is the slow path that is tested"

    asyncio.run(asyncio.wait_for(main(), 60))
