from __future__ import annotations

from pathlib import Path

import pytest

from kappamq.client.group.local_offsets import LocalOffsets
from kappamq.config.client import ClientConfig
from kappamq.errors import ConfigError, KappaError
from kappamq.message import MessageQueue
from tests.client.loop import on_loop

ONE, TWO = MessageQueue("tea", "broker-a", 0), MessageQueue("tea", "broker-a", 1)

# What Java's client 5.3.3 writes.
JAVA = """{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":1,
\t\t\t"topic":"tea"
\t\t}:5,{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"tea"
\t\t}:123
\t}
}"""


async def unknown(queue: MessageQueue) -> int:
    return 1000


def opened(home: Path, client_id: str = "10.0.0.1@DEFAULT") -> LocalOffsets:
    return LocalOffsets(ClientConfig(offsets_dir=home), client_id, "g", unknown)


@on_loop
async def test_offsets_are_found_again_where_java_keeps_them(tmp_path: Path) -> None:
    offsets = opened(tmp_path)
    assert await offsets.start_of(ONE) == 1000
    await offsets.commit({ONE: 7, TWO: 8}, strict=True)
    await offsets.commit({ONE: 9})
    offsets.close()
    place = tmp_path / "10.0.0.1@DEFAULT" / "g" / "offsets.json"
    # A text that Java's client was seen to read.
    one = '{"brokerName":"broker-a","queueId":0,"topic":"tea"}'
    two = '{"brokerName":"broker-a","queueId":1,"topic":"tea"}'
    assert place.read_text() == f'{{"offsetTable":{{{one}:9,{two}:8}}}}'
    assert "}:7," in place.with_name("offsets.json.bak").read_text()
    again = opened(tmp_path)
    assert (await again.start_of(ONE), await again.start_of(TWO)) == (9, 8)
    again.close()


@on_loop
async def test_javas_file_is_read(tmp_path: Path) -> None:
    place = tmp_path / "10.0.0.1@DEFAULT" / "g"
    place.mkdir(parents=True)
    (place / "offsets.json").write_text(JAVA)
    offsets = opened(tmp_path)
    assert (await offsets.start_of(ONE), await offsets.start_of(TWO)) == (123, 5)
    offsets.close()


@pytest.mark.parametrize("broken", ["", "{", '{"offsetTable":{"a":"b"}}', "\0" * 50])
@on_loop
async def test_a_broken_file_is_replaced_by_the_one_before(tmp_path: Path, broken: str) -> None:
    place = tmp_path / "10.0.0.1@DEFAULT" / "g"
    place.mkdir(parents=True)
    (place / "offsets.json").write_text(broken)
    (place / "offsets.json.bak").write_text(JAVA)
    offsets = opened(tmp_path)
    assert await offsets.start_of(ONE) == 123
    offsets.close()


@on_loop
async def test_offsets_do_not_go_back_unless_the_queue_begins_anew(tmp_path: Path) -> None:
    offsets = opened(tmp_path)
    await offsets.commit({ONE: 9})
    await offsets.commit({ONE: 3})
    assert await offsets.start_of(ONE) == 9
    offsets.forget(ONE)
    await offsets.commit({ONE: 3})
    assert await offsets.start_of(ONE) == 3
    offsets.close()


@on_loop
async def test_a_second_consumer_with_the_same_file_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(ConfigError, match="give each its own `instance`"):
        opened(tmp_path)
    opened(tmp_path, "10.0.0.1@other").close()
    first.close()
    opened(tmp_path).close()


@on_loop
async def test_a_place_that_cannot_be_written_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="set offsets_dir"):
        opened(tmp_path / "file")
    with pytest.raises(ConfigError, match="is used as a folder name"):
        opened(tmp_path, "10.0.0.1@../../etc")
    offsets = opened(tmp_path)
    offsets.path.with_name("offsets.json.tmp").mkdir()  # also root cannot write there
    await offsets.commit({ONE: 1})
    assert "could not write offsets" in caplog.text
    with pytest.raises(KappaError, match="cannot be written"):
        await offsets.commit({ONE: 2}, strict=True)
    offsets.path.with_name("offsets.json.tmp").rmdir()
    await offsets.commit({ONE: 2}, strict=True)
    offsets.close()
