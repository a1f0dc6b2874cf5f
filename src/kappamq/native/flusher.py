"""The group-commit thread, in Python; defines the behaviour of flusher.c.

One fdatasync runs at a time; requests that arrive meanwhile share the next one. The event loop watches `fileno()`
and calls `take()` when it is readable.
"""

from __future__ import annotations

import errno
import os
import threading


class Flusher:
    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._files: list[int] = []  # files to sync, in the order of the requests
        self._asked = self._durable = 0
        self._errno = 0
        self._closing = self._busy = False
        if hasattr(os, "eventfd"):
            self._reader = self._writer = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._reader, self._writer = os.pipe()
            os.set_blocking(self._reader, False)
            os.set_blocking(self._writer, False)
        self._thread = threading.Thread(target=self._run, name="kappamq-flusher", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable when there is something to `take()`; -1 once closed."""
        return self._reader

    def request(self, fd: int, offset: int) -> None:
        """Make everything written to `fd` so far durable, then report `offset`. Keep `fd` open until it is reported."""
        with self._wake:
            if self._reader < 0:
                raise ValueError("the flusher is closed")
            if self._errno:
                return  # nothing becomes durable any more; take() reports it
            if fd not in self._files:
                self._files.append(fd)
            self._asked = max(self._asked, offset)
            self._wake.notify_all()

    def take(self) -> tuple[int, int]:
        """(newest durable offset, 0); once an fdatasync has failed, (the newest offset before that, its errno) for ever."""
        with self._wake:
            if self._reader >= 0:
                try:
                    os.read(self._reader, 8 if self._reader == self._writer else 4096)
                except BlockingIOError:
                    pass
            return self._durable, self._errno

    def cut(self, offset: int) -> None:
        """The log is about to be cut to `offset`: earlier requests make nothing behind it durable, since other bytes may be written
        there. Waits until no sync is running: then files that hold only cut bytes may be closed."""
        with self._wake:
            while self._busy or self._files:
                self._wake.wait()
            self._asked = min(self._asked, offset)
            self._durable = min(self._durable, offset)

    def close(self) -> None:
        """Finish all requests and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join()
        with self._wake:
            descriptors, self._reader, self._writer = {self._reader, self._writer}, -1, -1
        for descriptor in descriptors - {-1}:
            os.close(descriptor)

    def _run(self) -> None:
        sync = getattr(os, "fdatasync", os.fsync)
        while True:
            with self._wake:
                while not self._files and not self._closing:
                    self._wake.wait()
                if not self._files:
                    return
                files, self._files = self._files, []
                offset = self._asked
                self._busy = True
            failure = 0
            for fd in files:
                try:
                    sync(fd)
                except OSError as error:
                    failure = error.errno or errno.EIO
                    break
            with self._wake:
                self._busy = False
                if failure:
                    self._errno = failure
                    self._files.clear()
                else:
                    self._durable = offset
                self._wake.notify_all()
                try:
                    os.write(self._writer, (1).to_bytes(8, "little"))
                except BlockingIOError:
                    pass  # the pipe is full: the loop is notified already
