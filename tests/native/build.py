"""Builds of the compiled kernel that are not the installed one: with sanitizers, or without what only this processor has."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

NATIVE = Path(__file__).parents[2] / "src" / "kappamq" / "native"
SANITIZERS = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]
PORTABLE = ["-O1", "-DKAPPAMQ_PORTABLE"]


def build_kernel(folder: Path, flags: list[str]) -> Path:
    """Compile the kernel with `flags` into `folder`: the extension's file. Needs Cython and a C compiler."""
    folder.mkdir(parents=True, exist_ok=True)
    wrapper = folder / "_kernel.c"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "cython",
            "-3",
            "--module-name",
            "kappamq.native._kernel",
            str(NATIVE / "_kernel.pyx"),
            "-o",
            str(wrapper),
        ],
        check=True,
    )
    target = folder / f"_kernel{sysconfig.get_config_var('EXT_SUFFIX')}"
    sources = [wrapper, *sorted(path for path in NATIVE.glob("*.c") if path.name != "_kernel.c")]
    compiler = str(sysconfig.get_config_var("CC") or "cc").split()
    include = ["-I", str(NATIVE), "-I", sysconfig.get_paths()["include"]]
    subprocess.run(
        [
            *compiler,
            "-shared",
            "-fPIC",
            "-std=gnu11",
            "-fwrapv",
            *flags,
            *include,
            *map(str, sources),
            "-o",
            str(target),
            "-lpthread",
        ],
        check=True,
    )
    return target
