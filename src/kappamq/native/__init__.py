"""The loops that run once per message: buffers in, numbers out.

`load()` returns the compiled kernel if it is built, and the pure-Python twin otherwise; both have the same names and give the same
results byte for byte (tests/native checks this).
"""

from __future__ import annotations

from typing import cast

from kappamq.native.interface import KernelModule
from kappamq.native.mapping import MappedFile


def load(kind: str = "auto") -> KernelModule:
    """The kernel module: "native", "twin", or "auto" for the compiled one if it exists."""
    if kind not in ("auto", "native", "twin"):
        raise ValueError(f"kernel is 'auto', 'native' or 'twin', not {kind!r}")
    if kind != "twin":
        try:
            from kappamq.native import _kernel

            return cast(KernelModule, _kernel)
        except ImportError:
            if kind == "native":
                raise
    from kappamq.native import pure

    return cast(KernelModule, pure)


def map_file(fd: int, size: int) -> MappedFile:
    """The first `size` bytes of a file, for reading; with the compiled kernel, failed reads do not end the process."""
    try:
        from kappamq.native import _kernel
    except ImportError:
        return MappedFile(fd, size)
    return _kernel.MappedFile(fd, size)
