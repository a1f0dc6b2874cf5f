"""What some tests need from the machine, and what happens where it is missing.

    pytestmark = needs("maven", "java")            # a whole file
    @needs("root", "netns")                        # one test
    @needs("disk:40G")

A missing need skips the test for a user, with the reason and what to do, and every such skip is counted at the end of
the run. With CI=true it fails instead: a green CI means that everything ran.
Programs that are not tests (benchmarks) call `require("disk:40G")`, which ends them with the same text.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

PREFIX = "missing on this machine: "


def needs(*what: str) -> pytest.MarkDecorator:
    return pytest.mark.needs(*what)


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


@functools.cache
def missing(need: str) -> str | None:
    """None if the machine has it, else what is missing and what to do about it."""
    name, _, value = need.partition(":")
    check = CHECKS.get(name)
    if check is None:
        raise ValueError(f"unknown need {need!r}; known are {', '.join(sorted(CHECKS))}")
    return check(value)


def require(*what: str) -> None:
    for need in what:
        text = missing(need)
        if text is not None:
            sys.exit(f"{PREFIX}{text}")


def _root(_: str) -> str | None:
    return None if os.geteuid() == 0 else "root rights; run as root (sudo make ...)"


def _netns(_: str) -> str | None:
    if _root("") is not None or shutil.which("ip") is None:
        return "network namespaces; run as root with iproute2 installed"
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=20, check=False)
    return None if done.returncode == 0 else f"network namespaces; `ip netns list` says: {done.stderr.strip()}"


def _loop(_: str) -> str | None:
    if _root("") is not None or shutil.which("mkfs.ext4") is None:
        return "loop mounts; run as root with e2fsprogs installed"
    return None if Path("/dev/loop-control").exists() else "loop devices; /dev/loop-control does not exist here"


def _strace(_: str) -> str | None:
    if shutil.which("strace") is None:
        return "strace, which makes system calls fail; install it"
    done = subprocess.run(
        ["strace", "-qq", "-o", "/dev/null", "-e", "inject=fdatasync:error=EIO:when=1+", "true"],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    return None if done.returncode == 0 else f"strace that may trace; it says: {done.stderr.strip()}"


def _setpriv(_: str) -> str | None:
    return None if shutil.which("setpriv") else "setpriv, which takes rights away; install util-linux"


def _java(_: str) -> str | None:
    return None if shutil.which("java") and shutil.which("javac") else "a JDK; install one, 17 or newer"


def _maven(_: str) -> str | None:
    if _java("") is not None:
        return _java("")
    return None if shutil.which("mvn") else "Maven with access to Maven Central; install maven"


def _compiler(_: str) -> str | None:
    return None if shutil.which(os.environ.get("CC", "cc")) else "a C compiler; install gcc or clang"


def _disk(value: str) -> str | None:
    amount = re.fullmatch(r"(\d+)([MG])", value)
    if amount is None:
        raise ValueError(f"disk:{value} should look like disk:40G or disk:500M")
    wanted = int(amount[1]) << (30 if amount[2] == "G" else 20)
    where = tempfile.gettempdir()
    free = shutil.disk_usage(where).free
    if free >= wanted:
        return None
    return f"{value} of free disk in {where} (there are {free >> 30}G); set TMPDIR to a larger disk"


def _memory(value: str) -> str | None:
    wanted = int(value.removesuffix("G")) << 30
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None if pages >= wanted else f"{value} of free memory (there are {pages >> 30}G)"


def _cores(value: str) -> str | None:
    have = len(os.sched_getaffinity(0))
    return None if have >= int(value) else f"{value} cores (there are {have})"


def _module(value: str) -> str | None:
    from importlib.util import find_spec

    return None if find_spec(value) is not None else f"the Python package {value}; pip install it into .venv"


CHECKS: dict[str, Callable[[str], str | None]] = {
    "root": _root,
    "netns": _netns,
    "loop": _loop,
    "strace": _strace,
    "setpriv": _setpriv,
    "java": _java,
    "maven": _maven,
    "compiler": _compiler,
    "disk": _disk,
    "memory": _memory,
    "cores": _cores,
    "module": _module,
}
