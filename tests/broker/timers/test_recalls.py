"""Taking messages back before their time."""

from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.protocol.codes import ResponseCode
from kappamq.protocol.headers.client import RecallMessage, SendMessageResponse
from kappamq.protocol.recall import RecallHandle
from tests.broker.running import crash_copy, run
from tests.broker.timing import START_MS, MessageClock, Timed, timed

DUE = START_MS + 60_000


async def sent(it: Timed, body: bytes, ms: int = 60_000) -> str:
    text = f"UNIQ_KEY\x01K{body.decode()}\x02TIMER_DELAY_MS\x01{ms}\x02"
    answer = await it.client.send("tea", body, 0, text)
    assert answer.code == 0, answer.remark
    handle = SendMessageResponse.decode(answer.ext).recall_handle
    assert handle is not None
    return handle


async def recalled(it: Timed, handle: str, topic: str = "tea") -> tuple[int, str]:
    answer = await it.client.ask(RecallMessage(topic=topic, recall_handle=handle, producer_group="pg"))
    if answer.code == 0:
        assert answer.ext["MSG_REGION"] == "DefaultRegion", "without it Java's client traces no recall"
    return answer.code, answer.ext.get("msgId", "") if answer.code == 0 else answer.remark or ""


@pytest.mark.parametrize("when", [0, 57_500, 59_999])
def test_what_is_recalled_does_not_come(tmp_path: Path, when: int) -> None:
    """Also at the last moment, when it is in memory already."""

    async def scenario() -> None:
        async with timed(tmp_path) as it:
            handles = [await sent(it, body, 60_000 + n % 2) for n, body in enumerate((b"a", b"b", b"c", b"d"))]
            assert RecallHandle.decode(handles[0]) == RecallHandle("tea", "b", DUE, "Ka")
            await it.pass_ms(when)
            assert await recalled(it, handles[0]) == (0, "Ka")
            assert await recalled(it, handles[3]) == (0, "Kd")
            await it.pass_ms(60_001 - when)
            assert await it.bodies() == [b"c", b"b"]

    run(scenario())


@pytest.mark.parametrize("lost", [False, True])
def test_over_a_crash(tmp_path: Path, lost: bool) -> None:
    async def scenario() -> None:
        async with timed(tmp_path / "a") as it:
            handle = await sent(it, b"a")
            await sent(it, b"b")
            assert (await recalled(it, handle))[0] == 0
            await crash_copy(it.broker, tmp_path / "b")
        if lost and (tmp_path / "b" / "timerwheel").exists():
            (tmp_path / "b" / "timerwheel").unlink()
        async with timed(tmp_path / "b", clock=MessageClock(DUE + 5000)) as it:
            await it.settle()
            assert await it.bodies() == [b"b"]

    run(scenario())


def test_refusals(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with timed(tmp_path) as it:
            handle = await sent(it, b"a")
            await it.send(b"x", topic="coffee")
            illegal = ResponseCode.ILLEGAL_OPERATION
            elsewhere = RecallHandle("tea", "another", DUE, "Ka").encode()
            far = RecallHandle("tea", "b", START_MS + 10**11, "Ka").encode()
            for given, topic, code, text in [
                ("nonsense!", "tea", illegal, "handle is invalid"),
                (handle, "coffee", illegal, "topic not match"),
                (handle, "unknown", ResponseCode.TOPIC_NOT_EXIST, "not exist"),
                (elsewhere, "tea", illegal, "another"),
                (far, "tea", illegal, "timestamp invalid"),
            ]:
                found = await recalled(it, given, topic)
                assert (found[0], text in found[1]) == (code, True), found
            await it.pass_ms(60_000)
            code, text = await recalled(it, handle)
            assert (code, "has come already" in text) == (illegal, True)
            assert await it.bodies() == [b"a"]
            it.broker.settings.change({"recallMessageEnable": "false"})
            assert await recalled(it, await sent(it, b"b")) == (
                ResponseCode.NO_PERMISSION,
                "recall failed, operation is forbidden: see recallMessageEnable",
            )

    run(scenario())
