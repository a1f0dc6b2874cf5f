"""Clients from PyPI, each in a virtual environment of its own, in the cache outside the repository: here, the C++ client."""

import subprocess
import sys
from pathlib import Path

from tests.interop import jars
from tests.interop.probe import JsonLines

PACKAGE = "rocketmq==0.4.4"
PROGRAM = Path(__file__).parent / "cpp_probe.py"


def environment(name: str, package: str, module: str) -> Path:
    """The Python of an environment with this package, made and filled on first use; `module` shows that it works."""
    place = jars.cache() / f"{name}-{package.partition('==')[2]}-py{sys.version_info[0]}.{sys.version_info[1]}"
    python = place / "bin" / "python"
    with jars.only_one_process(place.with_name(place.name + ".lock")):
        if not (place / "complete").exists():
            steps = (
                [sys.executable, "-m", "venv", "--clear", str(place)],
                [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", package],
                [str(python), "-c", f"import {module}"],
            )
            for step in steps:
                done = subprocess.run(step, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise jars.Missing(
                        f"the {name} client {package}: {' '.join(step)}:\n{(done.stdout + done.stderr)[-2000:]}"
                    )
            (place / "complete").touch()
    return python


def cpp_probe(nameserver: str, home: Path, name: str) -> JsonLines:
    """Start it; the library writes its log under $HOME."""
    home.mkdir(parents=True, exist_ok=True)
    python = environment("cpp", PACKAGE, "rocketmq.client")
    return JsonLines([str(python), str(PROGRAM), nameserver, name], home / "err.txt", {"HOME": str(home)})
