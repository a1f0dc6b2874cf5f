from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kappamq.config.store import StoreConfig
from kappamq.errors import ConfigError

ROOT = Path("/nowhere")


def test_defaults_are_rocketmqs_files() -> None:
    config = StoreConfig(root=ROOT)
    assert config.segment_bytes == 1073741824
    assert config.queue_file_entries * 20 == 6_000_000
    assert 40 + 4 * config.index_slots + 20 * config.index_entries == 420_000_040
    assert (config.retention_hours, config.delete_hours) == (72, (4,))
    assert config.delete_unexpired_ratio is None


def test_a_text_is_a_path_too() -> None:
    assert StoreConfig(root="/nowhere").root == ROOT  # type: ignore[arg-type]


def test_a_record_fits_into_a_file() -> None:
    with pytest.raises(ConfigError, match="does not fit into segment_bytes"):
        StoreConfig(root=ROOT, segment_bytes=1 << 20, message_bytes_max=1 << 20)
    StoreConfig(root=ROOT, segment_bytes=1 << 16, message_bytes_max=1 << 12)


@pytest.mark.parametrize(
    "wrong",
    [
        {"segment_bytes": 1},
        {"segment_bytes": 1 << 31},
        {"flush": "never"},
        {"flush_interval_ms": 0},
        {"delete_hours": (24,)},
        {"disk_refuse_ratio": 1.5},
        {"delete_unexpired_ratio": 0},
        {"query_max": 0},
    ],
)
def test_wrong_values_name_the_field(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        StoreConfig(root=ROOT, **wrong)
