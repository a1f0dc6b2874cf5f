"""Makes a new pipeline project. Needs neither Spark nor a broker."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

from kappamq.errors import ConfigError
from kappamq.protocol.names import check_group, check_topic
from kappamq.spark.topic.options import checked_name

TEMPLATE: Final = Path(__file__).with_name("template")
SUFFIX: Final = ".in"
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def init(target: Path, topic: str, sink: str | None = None, quarantine: str | None = None) -> list[Path]:
    """Make a project in `target`, which must not exist or be empty; returns its files. Raises ConfigError.

    It appears as a whole: a run that is killed leaves nothing at its place."""
    target = target.absolute()
    name = checked_project(target)
    values = {
        "NAME": checked_name("name", name, check_group),
        "TOPIC": checked_name("topic", topic, check_topic),
        "SINK": checked_name("sink", sink or f"{topic}_checked", check_topic),
        "QUARANTINE": checked_name("quarantine", quarantine or f"{topic}_quarantine", check_topic),
    }
    if len({values["TOPIC"], values["SINK"], values["QUARANTINE"]}) < 3:
        raise ConfigError(
            "topic, sink and quarantine must be three topics: a pipeline that reads what it writes never ends"
        )
    try:
        return _made(target, values)
    except OSError as error:
        raise ConfigError(f"{target} cannot be made: {error.strerror or error}") from None


def checked_project(target: Path) -> str:
    """Return the name of a project in `target`. Raises ConfigError."""
    name = target.absolute().name
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"the name {name!r} must be a letter, then up to 63 letters, digits, - or _")
    return name


def _made(target: Path, values: dict[str, str]) -> list[Path]:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} exists and is not an empty directory: choose another name")
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        files = [_filled(source, aside, values) for source in sorted(TEMPLATE.rglob(f"*{SUFFIX}"))]
        aside.chmod(0o755)
        os.replace(aside, target)  # also over an empty directory
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return [target / file.relative_to(aside) for file in files]


def _filled(source: Path, root: Path, values: dict[str, str]) -> Path:
    """Write a file of the template, with the names of this project."""
    place = source.relative_to(TEMPLATE).with_suffix("")
    file = root / (place.with_name(".gitignore") if place.name == "gitignore" else place)
    text = source.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file
