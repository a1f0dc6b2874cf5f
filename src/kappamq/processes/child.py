"""One server process that does not outlive us: its standard input is a pipe, and it stops when that ends, however we end."""

from __future__ import annotations

import asyncio
import json
import signal
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Self

from kappamq.errors import ConfigError, KappaError, StoreError

LAST_LINES: Final = 10
LINE_BYTES_MAX: Final = 4096
_READ_BYTES = 1 << 16
_BY_EXIT_CODE: Final[dict[int, type[KappaError]]] = {3: ConfigError, 7: StoreError}  # as cli/shared/exits.py maps them


class Child:
    """A process that prints one JSON line on standard output when it is ready, and its log on standard error."""

    def __init__(self, label: str, process: Process, hear: Callable[[str], None]) -> None:
        self.label = label
        self._process = process
        self._hear = hear
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._readers = [asyncio.ensure_future(self._read_output()), asyncio.ensure_future(self._read_log())]
        self._ended = asyncio.ensure_future(self._wait())

    @classmethod
    async def start(cls, label: str, command: Sequence[str], hear: Callable[[str], None]) -> Self:
        """`hear` gets each line of its log."""
        # A separate session: Ctrl-C in a terminal goes only to us, and we stop our children in order.
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        return cls(label, process, hear)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return not self._ended.done()

    async def ready(self, seconds_max: float) -> dict[str, Any]:
        """Return the line that it printed. Raises the kind of error that it ended with."""
        either: list[asyncio.Future[Any]] = [self._ready, self._ended]
        await asyncio.wait(either, timeout=seconds_max, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done():
            return self._ready.result()
        if self.running:
            raise KappaError(f"{self.label} was not ready within {seconds_max:g} s; its last lines:{self.last_words()}")
        raise _BY_EXIT_CODE.get(self._ended.result(), KappaError)(
            f"{self.label} {self.how_it_ended()}{self.last_words()}"
        )

    async def ended(self) -> int:
        """Wait for its end; return the exit code, negative for a signal."""
        return await asyncio.shield(self._ended)

    def how_it_ended(self) -> str:
        code = self._ended.result()
        if code >= 0:
            return f"(process {self.pid}) ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"(process {self.pid}) was ended by {name}"

    def last_words(self) -> str:
        return "".join(f"\n  {line}" for line in self.last_lines) or "\n  (it logged nothing)"

    async def stop(self, seconds_max: float) -> bool:
        """Ask it to stop, and end it if it does not within `seconds_max`; return whether it stopped by itself."""
        if self.running:
            self._signal(signal.SIGTERM)
            await asyncio.wait([self._ended], timeout=seconds_max)
        if self.running:
            self._signal(signal.SIGKILL)
            await self.ended()
            return False
        return True

    def _signal(self, number: signal.Signals) -> None:
        try:
            self._process.send_signal(number)
        except ProcessLookupError:
            pass  # it has just ended, and we are about to be notified

    async def _wait(self) -> int:
        code = await self._process.wait()
        # Its last lines are in the pipes; do not wait for another process that holds these open.
        await asyncio.wait(self._readers, timeout=1.0)
        for reader in self._readers:
            reader.cancel()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return code

    async def _read_output(self) -> None:
        assert self._process.stdout is not None
        async for line in lines(self._process.stdout):
            if self._ready.done():
                continue
            try:
                self._ready.set_result(dict(json.loads(line)))
            except (ValueError, TypeError):
                self.last_lines.append(line)

    async def _read_log(self) -> None:
        assert self._process.stderr is not None
        async for line in lines(self._process.stderr):
            text = object_of(line)
            self.last_lines.append(f"error: {text['error']}" if "error" in text else line)
            self._hear(line)


def object_of(line: str) -> dict[str, Any]:
    """Return the JSON object in a line (warnings and errors with --json); an empty one for a plain log line."""
    try:
        found = json.loads(line) if line.startswith("{") else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


async def lines(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield lines without their line ends; only the beginning of one that is too long."""
    pending, skipping = b"", False
    while data := await reader.read(_READ_BYTES):
        *whole, pending = (pending + data).split(b"\n")
        for line in whole:
            if not skipping:
                yield line[:LINE_BYTES_MAX].decode("utf-8", "replace")
            skipping = False
        if len(pending) > LINE_BYTES_MAX:
            if not skipping:
                yield pending[:LINE_BYTES_MAX].decode("utf-8", "replace")
            pending, skipping = b"", True
    if pending and not skipping:
        yield pending.decode("utf-8", "replace")
