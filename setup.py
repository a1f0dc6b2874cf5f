"""Builds the optional kernel. Everything else about the package is in pyproject.toml.

The kernel is a speed-up, never a condition: without its sources, without Cython or without a working C compiler the
package installs all the same and says that the pure-Python twin will be used.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/kappamq/native")
TWIN = "kappamq: the pure-Python twin of the kernel will be used (same results, slower)."


def say(text: str) -> None:
    # pip hides standard output of a build unless it fails; -v shows it. `kappamq doctor` tells the same at run time.
    print(f"\n*** {text}\n", file=sys.stderr, flush=True)


class BuildKernel(build_ext):
    """Compiles the kernel if it can be compiled, and goes on without it if not."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            say(f"kappamq: no kernel: {error}. {TWIN}")

    def build_extension(self, ext: Any) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:
            say(f"kappamq: {ext.name} could not be compiled: {error}. {TWIN}")
            self._failed = True

    def copy_extensions_to_source(self) -> None:
        # An editable install copies what was built; after a failed build there is nothing to copy.
        if not getattr(self, "_failed", False):
            super().copy_extensions_to_source()


def extensions() -> list[Extension]:
    source = NATIVE / "_kernel.pyx"
    if not source.exists():
        say(f"kappamq: {source} does not exist. {TWIN}")
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        say(f"kappamq: Cython is not installed. {TWIN}")
        return []
    # All C files but the one that Cython writes.
    parts = [str(path) for path in sorted(NATIVE.glob("*.c")) if path.name != "_kernel.c"]
    kernel = Extension(
        "kappamq.native._kernel",
        sources=[str(source), *parts],
        depends=[str(path) for path in sorted(NATIVE.glob("*.h"))],
        include_dirs=[str(NATIVE)],
        # No -march: a wheel must run on any machine of its kind. Code for newer CPUs is chosen at run time
        # through target attributes in the C sources.
        extra_compile_args=["-O3", "-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-function", "-fno-strict-aliasing"],
        extra_link_args=["-lpthread"],
    )
    try:
        built: list[Extension] = cythonize([kernel], language_level=3)
    except Exception as error:
        say(f"kappamq: {source} could not be translated: {error}. {TWIN}")
        return []
    return built


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildKernel})
