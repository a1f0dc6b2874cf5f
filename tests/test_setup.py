"""setup.py: a kernel where it can be compiled, a clear word and the twin where it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.needs import needs

ROOT = Path(__file__).parent.parent
TWIN = "the pure-Python twin of the kernel will be used"

SPARK_MODULES = ("pyspark_kappamq.py", "pyspark_kappamq_store.py")  # by these Spark finds our formats

PYX = """
cdef extern from "kernel.h":
    int kappamq_answer()
def answer():
    return kappamq_answer()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project with a kernel small enough to be compiled in every test run."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, tmp_path / name)
    native = tmp_path / "src" / "kappamq" / "native"
    native.mkdir(parents=True)
    for module in SPARK_MODULES:
        shutil.copy(ROOT / "src" / module, tmp_path / "src" / module)
    (native.parent / "spark").mkdir()
    shutil.copy(ROOT / "src/kappamq/spark/log4j2.properties", native.parent / "spark")
    (native.parent / "spark" / "__init__.py").write_text("")
    for folder in (native, native.parent):
        (folder / "__init__.py").write_text("")
    (native / "_kernel.pyx").write_text(PYX)
    (native / "kernel.h").write_text("int kappamq_answer(void);\n")
    (native / "kernel.c").write_text('#include "kernel.h"\nint kappamq_answer(void) { return 42; }\n')
    (native / "flusher.c").write_text("int kappamq_flusher;\n")
    return tmp_path


def build(project: Path, **environment: str) -> tuple[list[str], str]:
    """Build a wheel; returns the names in it and everything that was said."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-v",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        "out",
        ".",
    ]
    done = subprocess.run(
        command,
        cwd=project,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    (wheel,) = (project / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist(), said


def compiled(names: list[str]) -> list[str]:
    return [name for name in names if "_kernel" in name and name.endswith(".so")]


@needs("compiler", "module:Cython")
def test_the_kernel_is_built(project: Path) -> None:
    for name in ("py.typed", "native/_kernel.pyi"):
        (project / "src/kappamq" / name).write_text("")
    names, said = build(project)
    assert len(compiled(names)) == 1
    assert TWIN not in said
    # What runs and what type checkers read, and nothing else; no tests, no sources of the kernel.
    assert {name.partition("/")[0] for name in names} == {"kappamq", "kappamq-0.1.0.dist-info", *SPARK_MODULES}
    others = {name for name in names if name.startswith("kappamq/") and not name.endswith(".py")} - {*compiled(names)}
    assert others == {"kappamq/py.typed", "kappamq/native/_kernel.pyi", "kappamq/spark/log4j2.properties"}
    with zipfile.ZipFile(next((project / "out").glob("*.whl"))) as archive:
        metadata = archive.read("kappamq-0.1.0.dist-info/METADATA").decode()
        assert {"License-Expression: Apache-2.0", "License-File: LICENSE"} <= set(metadata.splitlines())
        assert archive.read("kappamq-0.1.0.dist-info/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        scripts = archive.read("kappamq-0.1.0.dist-info/entry_points.txt").decode()
    assert "kappamq = kappamq.__main__:main" in scripts


@needs("module:Cython")
def test_a_source_distribution_has_what_the_kernel_is_made_of(project: Path) -> None:
    program = "from setuptools.build_meta import build_sdist; build_sdist('out')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=project, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    (archive,) = (project / "out").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    native = {"_kernel.pyx", "kernel.h", "kernel.c", "flusher.c", "__init__.py"}
    assert {f"src/kappamq/native/{name}" for name in native} | {"LICENSE", "README.md", "setup.py"} <= names
    assert "src/kappamq/native/_kernel.c" not in names


@needs("module:Cython")
def test_no_compiler_means_the_twin_and_says_so(project: Path) -> None:
    names, said = build(project, CC="false")
    assert compiled(names) == []
    assert "kappamq/native/__init__.py" in names
    assert TWIN in said


def test_a_broken_kernel_does_not_stop_the_install(project: Path) -> None:
    (project / "src/kappamq/native/_kernel.pyx").write_text("this is no Cython\n")
    names, said = build(project)
    assert compiled(names) == []
    assert TWIN in said


def test_without_kernel_sources(project: Path) -> None:
    (project / "src/kappamq/native/_kernel.pyx").unlink()
    names, said = build(project)
    assert compiled(names) == []
    assert TWIN in said
