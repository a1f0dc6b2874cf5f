"""The fuzzer under address and undefined-behaviour sanitizers.

    python -m tests.native.sanitize [frames] [options of tests.native.fuzz]

Builds the kernel with both sanitizers, runs the tests of this folder and the differential fuzzer with it (1,000,000 frames
unless told otherwise). Python itself is not instrumented, so each object gets memory of its own (PYTHONMALLOC=malloc): a byte
read behind a buffer is seen.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.native.build import SANITIZERS, build_kernel


def runtime(library: str) -> str:
    return subprocess.run(
        ["gcc", f"-print-file-name={library}"], check=True, capture_output=True, text=True
    ).stdout.strip()


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        arguments = ["1000000", *arguments]
    with tempfile.TemporaryDirectory(prefix="kappamq-sanitized-") as folder:
        extension = build_kernel(Path(folder), SANITIZERS)
        environment = {
            **os.environ,
            "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libubsan.so')}",
            # SIGBUS stays ours: the kernel catches it where a mapped file has become shorter, and a test counts on that.
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:strict_string_checks=1:handle_sigbus=0",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
            "PYTHONMALLOC": "malloc",
            "KAPPAMQ_TEST_KERNEL": str(extension),
        }
        tests = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "not slow",
            "--ignore",
            "tests/native/test_fuzz.py",
            "tests/native",
        ]
        tests += ["--deselect", "tests/native/test_native.py"]  # about which file is found, and this one is given
        tests += ["--basetemp", str(Path(folder) / "tests")]
        if subprocess.run(tests, env=environment, check=False).returncode:
            return 1
        command = [sys.executable, "-m", "tests.native.fuzz", *arguments, "--extension", str(extension)]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
