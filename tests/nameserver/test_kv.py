"""KV configuration: kept over a restart, never half written, bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kappamq.errors import BrokerError, ConfigError
from kappamq.nameserver import kv as kv_module
from kappamq.nameserver.kv import FILE_NAME, KvConfig


def reopened(root: Path) -> KvConfig:
    kv = KvConfig(root)
    kv.load()
    return kv


def test_kept_over_a_restart(tmp_path: Path) -> None:
    async def change() -> None:
        kv = reopened(tmp_path / "deep" / "er")
        await kv.put("ns", "k", "v")
        await kv.put("ns", "ü", "1;2")
        await kv.put("other", "k", "x")
        await kv.delete("other", "k")
        await kv.delete("ns", "nothing")

    asyncio.run(change())
    kv = reopened(tmp_path / "deep" / "er")
    assert kv.namespace("ns") == {"k": "v", "ü": "1;2"}
    assert kv.namespace("other") == {}
    assert kv.namespace("none") is None
    assert kv.get("ns", "k") == "v"
    assert kv.get("ns", "none") is None
    assert kv.get("none", "k") is None


def test_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kv = KvConfig(None)
    kv.load()
    asyncio.run(kv.put("ns", "k", "v"))
    assert kv.get("ns", "k") == "v"
    assert list(tmp_path.iterdir()) == []


def test_reads_what_the_java_server_writes(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{\n\t"configTable":{"ORDER_TOPIC_CONFIG":{"T":"a:4;b:4"\n\t\t}\n\t}\n}')
    assert reopened(tmp_path).get("ORDER_TOPIC_CONFIG", "T") == "a:4;b:4"


def test_damaged_file_falls_back_to_the_version_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def change() -> None:
        kv = reopened(tmp_path)
        await kv.put("ns", "k", "1")
        await kv.put("ns", "k", "2")

    asyncio.run(change())
    (tmp_path / FILE_NAME).write_bytes(b"{torn")
    assert reopened(tmp_path).get("ns", "k") == "1"
    assert "damaged" in caplog.text
    (tmp_path / (FILE_NAME + ".bak")).write_bytes(b"[]")
    with pytest.raises(ConfigError, match="repair or remove it"):
        reopened(tmp_path)


@pytest.mark.parametrize("text", ["[]", '{"configTable":[]}', '{"configTable":{"ns":1}}', ""])
def test_not_a_kv_file(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(ConfigError, match="cannot be read"):
        reopened(tmp_path)


def test_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(ConfigError, match="cannot read"):
        reopened(tmp_path)


def test_is_bounded() -> None:
    kv = KvConfig(None, bytes_max=100)
    asyncio.run(kv.put("ns", "k", "v"))
    with pytest.raises(BrokerError, match="the limit is 100"):
        asyncio.run(kv.put("ns", "k", "v" * 100))
    assert kv.get("ns", "k") == "v"


def test_failed_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = reopened(tmp_path)
    asyncio.run(kv.put("ns", "k", "1"))

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kv_module, "_write", full)
    for attempt in (kv.put("ns", "k", "2"), kv.delete("ns", "k")):
        with pytest.raises(BrokerError, match="No space left on device; nothing changed"):
            asyncio.run(attempt)
    assert kv.get("ns", "k") == "1"


def test_changes_at_once_are_all_kept(tmp_path: Path) -> None:
    async def many() -> None:
        kv = reopened(tmp_path)
        await asyncio.gather(*(kv.put("ns", f"k{number}", "v") for number in range(20)))

    asyncio.run(many())
    assert len(reopened(tmp_path).namespace("ns") or {}) == 20
