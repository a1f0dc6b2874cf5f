"""The tables against the fields they set, and against each other."""

from __future__ import annotations

import dataclasses

import pytest

from kappamq.config import apache_names as names
from kappamq.config.apache import PARTS
from kappamq.errors import ConfigError

SETTINGS = [*names.BROKER_SETTINGS.values(), *names.NAMESERVER_SETTINGS.values()]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.part}:{setting.name}")
def test_every_setting_sets_a_field_and_comes_back(setting: names.Setting) -> None:
    field = {field.name: field for field in dataclasses.fields(PARTS[setting.part])}[setting.field]
    if field.default not in (dataclasses.MISSING, None, ()):
        assert setting.read(setting.kind.show(field.default)) == field.default


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("listenPort", "x", "listenPort must be an integer"),
        ("listenPort", "1e3", "integer"),
        ("listenPort", "", "integer"),
        ("listenPort", "٣", "integer"),
        ("autoCreateTopicEnable", "yes", "true or false"),
        ("flushDiskType", "NO_FLUSH", "ASYNC_FLUSH or SYNC_FLUSH"),
        ("diskMaxUsedSpaceRatio", "0", "percent"),
        ("diskMaxUsedSpaceRatio", "0.75", "integer"),
        ("deleteWhen", "25", "hours of the day"),
        ("deleteWhen", ";", "hours of the day"),
        ("namesrvAddr", " ; ", "host:port"),
    ],
)
def test_wrong_values_say_what_is_right(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        names.BROKER_SETTINGS[name].read(text)


def test_values_are_read() -> None:
    read = {name: setting.read for name, setting in names.BROKER_SETTINGS.items()}
    assert read["deleteWhen"]("04;16") == (4, 16)
    assert read["mappedFileSizeConsumeQueue"]("6000001") == 300_001
    assert read["diskMaxUsedSpaceRatio"]("88") == 0.88
    assert read["flushDiskType"]("sync_flush") == "sync"
    assert str(names.NAMESERVER_SETTINGS["kvConfigPath"].read("/a/kvConfig.json")) == "/a"
    with pytest.raises(ConfigError, match=r"kvConfig\.json"):
        names.NAMESERVER_SETTINGS["kvConfigPath"].read("/a/other.json")
