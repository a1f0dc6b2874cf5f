"""The official Go client: our program (go/main.go), built against it in the cache outside the repository."""

import hashlib
import shutil
import subprocess
from pathlib import Path

from tests.interop import jars
from tests.interop.probe import JsonLines

SOURCES = Path(__file__).parent / "go"
BUILD_SECONDS_MAX = 580


def program() -> Path:
    """The built program; Go fetches the client, by the sums in go.sum, when it is built for the first time."""
    go = shutil.which("go")
    if go is None:
        raise jars.Missing("Go is not on the PATH: install it, 1.21 or newer")
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))).hexdigest()[:12]
    built = jars.cache() / "go" / f"probe-{digest}"
    with jars.only_one_process(built.with_name(built.name + ".lock")):
        if not built.exists():
            part = built.with_name(built.name + ".part")
            command = [go, "build", "-mod=readonly", "-o", str(part), "."]
            try:
                done = subprocess.run(
                    command, cwd=SOURCES, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False
                )
            except subprocess.TimeoutExpired:
                raise jars.Missing(f"the Go client was not fetched and built in {BUILD_SECONDS_MAX} s") from None
            if done.returncode != 0:
                raise jars.Missing(f"the Go client cannot be built:\n{(done.stdout + done.stderr)[-2000:]}")
            part.rename(built)
    return built


def go_probe(nameserver: str, home: Path, name: str) -> JsonLines:
    """Start it; the client keeps offsets of broadcasting consumers under $HOME."""
    home.mkdir(parents=True, exist_ok=True)
    return JsonLines([str(program()), nameserver, name], home / "err.txt", {"HOME": str(home)})
