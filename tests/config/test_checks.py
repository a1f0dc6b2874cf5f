from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from kappamq.config import checks
from kappamq.errors import ConfigError


@pytest.mark.parametrize(
    "text", ["a:1", "10.0.0.1:9876", "[::1]:65535", "my-host.example:80", "münchen.example:1", "[fe80::1%2]:1"]
)
def test_good_addresses(text: str) -> None:
    checks.address("x", text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a:",
        ":1",
        "a:0",
        "a:65536",
        "a:b",
        "a b:1",
        "::1:80",
        "http://a:1",
        "a:1;b:2",
        "a" * 64 + ".x:1",
        "a..b:1",
        "ü" * 64 + ":1",
        "\udc80:1",
        "x." * 128 + "x:1",
    ],
)
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        checks.address("x", text)


@pytest.mark.parametrize("value", [0, 11, True, "5", None])
def test_between_takes_numbers_in_range_only(value: object) -> None:
    with pytest.raises(ConfigError, match="x must be a number from 1 to 10"):
        checks.between("x", value, 1, 10)  # type: ignore[arg-type]


def test_the_rest() -> None:
    checks.between("x", 1, 1, 10)
    checks.at_least("x", 3, 3)
    with pytest.raises(ConfigError, match="at least 3"):
        checks.at_least("x", 2, 3)
    with pytest.raises(ConfigError, match="one of a, b"):
        checks.one_of("x", "c", ("a", "b"))
    with pytest.raises(ConfigError, match="non-empty"):
        checks.not_empty("x", " ")


def test_durations() -> None:
    assert checks.durations_ms("x", "1s 5m 2h 1d") == (1000, 300_000, 7_200_000, 86_400_000)
    for text in ("", "1", "5x", "1s,2s", "-1s", "1s 2"):
        with pytest.raises(ConfigError, match="x must be durations"):
            checks.durations_ms("x", text)


def test_a_host_alone_gets_the_usual_port() -> None:
    assert [checks.with_port(text, 1) for text in ("a", "[::1]", "1.2.3.4")] == ["a:1", "[::1]:1", "1.2.3.4:1"]
    for text in ("a:2", "::1", "9876", "", "a b"):
        assert checks.with_port(text, 1) == text, "not for us to mend"


@dataclass(frozen=True)
class Settings:
    count: int = 1
    name: str = "a"
    on: bool = False
    place: Path | None = None
    kind: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        checks.of_declared_types(self)


def test_values_must_be_of_their_declared_type() -> None:
    for name, wrong, accepted in [
        ("count", 1.5, "an integer"),
        ("count", True, "an integer"),
        ("count", None, "an integer"),
        ("name", 5, "a string"),
        ("on", "yes", "True or False"),
        ("on", 1, "True or False"),
        ("place", 5, "a path or None"),
    ]:
        with pytest.raises(ConfigError, match=f"{name} must be {accepted}; got {wrong!r}"):
            Settings(**{name: wrong})
    assert Settings(place="somewhere").place == Path("somewhere")  # type: ignore[arg-type]
    Settings(count=2, on=True, kind="b", place=Path())
