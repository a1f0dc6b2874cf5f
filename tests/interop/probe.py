"""The official Java client as a child process that does what it is told (java/Probe.java)."""

import hashlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests.interop import jars
from tests.interop.apache import SHORT_LIVED, java_command

SOURCES = [Path(__file__).parent / "java" / name for name in ("Probe.java", "Delivery.java")]
ANSWER_SECONDS_MAX = 60


class ProbeError(Exception):
    """The client raised; `code` is the broker's response code, or -1 and less for the client's own troubles."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class JsonLines:
    """A child process that answers each JSON line on its standard input with one on its standard output."""

    def __init__(self, command: Sequence[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as errors:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(env or {})},
                text=True,
            )
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def __call__(self, do: str, **arguments: object) -> Any:
        """Ask, and return what is under "ok"; ProbeError if the client raised."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.popen.stdin.flush()
        try:
            line = self._answers.get(timeout=ANSWER_SECONDS_MAX)
        except queue.Empty:
            raise TimeoutError(f"{do}: no answer in {ANSWER_SECONDS_MAX} s; {self._tail()}") from None
        if line is None:
            raise RuntimeError(f"{do}: the client's process ended with {self.popen.wait()}; {self._tail()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ProbeError(answer["error"], answer["code"])
        return answer.get("ok")

    def _tail(self) -> str:
        return "it said:\n" + self.log.read_text(errors="replace")[-2000:]

    def close(self) -> None:
        """Its standard input ends, so it ends; killed if it does not."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        try:
            self.popen.wait(5)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self._reader.join()
        assert self.popen.stdout is not None
        self.popen.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def compiled(bundle: jars.Bundle, sources: Sequence[Path] = SOURCES) -> Path:
    """The folder of the class files, compiled against this bundle when a source has changed."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    classes = jars.cache() / "classes" / f"{bundle.name}-{bundle.version}-{digest}"
    with jars.only_one_process(classes.with_name(classes.name + ".lock")):
        if not classes.exists():
            part = classes.with_name(classes.name + ".part")
            command = [jars.java_tool("javac"), "-nowarn", "-d", str(part), "-cp", jars.class_path(bundle)]
            command += map(str, sources)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"javac against {bundle.name} {bundle.version}:\n{done.stdout}{done.stderr}"
            part.rename(classes)
    return classes


def java_probe(bundle: jars.Bundle, nameserver: str, home: Path, name: str, *, binary: bool = False) -> JsonLines:
    """Start the client; `binary` chooses its header format (else JSON)."""
    serialize = "ROCKETMQ" if binary else "JSON"
    options = (
        *SHORT_LIVED,
        f"-Drocketmq.serialize.type={serialize}",
        f"-Drocketmq.client.logRoot={home}",
        # A consumer whose first attempt to get its queues fails (this happens on a busy machine) tries again after 20 s.
        "-Drocketmq.client.rebalance.waitInterval=5000",
    )
    command = java_command(bundle, home, "Probe", heap_mb=128, options=options, before=(compiled(bundle),))
    return JsonLines([*command, nameserver, name], home / "err.txt")
