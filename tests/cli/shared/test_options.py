from __future__ import annotations

from pathlib import Path

import pytest
import typer

from kappamq.cli.shared.options import data_directory, fail, properties, spoken, store_directory
from kappamq.cli.shared.output import Format, Output
from kappamq.errors import ConfigError, StoreError, TopicNotFound


def test_data_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KAPPAMQ_HOME", "")
    assert data_directory(None) == tmp_path / ".kappamq"
    monkeypatch.setenv("KAPPAMQ_HOME", str(tmp_path / "env"))
    assert data_directory(None) == tmp_path / "env"
    assert data_directory(Path("~/given")) == tmp_path / "given"
    monkeypatch.chdir(tmp_path)
    assert data_directory(Path("relative")) == tmp_path / "relative"
    with pytest.raises(ConfigError, match="home directory"):
        data_directory(Path("~no-such-user-here/x"))


def test_properties() -> None:
    assert properties(None) == {}
    assert properties(["listenPort=1", "brokerName = a=b "]) == {"listenPort": "1", "brokerName": "a=b"}


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("listenPort", typer.BadParameter, "property=value"),
        ("=1", typer.BadParameter, "property=value"),
        ("listenport=1", ConfigError, r"unknown property listenport \(did you mean listenPort\?\)"),
    ],
)
def test_wrong_properties(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        properties([text])


@pytest.mark.parametrize(
    ("error", "code"), [(TopicNotFound("no tea"), 5), (KeyboardInterrupt(), 130), (OSError("disk"), 1)]
)
def test_errors_of_the_world_become_exit_codes(error: BaseException, code: int) -> None:
    @spoken
    def command(output: Format = Format.TEXT) -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        command(output=Format.JSON)
    assert ended.value.exit_code == code


def test_bugs_are_not_hidden() -> None:
    @spoken
    def command() -> None:
        raise AssertionError("a bug")

    with pytest.raises(AssertionError):
        command()


def test_fail_with_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        fail(Output(), "two orders are missing")
    assert ended.value.exit_code == 1
    assert "two orders are missing" in capsys.readouterr().err


def test_a_store_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever named no directory is told where the path comes from."""
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    assert store_directory(tmp_path / "store") == tmp_path / "store"
    with pytest.raises(StoreError, match=r"Pass the broker's data directory$"):
        store_directory(tmp_path)
    monkeypatch.setenv("KAPPAMQ_HOME", str(tmp_path))
    with pytest.raises(StoreError, match=r"This path is given by \$KAPPAMQ_HOME$"):
        store_directory(None)
