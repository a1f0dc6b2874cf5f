"""Jars of Apache RocketMQ and of what it is compared with, by name and version, in a cache outside the repository.

The cache is `$KAPPAMQ_CACHE`, else `~/.cache/kappamq`. Maven fetches what is missing, once per machine.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FETCH_SECONDS_MAX = 600


class Missing(Exception):
    """Something that these tests need cannot be had on this machine; the text says what and why."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A set of artifacts that share one class path."""

    name: str
    version: str
    artifacts: tuple[str, ...]  # "artifact" in the version above, "artifact:version", or "group:artifact:version"
    group: str = "org.apache.rocketmq"
    alone: bool = False  # without what they depend on: whoever takes them has it, or names it, too

    def pom(self) -> str:
        without = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
        dependencies = []
        for artifact in self.artifacts:
            group, name, version = self._coordinates(artifact)
            dependencies.append(
                f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
                f"<version>{version}</version>{without if self.alone else ''}</dependency>"
            )
        return (
            "<project><modelVersion>4.0.0</modelVersion><groupId>kappamq.interop</groupId>"
            f"<artifactId>{self.name}</artifactId><version>{self.version}</version><packaging>pom</packaging>"
            f"<dependencies>{''.join(dependencies)}</dependencies></project>\n"
        )

    def _coordinates(self, artifact: str) -> tuple[str, str, str]:
        parts = artifact.split(":")
        if len(parts) == 3:
            return parts[0], parts[1], parts[2]
        return self.group, parts[0], parts[1] if len(parts) == 2 else self.version


SERVER = Bundle(name="server", version="5.3.3", artifacts=("rocketmq-namesrv", "rocketmq-broker", "rocketmq-tools"))
CLIENT_4 = Bundle(name="client", version="4.9.8", artifacts=("rocketmq-client",))
CLIENT_5 = Bundle(name="client", version="5.3.3", artifacts=("rocketmq-client",))


def cache() -> Path:
    place = os.environ.get("KAPPAMQ_CACHE")
    return Path(place) if place else Path.home() / ".cache" / "kappamq"


@contextmanager
def only_one_process(path: Path) -> Iterator[None]:
    """Two test runs on one machine may want the same bundle: the second waits for the first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def java_tool(name: str) -> str:
    """The path of java, javac or mvn."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=f"{home}/bin") if home else None
    found = found or shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not on the PATH: install a JDK (11 or newer) and Maven")
    return found


def directory(bundle: Bundle) -> Path:
    """The folder that holds every jar of the bundle, fetched first if it is not here yet."""
    place = cache() / "jars" / f"{bundle.name}-{bundle.version}"
    with only_one_process(place.with_name(place.name + ".lock")):
        if not place.exists():
            _fetch(bundle, place)
    return place


def class_path(bundle: Bundle, *before: Path) -> str:
    return os.pathsep.join([*map(str, before), f"{directory(bundle)}/*"])


def _fetch(bundle: Bundle, place: Path) -> None:
    work = place.with_name(place.name + ".part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    pom = work / "pom.xml"
    pom.write_text(bundle.pom())
    command = [java_tool("mvn"), "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command.append(f"-DoutputDirectory={work / 'lib'}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        raise Missing(f"Maven Central did not give {bundle.name} {bundle.version} in {FETCH_SECONDS_MAX} s") from None
    if done.returncode != 0:
        raise Missing(f"Maven could not fetch {bundle.name} {bundle.version}:\n{(done.stdout + done.stderr)[-2000:]}")
    # The folder appears under its name only when it is whole, so a broken download is never taken for a bundle.
    (work / "lib").rename(place)
    shutil.rmtree(work)
