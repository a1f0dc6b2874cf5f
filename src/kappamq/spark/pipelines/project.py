"""A project folder: its specification, its Spark properties, and the lock that keeps two runs apart. Starts no Spark."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kappamq.errors import ConfigError
from kappamq.spark.engine import JAVA_OPTIONS, LOCAL, defaults

SPECIFICATIONS: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")
PROPERTIES: Final = Path("conf") / "spark-defaults.conf"
_FIELDS: Final = frozenset({"name", "storage", "catalog", "database", "schema", "configuration", "libraries"})
_CATALOG: Final = "spark_catalog"
_LOCK: Final = ".lock"


@dataclass(frozen=True, slots=True)
class Project:
    """The contents of a project's files."""

    root: Path
    specification: Path
    name: str
    storage: str  # a URI: where the checkpoints are
    catalog: str
    database: str
    configuration: dict[str, str]
    definitions: tuple[Path, ...]

    def dataset(self, identifier: str) -> str:
        """Return the short name of a dataset or flow: that of the specification's catalog and database goes without them."""
        plain = identifier.replace("`", "")
        for prefix in (f"{self.catalog}.{self.database}.", f"{self.database}."):
            if plain.startswith(prefix):
                return plain.removeprefix(prefix)
        return plain

    def checkpoints(self, target: str, flow: str, *, is_table: bool) -> str:
        """Return the URI below which Spark Declarative Pipelines keeps the checkpoints of a flow, in folders 0, 1, ...

        A full refresh begins the next one."""
        parts = [self.catalog, self.database, *target.split(".")][-3:] if is_table else [target]
        return "/".join([self.storage.rstrip("/"), "_checkpoints", *parts, flow.rpartition(".")[2]])

    def checkpoint(self, target: str, flow: str, *, is_table: bool) -> str:
        """Return the URI of the flow's newest checkpoint."""
        above = self.checkpoints(target, flow, is_table=is_table)
        folder = local_path(above)
        numbers = [int(path.name) for path in folder.glob("*") if path.name.isdigit()] if folder is not None else []
        return f"{above}/{max(numbers, default=0)}"

    def spark_properties(self, master: str | None) -> dict[str, str]:
        """Return the properties to start Spark with. Static properties take effect only there."""
        found = properties(self.root / PROPERTIES)
        java = found.pop(JAVA_OPTIONS, "")
        ours = defaults(master or LOCAL)[JAVA_OPTIONS]
        found[JAVA_OPTIONS] = f"{ours} -Dderby.stream.error.file={self.root / 'catalog.log'} {java}".strip()
        return found | self.configuration

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs out, and work in the project's folder, which relative paths in its properties start from."""
        before = Path.cwd()
        with (self.root / _LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(
                    f"{self.root} is being run by another process: wait until it ends, or stop it"
                ) from None
            os.chdir(self.root)
            try:
                yield
            finally:
                os.chdir(before)


def find(folder: Path) -> Project:
    """Return the project in this folder. Raises ConfigError, which says what is wrong with it."""
    root = folder.absolute()
    found = [root / name for name in SPECIFICATIONS if (root / name).is_file()]
    if not found:
        raise ConfigError(
            f"{root} is not a pipeline project: it has no {SPECIFICATIONS[0]}; `kappamq pipeline init NAME` makes one"
        )
    return _parsed(root, found[0], _yaml(found[0]))


def _yaml(path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        from kappamq.spark.engine import not_installed
        from kappamq.spark.java import INSTALL

        raise ConfigError(f"{not_installed(['yaml'])}: {INSTALL} installs everything that is needed") from None
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None


def _parsed(root: Path, path: Path, said: Any) -> Project:
    if not isinstance(said, dict):
        raise ConfigError(f"{path} must have fields such as name, storage and libraries")
    if unknown := [str(field) for field in said if field not in _FIELDS]:
        raise ConfigError(f"{path}: unknown field {unknown[0]!r}; the fields are {', '.join(sorted(_FIELDS))}")
    texts = {field: said.get(field) for field in ("name", "storage", "catalog")}
    texts["database"] = said.get("database", said.get("schema"))
    for field, value in texts.items():
        needed = field in ("name", "storage")
        if not (isinstance(value, str) and value.strip()) and (needed or value is not None):
            raise ConfigError(f"{path}: {field} must be a text")
    configuration = said.get("configuration") or {}
    if not isinstance(configuration, dict) or not all(
        isinstance(name, str) and isinstance(value, str) for name, value in configuration.items()
    ):
        raise ConfigError(
            f"{path}: configuration must be properties of Spark whose values are texts (put them in quotes)"
        )
    storage = str(texts["storage"])
    return Project(
        root,
        path,
        str(texts["name"]),
        storage if ":/" in storage else (root / storage).as_uri(),
        str(texts["catalog"] or _CATALOG),
        str(texts["database"] or "default"),
        dict(configuration),
        _definitions(root, path, said.get("libraries")),
    )


def _definitions(root: Path, path: Path, libraries: Any) -> tuple[Path, ...]:
    try:
        patterns = [str(entry["glob"]["include"]) for entry in libraries]
    except (TypeError, KeyError):
        raise ConfigError(
            f"{path}: libraries must list where the definitions are, as in - glob: {{include: transformations/**}}"
        ) from None
    found: list[Path] = []
    for pattern in patterns:
        if Path(pattern).is_absolute():
            raise ConfigError(f"{path}: libraries must lie inside of the project: {pattern} does not")
        for file in sorted(root.glob(pattern + "/*" if pattern.endswith("/**") else pattern)):
            if file.is_file() and "__pycache__" not in file.parts and file not in found:
                found.append(file)
    for file in found:
        if file.suffix not in (".py", ".sql"):
            raise ConfigError(f"{file} is neither .py nor .sql: only definitions may be where libraries points to")
    if not found:
        raise ConfigError(f"{path}: libraries names {', '.join(patterns) or 'nothing'}, and there is no definition")
    return tuple(found)


def properties(path: Path) -> dict[str, str]:
    """Read a file of Spark properties: a name, blanks, a value. None if there is no file."""
    found: dict[str, str] = {}
    if not path.is_file():
        return found
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, _, value = text.replace("=", " ", 1).partition(" ") if "=" in text.split()[0] else text.partition(" ")
        if not name.startswith("spark.") or not value.strip():
            raise ConfigError(f"{path}, line {number}: write it as spark.name value: {text}")
        found[name] = value.strip()
    return found


def local_path(uri: str) -> Path | None:
    """Return the path of a file: URI, None for any other."""
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
