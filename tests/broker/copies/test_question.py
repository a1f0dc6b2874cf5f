"""Questions on the port for copies find who answers them; nothing is said before the secret is proved (see also mending and seeding)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from zlib import crc32

import pytest

from kappamq.broker.copies.question import Questions
from kappamq.config.copies import CopiesConfig
from kappamq.replication.frames import OPENING, VERSION, Frames, Kind, frame, text_frame, values_of
from tests.broker.running import run, running


class Taker:
    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def take(self, transport: asyncio.Transport, content: bytes) -> None:
        self.taken.append(content)


def test_each_kind_has_its_own() -> None:
    one, other = Taker(), Taker()
    questions = Questions({Kind.ASK: one, Kind.FETCH: other})
    assert questions.knows(Kind.ASK)
    assert not questions.knows(Kind.LOG)

    class Nowhere(asyncio.Transport):
        pass

    questions.take(Kind.FETCH, Nowhere(), b"x")
    assert (one.taken, other.taken) == ([], [b"x"])


@pytest.mark.parametrize("kind", [Kind.ASK, Kind.FETCH])
@pytest.mark.parametrize(
    ("said", "text"),
    [
        (text_frame(Kind.PROOF, {"proof": "00"}, crc32), "it does not know the secret"),
        (text_frame(Kind.PROOF, {}, crc32), "it does not know the secret"),
        (frame(Kind.BYTES, b"x" * 20, crc32), "is not what comes now"),
        (b"\xff" * 20, "a frame of"),
    ],
)
def test_who_does_not_prove_that_it_knows_the_secret_hears_nothing(
    tmp_path: Path, kind: Kind, said: bytes, text: str
) -> None:
    async def test() -> None:
        async with running(tmp_path, copies=CopiesConfig(secret="a long enough one")) as broker:
            asking = broker.seeding.asking().values()
            ours = {**broker.copies._who().values(), "start": 1, "end": 2}
            values = {**(asking if kind is Kind.ASK else ours), "who": "9", "nonce": "00"}
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port + 1)
            writer.write(OPENING.pack(-VERSION) + text_frame(kind, values, crc32))
            await reader.readexactly(OPENING.size)
            frames, answers = Frames(crc32), []
            answers += frames.feed(await reader.read(1 << 16))
            assert [kind for kind, _content in answers] == [Kind.CHALLENGE]
            writer.write(said)
            async with asyncio.timeout(10):
                while data := await reader.read(1 << 16):
                    answers += frames.feed(data)
            assert [kind for kind, _content in answers[1:]] == [Kind.REFUSED]
            assert text in values_of(answers[1][1])["why"]
            writer.close()

    run(test())
